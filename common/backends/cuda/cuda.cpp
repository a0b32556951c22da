// libddp_cuda.so: NCCL's backend, and NCCL within one process, CUDA Graphs, and the module's table.
// Streams, events and guards are c10's for any device: c10's CUDA classes call the CUDA runtime
// inline, so the module would have to link it.
#include <torch/csrc/cuda/nccl.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <torch/headeronly/version.h>

#include <cstdlib>
#include <exception>
#include <type_traits>

// LibTorch's own "nccl" is a new class since 2.15.
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15
#include <torch/csrc/distributed/c10d/nccl2/ProcessGroupNCCL.hpp>
#define DDP_NCCL c10d::nccl2::ProcessGroupNCCL
#else
#define DDP_NCCL c10d::ProcessGroupNCCL
#endif

#include "common/backends/cuda_module.hpp"
#include "common/device/device.hpp"

namespace ddp {
namespace {

/// Lets the new class's watchdog end the process with a line of explanation. The old class's
/// watchdog throws in its thread, which has that effect already.
template <typename Backend>
void say_why_watchdog_ends(Backend& backend) {
  if constexpr (!std::is_same_v<Backend, c10d::ProcessGroupNCCL>) {
    backend.registerAbortHook(/*hook_id=*/0, [] {
      try {
        throw std::runtime_error(kNcclWatchdog);
      } catch (...) {
        std::terminate();  // its handler prints the current exception
      }
    });
  }
}

class CudaGraphStream : public GraphStream {
 public:
  explicit CudaGraphStream(const torch::Device& device)
      : device_(device),
        stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index()).unwrap()) {}

  void run(c10::function_ref<void()> work) override {
    const c10::Stream outer = current_stream(device_);
    follow(stream_, outer);
    {
      const c10::StreamGuard guard(stream_);
      work();
    }
    follow(outer, stream_);
  }

  std::function<void()> capture(c10::function_ref<void()> work) override {
    const auto graph = std::make_shared<at::cuda::CUDAGraph>();
    synchronize(device_);
    const c10::StreamGuard guard(stream_);
    // Thread-local, because NCCL's watchdog queries its events in another thread meanwhile.
    graph->capture_begin(/*pool=*/{0, 0}, cudaStreamCaptureModeThreadLocal);
    try {
      work();
    } catch (...) {
      // While the stream captures, destructors that call CUDA would fail.
      try {
        graph->capture_end();
      } catch (const std::exception&) {
      }
      throw;
    }
    graph->capture_end();
    return [graph] { graph->replay(); };
  }

 private:
  static void follow(const c10::Stream& later, const c10::Stream& earlier) {
    c10::Event event(later.device_type());
    event.record(earlier);
    event.block(later);
  }

  torch::Device device_;
  c10::Stream stream_;
};

std::unique_ptr<GraphStream> make_graph_stream(const torch::Device& device) {
  return std::make_unique<CudaGraphStream>(device);
}

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    const BackendOptions& options) {
  // When a collective does not end in time, NCCL's watchdog throws at once: it does not wait a
  // minute for dumps, and no monitor aborts the process. The user's settings have precedence.
  for (const char* const variable :
       {"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "TORCH_NCCL_DUMP_ON_TIMEOUT",
        "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_ENABLE_MONITORING"}) {
    setenv(variable, "0", /*overwrite=*/0);
  }
  const auto nccl_options = c10d::ProcessGroupNCCL::Options::create();
  nccl_options->timeout = options.timeout;
  auto backend =
      c10::make_intrusive<DDP_NCCL>(store, options.rank, options.world_size, nccl_options);
  say_why_watchdog_ends(*backend);
  // Bound to its device, so that barriers and lazy initialisation do not guess a device.
  backend->setBoundDeviceId(options.device);
  backend->eagerConnectSingleDevice(options.device);
  return backend;
}

void average(const std::vector<torch::Tensor>& tensors) {
  std::vector<torch::Tensor> outputs = tensors;
  torch::cuda::nccl::all_reduce(tensors, outputs, ncclAvg);
}

}  // namespace
}  // namespace ddp

extern "C" const ddp::CudaModule* ddp_module() {
  static const ddp::CudaModule module{.make_nccl_backend = ddp::make_nccl_backend,
                                      .make_graph_stream = ddp::make_graph_stream,
                                      .average = ddp::average};
  return &module;
}
