// docs/diagnosis/hangs.cpp - a program that hangs: docs/guides/troubleshooting.md finds the line.
#include "common/stage.hpp"

namespace {

ddp::ExitCode train(const ddp::Options& options, const ddp::LaunchEnvironment& launch) {
  const torch::Device device = ddp::set_device(options, launch.rank);
  ddp::init_process_group(options, launch, device);
  torch::Tensor loss = torch::full({1}, launch.rank + 1.0, device);
  ddp::all_reduce(loss);
  if (launch.rank == 0) {
    ddp::all_reduce(loss.div_(launch.world_size));
  }
  ddp::destroy_process_group();
  return ddp::ExitCode::kDone;
}

}  // namespace

int main(int argc, char** argv) {
  return ddp::spawn(argc, argv, train);
}
