// bench/peers/reducer.hpp - c10d::Reducer, the engine of Python's DistributedDataParallel, for
// comparison with ours in tests and in bench.
#pragma once

#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <tuple>

#include "common/model/flat_parameters.hpp"
#include "common/parallel/default_group.hpp"

namespace ddp {

/// Wraps the Reducer and its constructor, which changes between releases of LibTorch.
class ReducerPeer {
 public:
  /// Buckets as torch.nn.parallel.DistributedDataParallel makes them: 1 MiB first, then 25 MiB.
  ReducerPeer(const torch::nn::Module& module, const ProcessGroup& process_group,
              bool find_unused_parameters)
      : find_unused_parameters_(find_unused_parameters) {
    constexpr int64_t kFirstBucketBytes = 1024 * 1024;
    constexpr int64_t kBucketBytes = 25 * 1024 * 1024;
    std::vector<torch::Tensor> parameters = trainable_parameters(module);
    std::vector<std::vector<size_t>> buckets = std::get<0>(
        c10d::compute_bucket_assignment_by_size(parameters, {kFirstBucketBytes, kBucketBytes}));
    std::ranges::reverse(buckets);  // backward produces the last gradients first
    std::vector<bool> sparse(parameters.size(), false);
    reducer_ = std::make_unique<c10d::Reducer>(
        std::move(parameters), std::move(buckets), process_group.c10d_group(), std::move(sparse),
        kBucketBytes, find_unused_parameters, /*gradient_as_bucket_view=*/true,
        /*param_names=*/std::unordered_map<size_t, std::string>{}, kFirstBucketBytes,
        /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
        /*bucket_bytes_cap_list=*/std::vector<int64_t>{});
  }

  void before_forward() { reducer_->rebuild_buckets(); }
  /// Call it before a backward that communicates, not if gradients only accumulate.
  void prepare_for_backward(const std::vector<torch::Tensor>& outputs) {
    reducer_->prepare_for_backward(find_unused_parameters_ ? outputs
                                                           : std::vector<torch::Tensor>{});
  }

 private:
  bool find_unused_parameters_;
  std::unique_ptr<c10d::Reducer> reducer_;
};

}  // namespace ddp
