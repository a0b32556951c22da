#include "common/parallel/mirrored.hpp"

#include <ATen/EmptyTensor.h>
#include <ATen/OpMathType.h>

#include <cstring>

#include "common/backends/cuda_module.hpp"
#include "common/base/exit_codes.hpp"

namespace ddp {
namespace {

/// Copies every `replicas`-th row of `whole`, from row `i` on. On the host without operators, which
/// take a tenth of the shortest steps.
torch::Tensor rows_of_replica(const torch::Tensor& whole, size_t i, size_t replicas) {
  if (!whole.is_cpu()) {
    // Not contiguous(): a single row would keep its stride, and products would use another kernel.
    return whole.slice(0, static_cast<int64_t>(i), whole.size(0), static_cast<int64_t>(replicas))
        .clone(at::MemoryFormat::Contiguous);
  }
  TORCH_CHECK(whole.is_contiguous(), "Expected a contiguous batch, got strides ", whole.strides());
  const auto all_rows = static_cast<size_t>(whole.size(0));
  c10::SmallVector<int64_t, 4> sizes(whole.sizes());
  sizes[0] = i < all_rows ? static_cast<int64_t>((all_rows - i - 1) / replicas + 1) : 0;
  torch::Tensor rows(at::detail::empty_cpu(sizes, whole.options()));
  const size_t row_bytes = all_rows == 0 ? 0 : whole.nbytes() / all_rows;
  const char* const from = static_cast<const char*>(whole.const_data_ptr());
  char* to = static_cast<char*>(rows.mutable_data_ptr());
  for (size_t row = i; row < all_rows; row += replicas, to += row_bytes) {
    std::memcpy(to, from + row * row_bytes, row_bytes);
  }
  return rows;
}

/// Elements that stay in a core's first-level cache from the sum to the last copy.
constexpr int64_t kCachedElements = 4096;

/// Replaces elements [begin, end) of every replica's gradients by their mean.
void average(c10::ArrayRef<float*> gradients, int64_t begin, int64_t end) {
  for (int64_t block = begin; block < end; block += kCachedElements) {
    const int64_t size = std::min(kCachedElements, end - block);
    float* const sum = gradients[0] + block;
    for (size_t i = 1; i < gradients.size(); ++i) {
      std::transform(sum, sum + size, gradients[i] + block, sum, std::plus<>());
    }
    for (int64_t k = 0; k < size; ++k) {
      sum[k] /= static_cast<float>(gradients.size());
    }
    for (size_t i = 1; i < gradients.size(); ++i) {
      std::copy_n(sum, size, gradients[i] + block);
    }
  }
}

/// Averages on the host: each thread does a part of the elements for all replicas. The caller does
/// few elements alone, because waking threads takes longer.
void average_on_host(const std::vector<torch::Tensor>& gradients, MirroredReplicas& replicas) {
  c10::SmallVector<float*, 16> data;
  for (const torch::Tensor& gradient : gradients) {
    data.push_back(gradient.mutable_data_ptr<float>());
  }
  const int64_t blocks = (gradients[0].numel() + kCachedElements - 1) / kCachedElements;
  const auto begin = [&](size_t part) {
    return blocks * static_cast<int64_t>(part) / static_cast<int64_t>(data.size()) *
           kCachedElements;
  };
  if (blocks > 1) {
    replicas.parallel_apply([&](size_t part) {
      average(data, begin(part), std::min(begin(part + 1), gradients[0].numel()));
    });
  } else {
    average(data, 0, gradients[0].numel());
  }
}

/// Averages through the first device, for other types and devices. Adds half types in float32.
void average_by_copies(const std::vector<torch::Tensor>& gradients) {
  torch::Tensor sum = gradients[0].to(at::toOpMathType(gradients[0].scalar_type()));
  for (size_t i = 1; i < gradients.size(); ++i) {
    sum.add_(gradients[i].to(sum.device(), /*non_blocking=*/true));
  }
  sum.div_(static_cast<int64_t>(gradients.size()));
  for (const torch::Tensor& gradient : gradients) {
    gradient.copy_(sum, /*non_blocking=*/true);
  }
}

}  // namespace

MirroredReplicas::MirroredReplicas(std::shared_ptr<torch::nn::Module> model,
                                   std::vector<torch::Device> devices)
    : threads_(std::move(devices)) {
  const std::vector<torch::Device>& all = threads_.devices();
  modules_ = clone_to(*model, {all.begin() + 1, all.end()});
  modules_.insert(modules_.begin(), std::move(model));
  for (const auto& replica : modules_) {
    const std::vector<torch::Tensor> parameters = replica->parameters();
    for (size_t p = 0; p < parameters.size(); ++p) {  // clone() loses requires_grad
      parameters[p].set_requires_grad(modules_[0]->parameters()[p].requires_grad());
    }
    flat_.push_back(flatten_parameters(*replica));
    TORCH_CHECK(flat_.back().parameters.size() == flat_[0].parameters.size(),
                "Expected a model without tied parameters, got ", flat_[0].parameters.size(),
                " parameters and a clone with ", flat_.back().parameters.size());
  }
}

Batch MirroredReplicas::share(const Batch& batch, size_t i) const {
  const torch::Device& device = threads_.devices()[i];
  Batch share;
  share.input = rows_of_replica(batch.input, i, size()).to(device, /*non_blocking=*/true);
  share.target = rows_of_replica(batch.target, i, size()).to(device, /*non_blocking=*/true);
  // As in stage 03: 1 if the shares are equal.
  share.weight = batch.weight * static_cast<double>(share.size() * static_cast<int64_t>(size())) /
                 static_cast<double>(batch.size());
  return share;
}

void MirroredReplicas::average_gradients() {
  if (size() == 1) {
    return;
  }
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> gradients;
  for (const FlatParameters& flat : flat_) {
    flat.rebind_grads();
    gradients.push_back(flat.grad);
  }
  if (gradients[0].is_cpu() && gradients[0].scalar_type() == torch::kFloat32) {
    average_on_host(gradients, *this);
  } else if (gradients[0].is_cuda()) {
    cuda_module()->average(gradients);
  } else {
    average_by_copies(gradients);
  }
}

torch::Tensor MirroredReplicas::mean(const std::vector<torch::Tensor>& values) const {
  const torch::NoGradGuard no_grad;
  torch::Tensor sum = values[0].detach().to(torch::kFloat64);
  for (size_t i = 1; i < values.size(); ++i) {
    sum = sum + values[i].to(sum.device());
  }
  return sum.div_(static_cast<int64_t>(values.size()));
}

void MirroredReplicas::expect_same_weights() const {
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

}  // namespace ddp
