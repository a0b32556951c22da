// tests/backends/backend_conformance.hpp - checks the collectives of a c10d backend.
#pragma once

#include <torch/types.h>

#include <limits>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "common/backends/registry.hpp"

namespace ddp::test {

inline const std::vector<torch::ScalarType> kSummed = {
    torch::kFloat32, torch::kFloat64, torch::kFloat16, torch::kBFloat16,
    torch::kInt32,   torch::kInt64,   torch::kInt8,    torch::kUInt8};
/// Sizes around a cache line and a slot of shared memory; with float32 also more than a mailbox.
inline std::vector<int64_t> counts_of(torch::ScalarType dtype) {
  std::vector<int64_t> counts = {1, 17, 1023, 4097, 70001};
  if (dtype == torch::kFloat32) {
    counts.push_back(1100003);
  }
  return counts;
}

/// Promises of a backend, in addition to sums, broadcasts and all-gathers of contiguous tensors. A
/// new backend must keep all but the last.
struct Promises {
  bool strided = true;  ///< tensors with gaps
  bool bool_sum = true;  ///< sum of truth values: "any"
  bool nan = false;  ///< MAX and MIN are NaN if an input is NaN
};
inline const std::map<std::string, Promises> kOthers = {
    {"gloo", {.strided = false, .bool_sum = false}}, {"shm", {.nan = true}}};

/// What the ranks do together. Every rank knows the inputs of all ranks, which differ between ranks
/// and elements, and computes the results by itself.
struct Conformance {
  c10d::Backend& backend_;
  const Promises& promises_;
  int rank_ = backend_.getRank();
  int world_size_ = backend_.getSize();
  int count_ = 0;

  /// Small whole numbers, so that sums of 8 ranks are exact in every type.
  torch::Tensor contribution(int rank, torch::ScalarType dtype, int64_t count) const {
    const torch::Tensor numbers = (torch::arange(count, torch::kInt64) * 7 + rank * 5) % 13;
    return dtype == torch::kBool ? (numbers % 3).to(dtype) : numbers.to(dtype);
  }

  torch::Tensor sum_of_contributions(torch::ScalarType dtype, int64_t count) const {
    torch::Tensor sum = torch::zeros({count}, torch::kInt64);
    for (int rank = 0; rank < world_size_; ++rank) {
      sum += contribution(rank, dtype, count).to(torch::kInt64);
    }
    return sum.to(dtype);
  }

  void expect(const std::string& what, const torch::Tensor& got, const torch::Tensor& expected) {
    ++count_;
    TORCH_CHECK(got.sizes() == expected.sizes() && got.dtype() == expected.dtype(), what, ": got ",
                got.sizes(), " ", got.dtype());
    TORCH_CHECK(torch::equal(got, expected), what, " of ", got.numel(), " ", got.dtype(),
                " on rank ", rank_, " of ", world_size_, ": ",
                got.ne(expected).sum().item<int64_t>(), " elements are wrong");
  }

  torch::Tensor all_reduce(torch::Tensor tensor,
                           c10d::ReduceOp::RedOpType op = c10d::ReduceOp::SUM) {
    std::vector<torch::Tensor> tensors{std::move(tensor)};
    const auto work = backend_.allreduce(tensors, {.reduceOp = op});
    TORCH_CHECK(work->wait() && work->isCompleted() && work->isSuccess());
    TORCH_CHECK(work->getFuture()->value().toTensorVector().at(0).is_same(tensors[0]));
    return tensors[0];
  }

  torch::Tensor broadcast(torch::Tensor tensor, int root) {
    std::vector<torch::Tensor> tensors{std::move(tensor)};
    backend_.broadcast(tensors, {.rootRank = root})->wait();
    return tensors[0];
  }

  std::vector<torch::Tensor> all_gather(const torch::Tensor& input) {
    std::vector<torch::Tensor> inputs{input};
    std::vector<std::vector<torch::Tensor>> outputs(1);
    for (int r = 0; r < world_size_; ++r) {
      outputs[0].push_back(torch::zeros_like(input));
    }
    backend_.allgather(outputs, inputs)->wait();
    return outputs[0];
  }

  void sums_and_extremes() {
    for (const torch::ScalarType dtype : kSummed) {
      for (const int64_t count : counts_of(dtype)) {
        expect("all_reduce", all_reduce(contribution(rank_, dtype, count)),
               sum_of_contributions(dtype, count));
        std::vector<torch::Tensor> all;
        for (int rank = 0; rank < world_size_; ++rank) {
          all.push_back(contribution(rank, torch::kInt64, count) -
                        (dtype == torch::kUInt8 ? 0 : 6));
        }
        const torch::Tensor own = all[static_cast<size_t>(rank_)].to(dtype);
        expect("maximum", all_reduce(own.clone(), c10d::ReduceOp::MAX),
               torch::stack(all).amax(0).to(dtype));
        expect("minimum", all_reduce(own.clone(), c10d::ReduceOp::MIN),
               torch::stack(all).amin(0).to(dtype));
      }
    }
    if (promises_.bool_sum) {
      expect("any", all_reduce(contribution(rank_, torch::kBool, 1001)),
             sum_of_contributions(torch::kBool, 1001));
    }
    expect("all_reduce of nothing", all_reduce(torch::ones({0})), torch::ones({0}));
    backend_.barrier()->wait();
  }

  /// Checks that results are near the exact sum, with the same bits on every rank and every time.
  void rounded_sums() {
    for (const torch::ScalarType dtype : {torch::kFloat32, torch::kFloat16, torch::kBFloat16}) {
      std::vector<torch::Tensor> inputs;
      for (int r = 0; r < world_size_; ++r) {
        at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(r) + 5);
        inputs.push_back(torch::randn({300007}, generator, torch::kFloat64).to(dtype));
      }
      const torch::Tensor& own = inputs[static_cast<size_t>(rank_)];
      const torch::Tensor sum = all_reduce(own.clone());
      const torch::Tensor exact = torch::stack(inputs).to(torch::kFloat64).sum(0);
      const double unit = dtype == torch::kFloat32 ? 1e-6 : dtype == torch::kFloat16 ? 2e-3 : 2e-2;
      TORCH_CHECK(torch::allclose(sum.to(torch::kFloat64), exact, unit, unit * 4 * world_size_),
                  "the sum of ", dtype, " is far off");
      expect("a repeated sum", all_reduce(own.clone()), sum);
      for (const torch::Tensor& theirs : all_gather(sum)) {
        expect("another rank's sum", theirs, sum);
      }
    }
  }

  void averages() {
    for (const torch::ScalarType dtype :
         {torch::kFloat32, torch::kFloat64, torch::kFloat16, torch::kBFloat16}) {
      for (const int64_t count : counts_of(dtype)) {
        const torch::ScalarType computed = dtype == torch::kFloat64 ? dtype : torch::kFloat32;
        expect("average", all_reduce(contribution(rank_, dtype, count), c10d::ReduceOp::AVG),
               (sum_of_contributions(computed, count) / world_size_).to(dtype));
      }
    }
    // The sum would be infinite, the mean is not.
    expect("average of large halves",
           all_reduce(torch::full({33}, 40000, torch::kFloat16), c10d::ReduceOp::AVG),
           torch::full({33}, 40000, torch::kFloat16));
  }

  void lost_nans() {
    for (const int64_t count : {1, 16, 17, 70001}) {
      for (const auto op : {c10d::ReduceOp::MAX, c10d::ReduceOp::MIN}) {
        torch::Tensor own = torch::zeros({count});
        if (rank_ == count % world_size_) {
          own.fill_(std::numeric_limits<float>::quiet_NaN());
        }
        TORCH_CHECK(all_reduce(own, op).isnan().all().item<bool>(), "a rank's NaN is lost");
      }
    }
  }

  void moves() {
    std::vector<torch::ScalarType> moved = kSummed;
    moved.push_back(torch::kBool);
    for (const torch::ScalarType dtype : moved) {
      for (const int64_t count : counts_of(dtype)) {
        const int root = static_cast<int>(count % world_size_);
        expect("broadcast", broadcast(contribution(rank_, dtype, count), root),
               contribution(root, dtype, count));
        const std::vector<torch::Tensor> all = all_gather(contribution(rank_, dtype, count));
        for (int r = 0; r < world_size_; ++r) {
          expect("all_gather", all[static_cast<size_t>(r)], contribution(r, dtype, count));
        }
      }
    }
  }

  /// Checks that tensors with gaps are reduced in place, and that the gaps do not change.
  void strided() {
    const torch::Tensor rows = torch::arange(3000).view({60, 50});
    expect("transposed all_reduce", all_reduce(rows.clone().t()), rows.t() * world_size_);
    const torch::Tensor whole = torch::zeros({100, 3});
    all_reduce(whole.select(1, 1).fill_(1));
    expect("all_reduce of a column", whole.sum(0),
           torch::tensor({0.0F, 100.0F * static_cast<float>(world_size_), 0.0F}));
    expect("transposed broadcast", broadcast((rows * (rank_ + 1)).t(), world_size_ - 1),
           (rows * world_size_).t());
    const torch::Tensor last = all_gather((rows * (rank_ + 1)).t()).back();
    expect("transposed all_gather", last, (rows * world_size_).t());
  }
};

/// Collective. Runs every collective with every type and with odd sizes, and checks what this
/// backend promises beyond that.
/// @return number of compared results
/// @throws c10::Error naming the first wrong result
inline int check_collectives(c10d::Backend& backend) {
  const std::string name = backend.getBackendName();
  const Promises promises = kOthers.contains(name) ? kOthers.at(name) : Promises();
  Conformance all{backend, promises};
  all.sums_and_extremes();
  all.rounded_sums();
  all.moves();
  if (promises.nan) {
    all.lost_nans();
  }
  if (traits_of(name).has_average) {
    all.averages();
  }
  if (promises.strided) {
    all.strided();
  }
  return all.count_;
}

}  // namespace ddp::test
