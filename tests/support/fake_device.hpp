// tests/support/fake_device.hpp - several devices with asynchronous streams, on a host without any.
#pragma once

#include <torch/types.h>

#include <cstddef>

namespace ddp::test {

/// Note [The fake device]: LibTorch keeps one device type for backends that it does not know,
/// PrivateUse1. Here it is four devices whose memory is the host's and whose kernels are the CPU's,
/// so that results have the CPU's bits. What is like CUDA is when things happen:
/// - An operator returns at once. It is run when somebody waits for its stream, and by then host
///   memory that it was to read or write may have changed.
/// - Streams know nothing of each other but what events tell them; copies between devices go as
///   LibTorch's for CUDA do, on the source's stream, with events on both sides.
/// - A copy to or from pinned memory need not be over when a call with non_blocking returns; one
///   of pageable memory is over, or has been set aside.
/// - Memory is not zero when it is allocated, and what has been freed is overwritten in the order
///   of the stream that it was allocated on. Both are NaN.
/// - Every thread has a current device and current streams; an operator's tensors must be on one
///   device.
/// A GPU does all this most of the time in a harmless order. This one takes the worst, and always
/// the same. It cannot see host code that reads device memory without an operator.
constexpr int kFakeDevices = 4;

torch::Device fake_device(int index);

/// Order in which streams run when one is waited for. What one order hides, the other shows:
/// something done too late, or too early.
enum class StreamOrder {
  kOthersLast,  ///< only it, and what its events wait for
  kOthersFirst,  ///< before it all others, as far as events let them
};
void set_stream_order(StreamOrder order);

/// Free memory that devices report; 0 at first, so that no samples stay there.
void set_free_memory(size_t bytes);

}  // namespace ddp::test
