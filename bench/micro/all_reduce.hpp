// bench/micro/all_reduce.hpp - sums over the ranks, alone and as a training step makes them.
#pragma once

#include <torch/types.h>

#include <vector>

#include "bench/micro/exercise.hpp"
#include "common/parallel/process_group.hpp"

namespace ddp::micro {

/// Starts one all-reduce per bucket, then waits for all.
///
/// Note [As in a step]: before every run the data is written anew, because on warm, untouched
/// buffers a backend that shares memory looks several times faster than it is in a training step.
/// And every rank computes for a while, because by the time that a step's gradients are there,
/// threads that communicate have gone to sleep and caches hold other things.
class AllReduce : public Exercise {
 public:
  /// @param group must outlive this object
  /// @param bucket_bytes of fp32 values, which lie one behind the other
  AllReduce(const ProcessGroup& group, const std::vector<std::int64_t>& bucket_bytes);

  std::string verify() override;
  void prepare(std::int64_t iteration) override;
  void run() override;
  std::string check() override;
  void report(const Series& series, benchmark::UserCounters& counters) const override;

 private:
  std::string compare(const torch::Tensor& expected) const;

  const ProcessGroup& group_;
  torch::Tensor values_;  // (total) float32: all buckets
  std::vector<torch::Tensor> buckets_;  // views of it
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
  double last_value_ = 0;  // that every rank put into every element
  torch::Tensor factor_;  // what is computed with in between
  torch::Tensor product_;
};

}  // namespace ddp::micro
