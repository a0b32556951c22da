#include "common/parallel/mirrored.hpp"

#include <ATen/Dispatch.h>
#include <ATen/EmptyTensor.h>
#include <c10/core/StreamGuard.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "common/backends/cuda_module.hpp"
#include "common/base/exit_codes.hpp"
#include "common/launch/cpu_share.hpp"
#include "common/model/mlp.hpp"
#include "common/parallel/data_parallel.hpp"

namespace ddp {
namespace {

/// Every `replicas`-th row of `whole`, from row `i` on. On the host without operators, which would
/// take a tenth of the shortest steps.
torch::Tensor share_of(const torch::Tensor& whole, size_t i, size_t replicas) {
  if (!whole.is_cpu()) {
    // No contiguous(): one row alone would keep its stride, by which products choose their kernel.
    return whole.slice(0, static_cast<int64_t>(i), whole.size(0), static_cast<int64_t>(replicas))
        .clone(at::MemoryFormat::Contiguous);
  }
  TORCH_CHECK(whole.is_contiguous(), "Expected a contiguous batch, got strides ", whole.strides());
  const auto all_rows = static_cast<size_t>(whole.size(0));
  c10::SmallVector<int64_t, 4> sizes(whole.sizes());
  sizes[0] = i < all_rows ? static_cast<int64_t>((all_rows - i - 1) / replicas + 1) : 0;
  torch::Tensor share(at::detail::empty_cpu(sizes, whole.options()));
  const size_t row_bytes = all_rows == 0 ? 0 : whole.nbytes() / all_rows;
  const char* const from = static_cast<const char*>(whole.const_data_ptr());
  char* to = static_cast<char*>(share.mutable_data_ptr());
  for (size_t row = i; row < all_rows; row += replicas, to += row_bytes) {
    std::memcpy(to, from + row * row_bytes, row_bytes);
  }
  return share;
}

/// On the host as a number, without operators; else on the first one's device.
torch::Tensor mean_of(const std::vector<torch::Tensor>& losses) {
  const torch::NoGradGuard no_grad;
  const auto count = static_cast<double>(losses.size());
  if (losses[0].is_cpu()) {
    const double sum = std::accumulate(
        losses.begin(), losses.end(), 0.0,
        [](double before, const torch::Tensor& loss) { return before + loss.item<double>(); });
    return at::scalar_tensor(sum / count, torch::kFloat64);
  }
  torch::Tensor sum = losses[0];
  for (size_t i = 1; i < losses.size(); ++i) {
    sum = sum + losses[i].to(sum.device());
  }
  return sum / count;
}

/// With a processor for each, threads do not sleep while the caller fetches a batch.
int looks_for(size_t threads) {
  const auto processors = static_cast<size_t>(count_processors(allowed_cores()));
  return threads <= processors ? 10 * WorkerPool::kFewLooks : WorkerPool::kFewLooks;
}

/// Elements that stay in a core's first cache from the sum to the last copy.
constexpr int64_t kBlock = 4096;

/// Elements [begin, end) of every replica's gradients become their mean.
template <typename Scalar>
void average(c10::ArrayRef<Scalar*> gradients, int64_t begin, int64_t end) {
  for (int64_t block = begin; block < end; block += kBlock) {
    const int64_t size = std::min(kBlock, end - block);
    Scalar* const sum = gradients[0] + block;
    for (size_t i = 1; i < gradients.size(); ++i) {
      const Scalar* const term = gradients[i] + block;
      for (int64_t k = 0; k < size; ++k) {
        sum[k] += term[k];
      }
    }
    for (int64_t k = 0; k < size; ++k) {
      sum[k] /= static_cast<Scalar>(gradients.size());
    }
    for (size_t i = 1; i < gradients.size(); ++i) {
      std::copy_n(sum, size, gradients[i] + block);
    }
  }
}

/// On the host: each thread does a part for all. Few are done by the caller in less time than it
/// takes to tell the others.
template <typename Scalar>
void average_on_host(const std::vector<torch::Tensor>& gradients, MirroredReplicas& replicas) {
  c10::SmallVector<Scalar*, 16> data;
  for (const torch::Tensor& gradient : gradients) {
    data.push_back(gradient.mutable_data_ptr<Scalar>());
  }
  const int64_t blocks = (gradients[0].numel() + kBlock - 1) / kBlock;
  const auto begin = [&](size_t part) {
    return blocks * static_cast<int64_t>(part) / static_cast<int64_t>(data.size()) * kBlock;
  };
  const auto average_part = [&](size_t part) {
    average<Scalar>(data, begin(part), std::min(begin(part + 1), gradients[0].numel()));
  };
  if (blocks > 1) {
    replicas.run(average_part);
  } else {
    average<Scalar>(data, 0, gradients[0].numel());
  }
}

/// On devices that have no NCCL: by way of the first one.
void average_by_copies(const std::vector<torch::Tensor>& gradients) {
  torch::Tensor sum = gradients[0];
  for (size_t i = 1; i < gradients.size(); ++i) {
    sum.add_(gradients[i].to(sum.device(), /*non_blocking=*/true));
  }
  sum.div_(static_cast<int64_t>(gradients.size()));
  for (size_t i = 1; i < gradients.size(); ++i) {
    gradients[i].copy_(sum, /*non_blocking=*/true);
  }
}

}  // namespace

MirroredReplicas::MirroredReplicas(std::shared_ptr<torch::nn::Module> model,
                                   std::vector<torch::Device> devices)
    : devices_(std::move(devices)),
      modules_(clone_to(*model, {devices_.begin() + 1, devices_.end()})),
      threads_(devices_.size(), looks_for(devices_.size())) {
  modules_.insert(modules_.begin(), std::move(model));
  for (const auto& replica : modules_) {
    const std::vector<torch::Tensor> parameters = replica->parameters();
    for (size_t p = 0; p < parameters.size(); ++p) {  // clones are as they were constructed
      parameters[p].set_requires_grad(modules_[0]->parameters()[p].requires_grad());
    }
    flat_.push_back(flatten_parameters(*replica));
  }
}

void MirroredReplicas::run(c10::function_ref<void(size_t)> apply) {
  const bool grad_enabled = torch::GradMode::is_enabled();  // thread-local, likewise the streams
  std::vector<c10::Stream> streams;
  if (!devices_[0].is_cpu()) {
    for (const torch::Device& device : devices_) {
      streams.push_back(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    }
  }
  threads_.run([&](size_t i) {
    const torch::AutoGradMode grad_mode(grad_enabled);
    const c10::MultiStreamGuard stream_guard(streams);
    const c10::DeviceGuard device_guard(devices_[i]);
    apply(i);
  });
}

PerReplica MirroredReplicas::map(
    const torch::Tensor& whole,
    c10::function_ref<torch::Tensor(size_t, const torch::Tensor&)> apply) {
  const auto share = [&](size_t i) {
    return share_of(whole, i, size()).to(devices_[i], /*non_blocking=*/true);
  };
  // On a device's stream the copies must come before the replica's own work.
  std::vector<torch::Tensor> shares(size());
  for (size_t i = 0; i < size() && !whole.is_cpu(); ++i) {
    shares[i] = share(i);
  }
  PerReplica result{.replicas = *this, .values = std::vector<torch::Tensor>(size())};
  run([&](size_t i) { result.values[i] = apply(i, whole.is_cpu() ? share(i) : shares[i]); });
  return result;
}

void MirroredReplicas::all_reduce() {
  if (size() == 1 || paused_) {
    return;
  }
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> gradients;
  for (const FlatParameters& flat : flat_) {
    flat.rebind_grads();
    gradients.push_back(flat.grad);
  }
  if (gradients[0].is_cpu()) {
    AT_DISPATCH_FLOATING_TYPES(gradients[0].scalar_type(), "average_on_host",
                               [&] { average_on_host<scalar_t>(gradients, *this); });
  } else if (gradients[0].is_cuda()) {
    cuda_module()->average(gradients);
  } else {
    average_by_copies(gradients);
  }
}

void MirroredReplicas::broadcast() {
  const torch::NoGradGuard no_grad;
  const auto copy_all = [](const std::vector<torch::Tensor>& from,
                           const std::vector<torch::Tensor>& to) {
    for (size_t t = 0; t < from.size(); ++t) {
      to[t].detach().copy_(from[t]);
    }
  };
  for (size_t i = 1; i < size(); ++i) {
    copy_all(modules_[0]->parameters(), modules_[i]->parameters());
    copy_all(modules_[0]->buffers(), modules_[i]->buffers());
  }
}

void MirroredReplicas::expect_mirrored() const {
  const std::string expected = parameter_hash(*modules_[0]).substr(0, 16);
  for (size_t i = 1; i < size(); ++i) {
    const std::string digest = parameter_hash(*modules_[i]).substr(0, 16);
    if (digest != expected) {
      throw Error(ExitCode::kTrainingFailed,
                  fmt::format("the weights of replica {} have digest {}, expected the model's {}",
                              i, digest, expected));
    }
  }
}

void PerReplica::backward() const {
  replicas.run([this](size_t i) { values[i].backward(); });
  if (completes_step) {
    replicas.all_reduce();
  }
}

PerReplica loss(const PerReplica& output, const Batch& batch) {
  check_gathered(batch);
  const auto replicas = static_cast<double>(output.values.size());
  PerReplica losses = output.replicas.map(batch.target, [&](size_t i, const torch::Tensor& target) {
    Batch share;
    share.target = target;
    share.step_samples_per_rank = batch.step_samples_per_rank / replicas;
    return loss(output.values[i], share);
  });
  losses.completes_step = batch.completes_step;
  batch.observer->add_loss(mean_of(losses.values));
  batch.observer->begin(Phase::kBackward);
  return losses;
}

}  // namespace ddp
