// common/stage.hpp - the include of every stage: LibTorch, and the parts of PyTorch that LibTorch
// lacks. For other layers or optimizers, include <torch/torch.h> too.
#pragma once

#include "common/compiled/compiled_step.hpp"  // CompiledStep
#include "common/data/data_loader.hpp"  // DataLoader, RandomSampler
#include "common/data/dataset.hpp"  // load_dataset
#include "common/device/device.hpp"  // set_device
#include "common/fused/fused_mlp.hpp"  // FusedMlp
#include "common/fused/step_graph.hpp"  // StepGraph
#include "common/launch/options.hpp"  // Options
#include "common/launch/spawn.hpp"  // run_alone, spawn, run_rank
#include "common/model/mlp.hpp"  // Mlp, loss, evaluate
#include "common/parallel/accelerator.hpp"  // Accelerator
#include "common/parallel/data_parallel.hpp"  // DataParallel
#include "common/parallel/default_group.hpp"  // init_process_group, all_reduce, broadcast
#include "common/parallel/distributed_data_parallel.hpp"  // DistributedDataParallel
#include "common/parallel/distributed_sampler.hpp"  // DistributedSampler
#include "common/parallel/mirrored.hpp"  // Mirrored
#include "common/training/batch_finder.hpp"  // find_batch_size
#include "common/training/log.hpp"  // Log
#include "common/training/optimizer.hpp"  // make_optimizer
#include "common/training/snapshot.hpp"  // load_snapshot, save_snapshot
#include "common/training/stop_request.hpp"  // stop_requested
