#include "common/parallel/same_weights.hpp"

#include <string>

#include "common/base/exit_codes.hpp"
#include "common/model/flat_parameters.hpp"

namespace ddp {

void expect_same_weights(const torch::nn::Module& module, const CallSite& site) {
  const ProcessGroup& process_group = default_process_group();
  if (!process_group.all_reduces()) {
    return;
  }
  const auto half_of = [hash = parameter_hash(module)](size_t begin) {
    return static_cast<int64_t>(std::stoull(hash.substr(begin, 16), nullptr, 16));
  };
  const torch::Tensor own = torch::tensor({half_of(0), half_of(16)}, torch::kInt64);
  const torch::Tensor of_ranks =
      process_group.all_gather(own.to(process_group.device()), site.in("expect_same_weights"))
          .to(torch::kCPU);
  const auto digest = [&of_ranks](int rank) {
    return fmt::format("{:016x}", static_cast<uint64_t>(of_ranks[rank][0].item<int64_t>()));
  };
  std::string others;
  for (int rank = 1; rank < process_group.world_size(); ++rank) {
    if (!of_ranks[rank].equal(of_ranks[0])) {
      others +=
          fmt::format("{}rank {} has digest {}", others.empty() ? "" : ", ", rank, digest(rank));
    }
  }
  if (!others.empty()) {
    throw Error(ExitCode::kTrainingFailed,
                fmt::format("the weights differ: {}, expected rank 0's {}", others, digest(0)));
  }
}

}  // namespace ddp
