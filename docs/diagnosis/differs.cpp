// docs/diagnosis/differs.cpp - ranks call different collectives: docs/guides/troubleshooting.md.
#include "common/stage.hpp"

namespace {

ddp::ExitCode train(const ddp::Options& options, const ddp::LaunchEnvironment& launch) {
  const torch::Device device = ddp::set_device(options, launch.rank);
  ddp::init_process_group(options, launch, device);
  const torch::Tensor seen = torch::ones({launch.rank == 0 ? 10 : 12}, device);
  if (launch.rank == 0) {
    ddp::broadcast(seen);
  }
  ddp::all_reduce(seen);
  ddp::destroy_process_group();
  return ddp::ExitCode::kDone;
}

}  // namespace

int main(int argc, char** argv) {
  return ddp::spawn(argc, argv, train);
}
