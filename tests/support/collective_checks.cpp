#include "tests/support/collective_checks.hpp"

#include <cmath>
#include <functional>
#include <limits>
#include <set>

namespace ddp::test {
namespace {

using Operation = c10d::ReduceOp::RedOpType;

const std::vector<torch::ScalarType> kTypes = {torch::kFloat32,  torch::kFloat64, torch::kFloat16,
                                               torch::kBFloat16, torch::kInt32,   torch::kInt64,
                                               torch::kInt8,     torch::kUInt8,   torch::kBool};

/// -2 to 2 (0 to 2 if unsigned): sums and products of 8 ranks are exact in every type and order.
torch::Tensor contribution(int rank, torch::ScalarType dtype, int64_t count) {
  at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(rank) + 11);
  const bool is_unsigned = dtype == torch::kUInt8 || dtype == torch::kBool;
  return torch::randint(is_unsigned ? 0 : -2, 3, {count}, generator, torch::kInt64).to(dtype);
}

torch::Tensor reduced(const std::vector<torch::Tensor>& inputs, Operation operation) {
  const torch::ScalarType dtype = inputs[0].scalar_type();
  if (dtype == torch::kBool) {
    const torch::Tensor all = torch::stack(inputs);
    const bool any = operation == c10d::ReduceOp::SUM || operation == c10d::ReduceOp::MAX;
    return any ? all.any(0) : all.all(0);
  }
  const bool is_floating = torch::isFloatingType(dtype);
  const torch::Tensor all = torch::stack(inputs).to(is_floating ? torch::kFloat64 : torch::kInt64);
  switch (operation) {
    case c10d::ReduceOp::SUM:
      return all.sum(0).to(dtype);
    case c10d::ReduceOp::AVG:
      return (all.sum(0) / static_cast<double>(inputs.size())).to(dtype);
    case c10d::ReduceOp::PRODUCT:
      return all.prod(0).to(dtype);
    case c10d::ReduceOp::MIN:
      return std::get<0>(all.min(0)).to(dtype);
    default:
      return std::get<0>(all.max(0)).to(dtype);
  }
}

class Checks {
 public:
  explicit Checks(c10d::Backend& backend)
      : backend_(backend), rank_(backend.getRank()), world_size_(backend.getSize()) {}

  int count() const { return count_; }

  void expect(const std::string& what, const torch::Tensor& got, const torch::Tensor& expected) {
    ++count_;
    TORCH_CHECK(got.sizes() == expected.sizes() && got.dtype() == expected.dtype(), what, ": got ",
                got.sizes(), " ", got.dtype());
    const torch::Tensor equal =
        got.eq(expected).logical_or(got.ne(got).logical_and(expected.ne(expected)));
    TORCH_CHECK(equal.all().item<bool>(), what, " on rank ", rank_, " of ", world_size_, ": ",
                equal.logical_not().sum().item<int64_t>(), " of ", got.numel(),
                " elements are wrong");
  }

  torch::Tensor all_reduce(torch::Tensor tensor, Operation operation) {
    std::vector<torch::Tensor> tensors{std::move(tensor)};
    c10d::AllreduceOptions options;
    options.reduceOp = operation;
    const auto work = backend_.allreduce(tensors, options);
    TORCH_CHECK(work->wait() && work->isCompleted() && work->isSuccess());
    TORCH_CHECK(work->getFuture()->value().toTensorVector().at(0).is_same(tensors[0]));
    TORCH_CHECK(work->result().at(0).is_same(tensors[0]));
    return tensors[0];
  }

  std::vector<torch::Tensor> of_all(const std::function<torch::Tensor(int)>& of) const {
    std::vector<torch::Tensor> all;
    for (int r = 0; r < world_size_; ++r) {
      all.push_back(of(r));
    }
    return all;
  }

  /// The first rank and the last.
  std::set<int> ends() const { return {0, world_size_ - 1}; }

  void reductions() {
    for (const torch::ScalarType dtype : kTypes) {
      for (const Operation operation :
           {c10d::ReduceOp::SUM, c10d::ReduceOp::PRODUCT, c10d::ReduceOp::MIN, c10d::ReduceOp::MAX,
            c10d::ReduceOp::AVG}) {
        if (operation == c10d::ReduceOp::AVG && !torch::isFloatingType(dtype)) {
          continue;
        }
        for (const int64_t count : {1, 17, 4097, 70001}) {
          const auto inputs = of_all([&](int r) { return contribution(r, dtype, count); });
          std::ostringstream what;
          what << "all_reduce " << static_cast<int>(operation) << " of " << count << " " << dtype;
          expect(what.str(), all_reduce(inputs[static_cast<size_t>(rank_)].clone(), operation),
                 reduced(inputs, operation));
        }
      }
    }
    expect("all_reduce of nothing", all_reduce(torch::ones({0}), c10d::ReduceOp::SUM),
           torch::ones({0}));
    // What is not contiguous is reduced where it is.
    const torch::Tensor rows = torch::arange(3000).view({60, 50});
    expect("transposed all_reduce", all_reduce(rows.clone().t(), c10d::ReduceOp::SUM),
           rows.t() * world_size_);
    const torch::Tensor whole = torch::zeros({100, 3});
    all_reduce(whole.select(1, 1).fill_(1), c10d::ReduceOp::SUM);
    expect("all_reduce of a column", whole.sum(0),
           torch::tensor({0.0F, 100.0F * static_cast<float>(world_size_), 0.0F}));
  }

  /// Sums that are rounded: near the exact one, and the same bits everywhere and every time.
  void rounded_sums() {
    for (const torch::ScalarType dtype : {torch::kFloat32, torch::kFloat16, torch::kBFloat16}) {
      const auto inputs = of_all([&](int r) {
        at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(r) + 5);
        return torch::randn({300007}, generator, torch::kFloat64).to(dtype);
      });
      const torch::Tensor& own = inputs[static_cast<size_t>(rank_)];
      const torch::Tensor sum = all_reduce(own.clone(), c10d::ReduceOp::SUM);
      const torch::Tensor exact = torch::stack(inputs).to(torch::kFloat64).sum(0);
      const double unit = dtype == torch::kFloat32 ? 1e-6 : dtype == torch::kFloat16 ? 2e-3 : 2e-2;
      TORCH_CHECK(torch::allclose(sum.to(torch::kFloat64), exact, unit, unit * 4 * world_size_),
                  "the sum of ", dtype, " is far off");
      expect("a repeated sum", all_reduce(own.clone(), c10d::ReduceOp::SUM), sum);
      for (const torch::Tensor& theirs : gathered(sum)) {
        expect("another rank's sum", theirs, sum);
      }
    }
  }

  /// As in LibTorch, whichever rank has it.
  void not_a_number() {
    for (const torch::ScalarType dtype :
         {torch::kFloat32, torch::kFloat64, torch::kFloat16, torch::kBFloat16}) {
      for (const int owner : ends()) {
        const auto inputs = of_all([&](int r) {
          torch::Tensor tensor = contribution(r, dtype, 33);
          if (r == owner) {
            tensor[7] = std::numeric_limits<double>::quiet_NaN();
          }
          return tensor;
        });
        for (const Operation operation : {c10d::ReduceOp::MIN, c10d::ReduceOp::MAX}) {
          const torch::Tensor result =
              all_reduce(inputs[static_cast<size_t>(rank_)].clone(), operation);
          expect("extremes with NaN", result, reduced(inputs, operation));
          TORCH_CHECK(std::isnan(result[7].item<double>()));
        }
      }
    }
  }

  std::vector<torch::Tensor> gathered(const torch::Tensor& input) {
    std::vector<torch::Tensor> inputs{input};
    std::vector<std::vector<torch::Tensor>> outputs{
        of_all([&](int) { return torch::full_like(input, 1); })};
    backend_.allgather(outputs, inputs)->wait();
    return outputs[0];
  }

  void copies() {
    for (const torch::ScalarType dtype :
         {torch::kFloat32, torch::kInt16, torch::kComplexDouble, torch::kBool}) {
      for (const int64_t count : {1, 5, 100003}) {
        const auto of = [&](int r) { return contribution(r, torch::kInt64, count).to(dtype); };
        for (const int root : ends()) {
          std::vector<torch::Tensor> tensors{of(rank_)};
          backend_.broadcast(tensors, {.rootRank = root})->wait();
          expect("broadcast", tensors[0], of(root));

          std::vector<torch::Tensor> input{of(rank_)};
          std::vector<std::vector<torch::Tensor>> outputs;
          if (rank_ == root) {
            outputs.push_back(of_all([&](int) {
              return torch::zeros({count, 2}, dtype).select(1, 0);
            }));
          }
          backend_.gather(outputs, input, {.rootRank = root})->wait();
          for (int r = 0; r < (rank_ == root ? world_size_ : 0); ++r) {
            expect("gather", outputs[0][static_cast<size_t>(r)], of(r));
          }
        }
        const std::vector<torch::Tensor> all = gathered(of(rank_));
        for (int r = 0; r < world_size_; ++r) {
          expect("all_gather", all[static_cast<size_t>(r)], of(r));
        }
      }
    }
    // More than what a buffer holds, and a transposed place for it.
    const auto large = [](int r) {
      return torch::arange(5 << 20, torch::kInt32).view({5, 1 << 20}) * (r + 1);
    };
    expect("large all_gather", gathered(large(rank_)).back(), large(world_size_ - 1));
    std::vector<torch::Tensor> transposed{large(rank_).t()};
    backend_.broadcast(transposed, {.rootRank = world_size_ - 1})->wait();
    expect("transposed broadcast", transposed[0], large(world_size_ - 1).t());
  }

  void scatters() {
    for (const torch::ScalarType dtype : {torch::kFloat32, torch::kBFloat16, torch::kInt64}) {
      for (const int64_t count : {1, 19, 300001}) {
        const auto whole =
            of_all([&](int r) { return contribution(r, dtype, count * world_size_); });
        torch::Tensor part = torch::empty({count}, dtype);
        torch::Tensor own = whole[static_cast<size_t>(rank_)];
        c10d::ReduceScatterOptions options;
        backend_._reduce_scatter_base(part, own, options)->wait();
        expect("reduce_scatter", part,
               reduced(whole, c10d::ReduceOp::SUM).narrow(0, rank_ * count, count));
        torch::Tensor together = torch::empty({count * world_size_}, dtype);
        backend_._allgather_base(together, part)->wait();
        expect("what was scattered, gathered", together, reduced(whole, c10d::ReduceOp::SUM));
      }
    }
    backend_.barrier()->wait();
  }

 private:
  c10d::Backend& backend_;
  int rank_;
  int world_size_;
  int count_ = 0;
};

}  // namespace

int check_collectives(c10d::Backend& backend) {
  Checks checks(backend);
  checks.reductions();
  checks.rounded_sums();
  checks.not_a_number();
  checks.copies();
  checks.scatters();
  return checks.count();
}

}  // namespace ddp::test
