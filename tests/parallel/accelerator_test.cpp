// The accelerator's own part, on several ranks.
#include "common/parallel/accelerator.hpp"

#include "common/base/exit_codes.hpp"
#include "common/base/files.hpp"
#include "common/model/mlp.hpp"
#include "tests/catch.hpp"
#include "tests/support/threads_as_ranks.hpp"

namespace {

using ddp::Accelerator;

/// Runs ranks as threads, each with an accelerator.
void accelerate(int world_size, const std::function<void(const Accelerator&)>& body) {
  const ddp::ScratchFolder folder("ddp-accelerator");
  const ddp::StoreLocation store{.kind = ddp::StoreLocation::Kind::kFile,
                                 .host = "",
                                 .port = 0,
                                 .file = folder.path() + "/store",
                                 .prefix = ""};
  ddp::test::run_threads(world_size, [&](int rank) {
    ddp::Options options;  // must outlive the accelerator
    options.program = "accelerator_test";
    options.device = "cpu";
    options.timeout_seconds = 30;
    const Accelerator accelerator(options, ddp::test::rank_of(rank, world_size, store));
    body(accelerator);
  });
  SUCCEED("no rank threw");
}

}  // namespace

TEST_CASE("reduce_mean() leaves its argument, other weights are found", "[accelerator]") {
  accelerate(3, [](const Accelerator& accelerator) {
    const int rank = ddp::default_process_group().rank();
    const torch::Tensor own = torch::tensor({1.0 * rank, 10.0 * rank}).set_requires_grad(true);
    TORCH_CHECK(accelerator.reduce_mean(own).equal(torch::tensor({1.0, 10.0})));
    TORCH_CHECK(own[1].item<double>() == 10.0 * rank);
    TORCH_CHECK(accelerator.is_main_process() == (rank == 0));
    const ddp::Mlp model(std::vector<int64_t>{2, 1});
    for (const torch::Tensor& parameter : model->parameters()) {
      parameter.detach().fill_(rank == 2 ? 1 : 0);
    }
    try {
      accelerator.end_training(*model);
      TORCH_CHECK(false, "expected an error");
    } catch (const ddp::Error& error) {
      TORCH_CHECK(ddp::test::contains(error.what(), "rank 2 has digest"), error.what());
    }
  });
}
