// tests/support/backend_conformance.hpp - checks the collectives of a c10d backend, and runs ranks
// as threads.
#pragma once

#include <torch/types.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <functional>
#include <string>

namespace ddp::test {

/// Promises of a backend, in addition to sums, broadcasts and all-gathers of contiguous tensors.
struct Promises {
  bool average = true;  ///< ReduceOp AVG
  bool strided = true;  ///< tensors with gaps
  bool bool_sum = true;  ///< sum of truth values: "any"
  bool nan = false;  ///< MAX and MIN are NaN if an input is NaN
};

/// Runs every collective with every type and with odd sizes. Every rank knows the inputs of all
/// ranks, which differ between ranks and elements, and computes the results by itself.
class BackendConformance {
 public:
  BackendConformance(c10d::Backend& backend, const Promises& promises);
  /// Collective. @return number of compared results
  /// @throws c10::Error naming the first wrong result
  int run();

 private:
  void sums();
  void rounded_sums();
  void averages();
  void extremes();
  void broadcasts();
  void all_gathers();
  void strided();

  torch::Tensor contribution(int rank, torch::ScalarType dtype, int64_t count) const;
  torch::Tensor sum_of_contributions(torch::ScalarType dtype, int64_t count) const;
  torch::Tensor all_reduce(torch::Tensor tensor,
                           c10d::ReduceOp::RedOpType op = c10d::ReduceOp::SUM);
  torch::Tensor broadcast(torch::Tensor tensor, int root);
  std::vector<torch::Tensor> all_gather(const torch::Tensor& input);
  void expect(const std::string& what, const torch::Tensor& got, const torch::Tensor& expected);

  c10d::Backend& backend_;
  Promises promises_;
  int rank_;
  int world_size_;
  int count_ = 0;
};

/// Runs `body` on ranks, as threads, connected by make_backend(name). Rethrows the first exception
/// of a rank when all ranks have ended.
void run_backends(int world_size, const std::string& name,
                  const std::function<void(c10d::Backend& backend)>& body);

}  // namespace ddp::test
