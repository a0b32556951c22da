#include "common/fused/fused_step.hpp"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <utility>

#include "common/backends/cuda_module.hpp"
#include "common/fused/engine.hpp"
#include "common/fused/graph_cache.hpp"
#include "common/fused/kernels.hpp"
#include "common/model/flat_parameters.hpp"
#include "common/parallel/gradient_buckets.hpp"
#include "common/parallel/worker_pool.hpp"

namespace ddp {
namespace {

using fused::Work;

/// One device's copy of the MLP.
struct Replica {
  torch::Device device;
  torch::Tensor data;  // flat; the model's own on the model's device
  torch::Tensor grad;  // flat; the model's own for the first replica
  std::unique_ptr<fused::Engine> engine;
};

}  // namespace

struct FusedStep::State {
  State(const Options& options, Mlp mlp, const std::vector<torch::Device>& devices,
        const ProcessGroup* group, std::function<void()> weight_update,
        std::shared_ptr<GraphStream> graph_stream)
      : model(std::move(mlp)),
        update(std::move(weight_update)),
        process_group(group),
        world_size(group == nullptr ? 1 : group->world_size()),
        batch_size(resolve_batch_per_rank(options, world_size)),
        whole_step_samples(static_cast<double>(batch_size * options.accumulate)),
        flat(flatten_parameters(*model)),
        threads(devices.size()) {
    const torch::NoGradGuard no_grad;
    TORCH_CHECK(flat.parameters.size() == model->parameters().size(),
                "Expected a model all of whose parameters are trained, got ",
                flat.parameters.size(), " of ", model->parameters().size());
    if (world_size > 1) {
      buckets.emplace(
          flat, *process_group, distributed_options(options), GradientBuckets::Scale::kDivided,
          CallSite{.file = options.speedup == "graph" ? "--speedup graph" : "--speedup fused"});
    }
    const auto count = static_cast<int64_t>(devices.size());
    const int64_t largest_share = (batch_size + count - 1) / count;
    for (const torch::Device& device : devices) {
      Replica replica{.device = device,
                      .data = device == flat.data.device() ? flat.data : flat.data.to(device),
                      .grad = replicas.empty() ? flat.grad : torch::zeros_like(flat.grad, device),
                      .engine = nullptr};
      const fused::MlpStorage storage = fused::mlp_storage(flat, replica.data, replica.grad);
      replica.engine = device.is_cpu()
                           ? fused::make_host_engine(storage, largest_share,
                                                     static_cast<size_t>(options.threads),
                                                     options.check_finite && count == 1)
                           : fused::make_aten_engine(storage, largest_share);
      if (options.verbose) {
        std::fputs(c10::str("In fused step on ", device, ": ReLU ",
                            replica.engine->fuses_relu() ? "in the product's kernel"
                                                         : "in a kernel of its own",
                            "\n")
                       .c_str(),
                   stdout);
      }
      replicas.push_back(std::move(replica));
    }
    if (options.speedup == "graph") {
      if (!graph_stream) {
        TORCH_CHECK(flat.data.is_cuda() && devices.size() == 1,
                    "Expected one CUDA device for --speedup graph, got ", devices.size(), " of ",
                    flat.data.device());
        graph_stream = cuda_module()->make_graph_stream(flat.data.device());
      }
      graphs = std::make_shared<fused::GraphCache>(std::move(graph_stream));
      if (process_group != nullptr) {
        // Which of the two is destroyed first is the stage's affair.
        process_group->before_shutdown([cache = std::weak_ptr<fused::GraphCache>(graphs)] {
          if (const auto still_there = cache.lock()) {
            still_there->release();
          }
        });
      }
    }
  }

  void run(const Batch& batch, double learning_rate) {
    const torch::NoGradGuard no_grad;
    // All ranks must choose alike: in an epoch's last, smaller step some may have a whole batch.
    if (graphs && batch.step_samples_per_rank == whole_step_samples) {
      run_graph(batch, learning_rate);
    } else {
      compute_replicas(batch);
      finish_step(batch, *batch.observer);
    }
    step_begun = !batch.completes_step;
    // On a GPU losses are read when the epoch is over, and the next step overwrites this one.
    const torch::Tensor& loss = replicas.front().engine->loss();
    batch.observer->add_loss(flat.data.is_cpu() ? loss : loss.clone());
  }

  Work work_of(const Batch& batch, int64_t begin, int64_t samples) const {
    // Divided by the number of ranks here, where it costs nothing, and not after the all-reduce.
    return {batch, begin, samples, 1 / (batch.step_samples_per_rank * world_size), step_begun};
  }

  void compute_replicas(const Batch& batch) {
    if (replicas.size() == 1) {
      compute(replicas.front(), work_of(batch, 0, batch.size()), *batch.observer);
      return;
    }
    threads.run([&](size_t i) {
      Replica& replica = replicas[i];
      if (replica.data.data_ptr() != flat.data.data_ptr()) {
        replica.data.copy_(flat.data, /*non_blocking=*/true);
      }
      const auto count = static_cast<int64_t>(replicas.size());
      const auto index = static_cast<int64_t>(i);
      const int64_t samples = batch.size();
      const int64_t begin = index * (samples / count) + std::min(index, samples % count);
      compute(replica, work_of(batch, begin, samples / count + (index < samples % count ? 1 : 0)),
              i == 0 ? *batch.observer : no_observer);
    });
    torch::Tensor loss = replicas.front().engine->loss();
    for (size_t i = 1; i < replicas.size(); ++i) {
      loss.add_(replicas[i].engine->loss().to(loss.device()));
    }
    if (batch.completes_step) {
      add_gradients();
    }
  }

  /// @param observer of the one replica whose phases count
  void compute(const Replica& replica, const Work& work, StepObserver& observer) {
    const c10::DeviceGuard device_guard(replica.device);
    const torch::NoGradGuard no_grad;  // thread-local
    model->announce({work.samples, work.batch.input.size(1)}, replica.device);
    const auto gradient_ready = [&](size_t layer) {
      observer.gradients_are_finite(replica.engine->gradients_are_finite());
      start_all_reduce(layer, work.batch);
    };
    replica.engine->load(work);
    replica.engine->compute(work, {observer, gradient_ready});
  }

  /// Of the buckets that this layer's gradients complete, if the batch completes the step.
  void start_all_reduce(size_t layer, const Batch& batch) {
    if (!buckets || !batch.completes_step) {
      return;
    }
    for (size_t bucket = 0; bucket < buckets->size(); ++bucket) {
      // A layer has two parameters.
      if (buckets->range(bucket).first_parameter / 2 == layer) {
        buckets->start(bucket);
      }
    }
  }

  /// In the replicas' order, which fixes the bits.
  void add_gradients() {
    if (!flat.grad.is_cpu()) {
      for (size_t i = 1; i < replicas.size(); ++i) {
        flat.grad.add_(replicas[i].grad.to(flat.grad.device()));
      }
      return;
    }
    threads.run([&](size_t thread) {
      const auto count = static_cast<int64_t>(threads.size());
      const int64_t begin = flat.grad.numel() * static_cast<int64_t>(thread) / count;
      const int64_t end = flat.grad.numel() * static_cast<int64_t>(thread + 1) / count;
      for (size_t i = 1; i < replicas.size(); ++i) {
        fused::kernels().add(flat.grad.mutable_data_ptr<float>() + begin,
                             replicas[i].grad.const_data_ptr<float>() + begin, end - begin);
      }
    });
  }

  /// If the batch completes the step: waits for the sums over the ranks, which are means already
  /// (see work_of()), and updates the weights.
  void finish_step(const Batch& batch, StepObserver& observer) {
    if (!batch.completes_step) {
      return;
    }
    if (buckets) {
      buckets->finish();
    }
    observer.begin(Phase::kOptimizer);
    update();
  }

  /// All phases count as forward: nobody can tell when in a graph one ends.
  void run_graph(const Batch& batch, double learning_rate) {
    model->announce({batch_size, batch.input.size(1)}, flat.data.device());
    fused::Engine& engine = *replicas.front().engine;
    const Work work = work_of(batch, 0, batch_size);
    engine.load(work);
    const size_t kind = (step_begun ? 2U : 0U) + (batch.completes_step ? 1U : 0U);
    graphs->run(kind, learning_rate, process_group, [&] {
      const auto gradient_ready = [&](size_t layer) { start_all_reduce(layer, batch); };
      engine.compute(work, {no_observer, gradient_ready});
      finish_step(batch, no_observer);
    });
  }

  Mlp model;
  std::function<void()> update;
  const ProcessGroup* process_group;
  int world_size;
  int64_t batch_size;  // per rank and micro-batch
  double whole_step_samples;  // per rank
  FlatParameters flat;
  std::optional<GradientBuckets> buckets;  // in the order in which backward fills them
  std::vector<Replica> replicas;
  WorkerPool threads;  // one per replica
  std::shared_ptr<fused::GraphCache> graphs;
  bool step_begun = false;  // gradients of this step's earlier micro-batches are there
};

FusedStep::FusedStep(const Options& options, Mlp model, const std::vector<torch::Device>& devices,
                     const ProcessGroup* process_group, std::function<void()> update,
                     std::shared_ptr<GraphStream> graph_stream)
    : state_(std::make_unique<State>(options, std::move(model), devices, process_group,
                                     std::move(update), std::move(graph_stream))) {}

FusedStep::~FusedStep() = default;

void FusedStep::run(const Batch& batch, double learning_rate) {
  state_->run(batch, learning_rate);
}

}  // namespace ddp
