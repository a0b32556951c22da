// Part of libddp_cuda.so. Streams, events and guards are c10's for any device: those for CUDA alone
// call the CUDA runtime inline, with which the module would have to be linked.
#include "common/backends/cuda/cuda_graph.hpp"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/cuda/CUDAStream.h>

namespace ddp {
namespace {

class CudaGraphWork : public CapturedWork {
 public:
  void replay() override { graph_.replay(); }
  at::cuda::CUDAGraph& graph() { return graph_; }

 private:
  at::cuda::CUDAGraph graph_;
};

class CudaGraphStream : public GraphStream {
 public:
  explicit CudaGraphStream(const torch::Device& device)
      : device_(device),
        impl_(device.type()),
        stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index()).unwrap()) {}

  void run(c10::function_ref<void()> work) override {
    const c10::Stream outer = impl_.getStream(device_);
    follow(stream_, outer);
    {
      const c10::StreamGuard guard(stream_);
      work();
    }
    follow(outer, stream_);
  }

  std::unique_ptr<CapturedWork> capture(c10::function_ref<void()> work) override {
    auto captured = std::make_unique<CudaGraphWork>();
    impl_.synchronizeDevice(device_.index());
    const c10::StreamGuard guard(stream_);
    // Thread-local: NCCL's watchdog looks at its events in another thread meanwhile.
    captured->graph().capture_begin(/*pool=*/{0, 0}, cudaStreamCaptureModeThreadLocal);
    work();
    captured->graph().capture_end();
    return captured;
  }

 private:
  static void follow(const c10::Stream& later, const c10::Stream& earlier) {
    c10::Event event(later.device_type());
    event.record(earlier);
    event.block(later);
  }

  torch::Device device_;
  c10::impl::VirtualGuardImpl impl_;
  c10::Stream stream_;
};

}  // namespace

std::unique_ptr<GraphStream> make_graph_stream(const torch::Device& device) {
  return std::make_unique<CudaGraphStream>(device);
}

}  // namespace ddp
