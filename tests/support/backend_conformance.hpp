// tests/support/backend_conformance.hpp - a c10d backend's collectives against what they must give,
// and ranks that are threads to run them on.
#pragma once

#include <torch/types.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <functional>
#include <string>

namespace ddp::test {

/// Promises of a backend beside sums, broadcasts and all-gathers of contiguous tensors.
struct Promises {
  bool average = true;  ///< ReduceOp AVG
  bool strided = true;  ///< tensors with gaps
  bool bool_sum = true;  ///< of truth values: "any"
  bool nan = false;  ///< MAX and MIN are NaN if an input is
};

/// Every collective of every type and of odd sizes. Every rank knows what every rank contributes,
/// which differs from rank to rank and from element to element, and computes the results by itself.
class BackendConformance {
 public:
  BackendConformance(c10d::Backend& backend, const Promises& promises);
  /// Collective. @return how many results were compared
  /// @throws c10::Error naming the first that is wrong
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

/// Runs `body` on ranks that are threads and connected by make_backend(name). The first exception
/// of a rank is rethrown when all have ended.
void run_backends(int world_size, const std::string& name,
                  const std::function<void(c10d::Backend& backend)>& body);

}  // namespace ddp::test
