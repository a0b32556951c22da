// libddp_cuda.so: the only source that sees NCCL's headers, and the module's table.
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <torch/csrc/distributed/c10d/NCCLUtils.hpp>

#include <string>

#include "common/backends/cuda_module.hpp"

namespace ddp {
namespace {

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    const BackendOptions& options) {
  const auto nccl_options = c10d::ProcessGroupNCCL::Options::create();
  nccl_options->timeout = options.timeout;
  const auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(
      store, options.rank, options.world_size, nccl_options);
  // Bound to its device: barriers and lazy initialisation never have to guess one.
  backend->setBoundDeviceId(options.device);
  backend->eagerConnectSingleDevice(options.device);
  return backend;
}

const char* nccl_version() {
  static const std::string version = c10d::getNcclVersion();
  return version.c_str();
}

}  // namespace
}  // namespace ddp

extern "C" const ddp::CudaModule* ddp_cuda_module() {
  static const ddp::CudaModule module{.make_nccl_backend = ddp::make_nccl_backend,
                                      .nccl_version = ddp::nccl_version,
                                      .make_graph_stream = ddp::make_graph_stream};
  return &module;
}
