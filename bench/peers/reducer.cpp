#include "bench/peers/reducer.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "common/data/flat_parameters.hpp"

namespace ddp {

ReducerPeer::ReducerPeer(const torch::nn::Module& module, const ProcessGroup& process_group,
                         bool find_unused_parameters)
    : find_unused_parameters_(find_unused_parameters) {
  constexpr int64_t kFirstBucketBytes = 1024 * 1024;
  constexpr int64_t kBucketBytes = 25 * 1024 * 1024;
  std::vector<torch::Tensor> parameters = trainable_parameters(module);
  std::vector<std::vector<size_t>> buckets = std::get<0>(
      c10d::compute_bucket_assignment_by_size(parameters, {kFirstBucketBytes, kBucketBytes}));
  std::reverse(buckets.begin(), buckets.end());  // backward produces the last gradients first
  std::vector<bool> sparse(parameters.size(), false);
  reducer_ = std::make_unique<c10d::Reducer>(
      std::move(parameters), std::move(buckets), process_group.c10d_group(), std::move(sparse),
      kBucketBytes, find_unused_parameters, /*gradient_as_bucket_view=*/true,
      /*param_names=*/std::unordered_map<size_t, std::string>{}, kFirstBucketBytes,
      /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
      /*bucket_bytes_cap_list=*/std::vector<int64_t>{});
}

}  // namespace ddp
