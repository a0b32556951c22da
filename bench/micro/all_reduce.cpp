#include "bench/micro/all_reduce.hpp"

#include <numeric>

#include "bench/micro/options.hpp"
#include "bench/report/statistics.hpp"

namespace ddp::micro {
namespace {

class AllReduce {
 public:
  AllReduce(const ProcessGroup& group, const std::vector<std::int64_t>& bucket_bytes)
      : group_(group) {
    const std::int64_t total =
        std::accumulate(bucket_bytes.begin(), bucket_bytes.end(), std::int64_t{0});
    values_ = group.allocate(total / kFloatBytes, torch::kFloat32);
    std::int64_t begin = 0;
    for (const std::int64_t bytes : bucket_bytes) {
      buckets_.push_back(values_.narrow(0, begin, bytes / kFloatBytes));
      begin += bytes / kFloatBytes;
    }
    works_.resize(buckets_.size());
    constexpr std::int64_t kSize = 160;  // about a tenth of a millisecond on one core
    factor_ = torch::ones({kSize, kSize}, values_.options());
    product_ = torch::empty_like(factor_);
  }

  /// Small whole numbers that differ from element to element and from rank to rank: their sum is
  /// exact, in any order, and no two mistakes look alike.
  std::string verify() {
    constexpr std::int64_t kPattern = 61;
    constexpr int kOffsets = 8;
    const auto offset = [](int rank) { return rank % kOffsets + 1; };
    const torch::Tensor pattern = torch::arange(kPattern, values_.options())
                                      .repeat({values_.size(0) / kPattern + 1})
                                      .narrow(0, 0, values_.size(0));
    torch::add_out(values_, pattern, torch::full({}, offset(group_.rank()), values_.options()));
    run();
    double offsets = 0;
    for (int rank = 0; rank < group_.world_size(); ++rank) {
      offsets += offset(rank);
    }
    return compare(pattern.mul(group_.world_size()).add(offsets));
  }

  void prepare(std::int64_t iteration) {
    constexpr std::int64_t kValues = 8;  // so that the result of the run before is no result now
    last_value_ = static_cast<double>(iteration % kValues + 1);
    values_.fill_(last_value_);
    at::mm_out(product_, factor_, factor_);
  }

  void run() {
    for (size_t i = 0; i < buckets_.size(); ++i) {
      works_[i] = group_.start_all_reduce(buckets_[i]);
    }
    for (const auto& work : works_) {
      group_.wait(work);
    }
  }

  std::string check() const {
    return compare(torch::full_like(values_, last_value_ * group_.world_size()));
  }

  void report(const Series& series, benchmark::UserCounters& counters) const {
    const auto bytes = static_cast<double>(values_.nbytes());
    const double ranks = group_.world_size();
    const double seconds = bench::median(series.slowest()).value_or(0);
    counters["bytes"] = bytes;
    counters["buckets"] = static_cast<double>(buckets_.size());
    counters["algorithm_bandwidth"] = bytes / seconds;
    // What each rank must send and receive at least, whatever the algorithm.
    counters["bus_bandwidth"] = bytes / seconds * 2 * (ranks - 1) / ranks;
  }

 private:
  std::string compare(const torch::Tensor& expected) const {
    if (torch::equal(values_, expected)) {  // false for what is not a number
      return "";
    }
    const std::int64_t index = values_.ne(expected).nonzero()[0].item<std::int64_t>();
    return c10::str("the ", group_.backend_name(), " all-reduce of ", values_.nbytes(),
                    " bytes is wrong: element ", index, " is ", values_[index].item<float>(),
                    ", expected ", expected[index].item<float>());
  }

  const ProcessGroup& group_;
  torch::Tensor values_;  // (total) float32: all buckets
  std::vector<torch::Tensor> buckets_;  // views of it
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
  double last_value_ = 0;  // that every rank put into every element
  torch::Tensor factor_;  // what is computed with in between
  torch::Tensor product_;
};

}  // namespace

Exercise all_reduce(const ProcessGroup& group, const std::vector<std::int64_t>& bucket_bytes) {
  const auto sums = std::make_shared<AllReduce>(group, bucket_bytes);
  return {.run = [sums] { sums->run(); },
          .report = [sums](const Series& series,
                           benchmark::UserCounters& counters) { sums->report(series, counters); },
          .prepare = [sums](std::int64_t iteration) { sums->prepare(iteration); },
          .verify = [sums] { return sums->verify(); },
          .check = [sums] { return sums->check(); }};
}

}  // namespace ddp::micro
