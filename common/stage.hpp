// common/stage.hpp - the one include of every stage: what it needs of LibTorch, and what LibTorch
// lacks of PyTorch. With other layers or optimizers, include <torch/torch.h> too.
#pragma once

#include "common/backends/device.hpp"  // set_device
#include "common/data/data_loader.hpp"  // DataLoader, RandomSampler
#include "common/data/dataset.hpp"  // load_dataset
#include "common/launch/options.hpp"  // Options
#include "common/launch/spawn.hpp"  // run_alone, spawn, run_rank
#include "common/model/mlp.hpp"  // Mlp, loss
#include "common/parallel/data_parallel.hpp"  // data_parallel
#include "common/parallel/distributed_data_parallel.hpp"  // DistributedDataParallel
#include "common/parallel/distributed_sampler.hpp"  // DistributedSampler
#include "common/parallel/mirrored.hpp"  // Mirrored
#include "common/parallel/process_group.hpp"  // init_process_group, all_reduce, broadcast
#include "common/training/accelerator.hpp"  // Accelerator
#include "common/training/optimizer.hpp"  // Optimizer
#include "common/training/training.hpp"  // Training
