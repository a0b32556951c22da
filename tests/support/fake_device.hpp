// tests/support/fake_device.hpp - devices with asynchronous streams, on a host without GPUs.
#pragma once

#include <torch/types.h>

#include <cstddef>

namespace ddp::test {

/// Note [The fake device]: LibTorch has a device type for unknown backends, PrivateUse1. Here it
/// has four devices with the host's memory and the CPU's kernels, so that results have the CPU's
/// bits. Only the order of events is like CUDA's:
/// - An operator returns at once. It runs when the host or a stream waits for its stream. By then
///   host memory that it reads or writes may have changed.
/// - Streams are independent apart from events. Copies between devices run like LibTorch's copies
///   for CUDA, on the source's stream, with events on both sides.
/// - A copy to or from pinned memory may still run when a call with non_blocking returns. A copy of
///   pageable memory has ended, or its data was set aside.
/// - New memory is not zero, and freed memory is overwritten in the order of its allocation's
///   stream. Both hold NaN.
/// - Every thread has a current device and current streams. An operator's tensors must be on the
///   same device.
/// A GPU usually runs all this in a harmless order. The fake device always takes the worst order.
/// It cannot see host code that reads device memory without an operator.
constexpr int kFakeDevices = 4;

torch::Device fake_device(int index);

/// Order in which streams run when the host waits for a stream. One order shows work that is done
/// too late, the other shows work that is done too early.
enum class StreamOrder {
  kOthersLast,  ///< only this stream, and work that its events wait for
  kOthersFirst,  ///< first all other streams, as far as events allow
};
void set_stream_order(StreamOrder order);

/// Sets the free memory that devices report; 0 at first, so that they do not keep samples.
void set_free_memory(size_t bytes);

}  // namespace ddp::test
