// tests/support/fake_device.hpp - devices with asynchronous streams, on a host without GPUs. One
// source of a program includes this file, which registers the devices with LibTorch.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

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
constexpr auto kFakeType = c10::DeviceType::PrivateUse1;

inline torch::Device fake_device(int index) {
  return {kFakeType, static_cast<c10::DeviceIndex>(index)};
}

/// Another stream of `device`.
inline c10::Stream new_stream(const torch::Device& device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

/// Order in which streams run when the host waits for a stream. One order shows work that is done
/// too late, the other shows work that is done too early.
enum class StreamOrder {
  kOthersLast,  ///< only this stream, and work that its events wait for
  kOthersFirst,  ///< first all other streams, as far as events allow
};
inline std::atomic<StreamOrder> stream_order = StreamOrder::kOthersLast;

/// Free memory that devices report, in bytes; 0 at first, so that they do not keep samples.
inline std::atomic<size_t> free_device_memory = 0;

namespace {

/// Moment of a stream, for events.
struct Moment {
  c10::Stream stream;
  std::atomic<bool> is_reached = false;
};
using Event = std::shared_ptr<Moment>;

/// All streams of all devices. They run on the thread that waits.
class Streams {
 public:
  /// @param waits_for moment until which the stream waits; none: it goes on
  void enqueue(const c10::Stream& stream, std::function<void()> run, Event waits_for = nullptr) {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    queues_[stream].push_back({std::move(run), std::move(waits_for)});
  }
  Event record(const c10::Stream& stream) {
    const Event moment(new Moment{stream});
    enqueue(stream, [moment] { moment->is_reached = true; });
    return moment;
  }
  void wait(const c10::Stream& stream, Event moment) {
    enqueue(
        stream, [] {}, std::move(moment));
  }
  /// Lets the host wait. @throws the exception of an operator, because a GPU's errors come late
  void synchronize(const Event& moment) {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    if (!moment->is_reached) {
      run_others(moment->stream);
      run_until(*moment);
    }
  }
  void synchronize_device(c10::DeviceIndex index) {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    // queues_ may grow meanwhile, but a map keeps iterators valid.
    for (const auto& [stream, queue] : queues_) {
      if (stream.device_index() == index) {
        synchronize(record(stream));
      }
    }
  }

 private:
  struct Operation {
    std::function<void()> run;
    Event waits_for;
    bool is_ready() const { return waits_for == nullptr || waits_for->is_reached; }
  };
  using Queue = std::deque<Operation>;

  static void run_first(Queue& queue) {
    const Operation operation = std::move(queue.front());
    queue.pop_front();
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    operation.run();
  }
  /// Ends, because a moment is recorded before anything can wait for it.
  void run_until(const Moment& moment) {
    for (Queue& queue = queues_[moment.stream]; !moment.is_reached; run_first(queue)) {
      if (!queue.front().is_ready()) {
        run_until(*queue.front().waits_for);
      }
    }
  }
  void run_others(const c10::Stream& stream) {
    for (bool has_run = stream_order == StreamOrder::kOthersFirst; std::exchange(has_run, false);) {
      for (auto& [other, queue] : queues_) {
        for (; other != stream && !queue.empty() && queue.front().is_ready(); has_run = true) {
          run_first(queue);
        }
      }
    }
  }

  std::recursive_mutex mutex_;  // an operation may free memory, which enqueues another
  static constexpr auto kBefore = [](const c10::Stream& a, const c10::Stream& b) {
    return a.hash() < b.hash();  // device and id
  };
  std::map<c10::Stream, Queue, decltype(kBefore)> queues_;
};

/// Never destroyed: memory may be freed after main().
Streams& streams = *new Streams();

thread_local c10::DeviceIndex current_device = 0;
thread_local std::array<c10::StreamId, kFakeDevices> current_streams{};

c10::Device checked(c10::Device device) {
  TORCH_CHECK(device.type() == kFakeType && device.index() < kFakeDevices,
              "Expected fake device 0 to ", kFakeDevices - 1, ", got ", device);
  return {kFakeType, device.has_index() ? device.index() : current_device};
}

c10::Stream stream_of(c10::Device device) {
  const c10::Device which = checked(device);
  return c10::Stream(c10::Stream::UNSAFE, which,
                     current_streams[static_cast<size_t>(which.index())]);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kFakeType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {kFakeType, std::exchange(current_device, checked(device).index())};
  }
  c10::Device getDevice() const override { return {kFakeType, current_device}; }
  void setDevice(c10::Device device) const override { current_device = checked(device).index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    current_device = device.index();
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kFakeDevices; }

  c10::Stream getStream(c10::Device device) const override { return stream_of(device); }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, checked(device));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    static std::atomic<c10::StreamId> last{0};
    return c10::Stream(c10::Stream::UNSAFE, checked(device), ++last);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = stream_of(stream.device());
    current_streams[static_cast<size_t>(stream.device_index())] = stream.id();
    return before;
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    streams.synchronize(streams.record(stream));
  }
  void synchronizeDevice(c10::DeviceIndex index) const override {
    streams.synchronize_device(index);
  }

  static Event& moment_of(void* event) { return *static_cast<Event*>(event); }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex device,
              c10::EventFlag) const override {
    TORCH_CHECK(device == -1 || device == stream.device_index(), "Expected an event of device ",
                device, " to be recorded there, got ", stream);
    if (*event == nullptr) {
      *event = new Event();
    }
    moment_of(*event) = streams.record(stream);
  }
  void block(void* event, const c10::Stream& stream) const override {
    streams.wait(stream, moment_of(event));
  }
  bool queryEvent(void* event) const override { return moment_of(event)->is_reached; }
  void synchronizeEvent(void* event) const override { streams.synchronize(moment_of(event)); }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  double elapsedTime(void*, void*, c10::DeviceIndex) const override { return 1; }  // milliseconds
};

/// Device memory. Operators that have not run yet keep it, even without a tensor.
struct Block {
  Block(size_t bytes, c10::Stream where)
      : memory(c10::GetCPUAllocator()->allocate(bytes)), size(bytes), stream(where) {
    poison();
  }
  /// Makes it NaN as floating point, -1 as integers.
  void poison() { std::memset(memory.get(), 0xff, size); }
  c10::DataPtr memory;
  size_t size;
  c10::Stream stream;  // stream of the allocation
};
using SharedBlock = std::shared_ptr<Block>;

struct DeviceAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device(kFakeType, current_device);
    auto block = std::make_unique<SharedBlock>(
        std::make_shared<Block>(std::max<size_t>(bytes, 1), stream_of(device)));
    void* const data = (*block)->memory.get();
    return {data, block.release(), free_block, device};
  }
  /// Overwrites freed memory as a caching allocator's next owner would.
  static void free_block(void* context) {
    const std::unique_ptr<SharedBlock> owner(static_cast<SharedBlock*>(context));
    streams.enqueue((*owner)->stream, [block = *owner] { block->poison(); });
  }
  void copy_data(void*, const void*, size_t) const override {
    TORCH_CHECK(false, "Expected device memory to be copied by operators");
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override { return {}; }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex) override {
    return {free_device_memory, free_device_memory};
  }
} device_allocator;
REGISTER_ALLOCATOR(kFakeType, &device_allocator)

/// Never frees memory, so that an address stays pinned.
struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* const data = c10::GetCPUAllocator()->raw_allocate(std::max<size_t>(bytes, 1));
    const std::lock_guard<std::mutex> lock(mutex);
    ends[data] = static_cast<std::byte*>(data) + std::max<size_t>(bytes, 1);
    return {data, c10::kCPU};
  }
  bool is_pinned(const void* place) {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto after = ends.upper_bound(place);
    return after != ends.begin() && place < std::prev(after)->second;
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
  std::mutex mutex;
  std::map<const void*, const void*> ends;
};
PinnedAllocator& pinned_allocator = *new PinnedAllocator();

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kFakeDevices; }
  bool isPinnedPtr(const void* place) const override { return pinned_allocator.is_pinned(place); }
  /// For manual_seed(), which seeds all devices. This device draws no random numbers.
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static const at::Generator generator = at::detail::createCPUGenerator();
    return generator;
  }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
};

[[maybe_unused]] const bool is_registered = [] {
  c10::register_privateuse1_backend("fake");
  c10::impl::registerDeviceGuard(kFakeType, new Guard());
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  return true;
}();

/// The same memory for the CPU's kernels. Only operations that have their turn may use it.
at::Tensor on_cpu(const at::Tensor& tensor) {
  if (tensor.is_cpu()) {
    return tensor;
  }
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const auto* const block = static_cast<SharedBlock*>(tensor.storage().data_ptr().get_context());
  return at::from_blob(
      tensor.unsafeGetTensorImpl()->mutable_data(), tensor.sizes(), tensor.strides(),
      [kept = *block](void*) {}, tensor.options().device(at::kCPU).requires_grad(false));
}

using Values = std::vector<c10::IValue>;

/// Replaces every tensor in `values`, also in lists, by `replace(tensor)`.
template <typename Replace>
Values with_tensors(Values values, const Replace& replace) {
  for (c10::IValue& value : values) {
    if (value.isTensor() && value.toTensor().defined()) {
      value = replace(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> replaced;
      for (const at::Tensor& tensor : value.toTensorVector()) {
        replaced.push_back(replace(tensor));
      }
      value = replaced;
    }
  }
  return values;
}

/// Device of an operator's tensors, which must be the same, as in CUDA. Numbers may come from the
/// host.
c10::Device common_device(const c10::OperatorHandle& op, const Values& arguments) {
  std::optional<c10::Device> device;
  with_tensors(arguments, [&](const at::Tensor& tensor) {
    if (!tensor.is_cpu() || tensor.dim() > 0) {
      TORCH_CHECK(tensor.device() == device.value_or(tensor.device()) && !tensor.is_cpu(),
                  "Expected all tensors of ", op.operator_name(), " on one fake device, got ",
                  tensor.device(), " and ", device.value_or(c10::Device(kFakeType)));
      device = tensor.device();
    }
    return tensor;
  });
  return device.value();
}

/// Results of an operator: its own arguments, or new tensors. A trial on zeros gives their shapes,
/// which here do not depend on values.
Values results_of(const c10::OperatorHandle& op, const Values& arguments, c10::Device device) {
  const c10::FunctionSchema& schema = op.schema();
  Values results;
  for (const c10::Argument& result : schema.returns()) {
    for (size_t i = 0; result.alias_info() != nullptr && i < arguments.size(); ++i) {
      const auto* const alias = schema.arguments()[i].alias_info();
      if (alias != nullptr && alias->isWrite() && *alias == *result.alias_info()) {
        results.push_back(arguments[i]);
      }
    }
  }
  if (results.size() == schema.returns().size()) {
    return results;
  }
  Values tried = with_tensors(arguments, [](const at::Tensor& tensor) {
    return tensor.is_cpu() ? tensor : at::zeros_like(on_cpu(tensor));
  });
  op.callBoxed(&tried);
  TORCH_CHECK(results.empty() && std::ranges::all_of(tried, &c10::IValue::isTensor),
              "Expected an operator that changes or returns tensors, got ", op.operator_name());
  return with_tensors(tried, [&](const at::Tensor& result) {
    return at::empty_strided(result.sizes(), result.strides(), result.options().device(device));
  });
}

/// Enqueues any operator without a kernel of its own below.
void run_later(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const Values arguments = torch::jit::pop(*stack, op.schema().arguments().size());
  const c10::Device device = common_device(op, arguments);
  const Values results = results_of(op, arguments, device);
  const auto for_kernel = [](const at::Tensor& tensor) {
    if (!tensor.is_cpu()) {
      return on_cpu(tensor);
    }
    // A number stays a number, because a tensor would change the rounding.
    at::Tensor number = tensor.clone();
    number.unsafeGetTensorImpl()->set_wrapped_number(
        tensor.unsafeGetTensorImpl()->is_wrapped_number());
    return number;
  };
  streams.enqueue(stream_of(device), [op, values = with_tensors(arguments, for_kernel),
                                      places = with_tensors(results, for_kernel)] {
    Values returned = values;  // a copy, because operators may return references to it
    op.callBoxed(&returned);
    for (size_t i = 0; i < places.size(); ++i) {
      places[i].toTensor().copy_(returned[i].toTensor());
    }
  });
  stack->insert(stack->end(), results.begin(), results.end());
}

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

at::Tensor empty_on_device(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                           std::optional<at::Layout>, std::optional<at::Device> device,
                           std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(checked(at::device_or_default(device)));
  return at::detail::empty_generic(sizes, &device_allocator, kKeys, at::dtype_or_default(dtype),
                                   format);
}

at::Tensor empty_strided_on_device(at::IntArrayRef sizes, at::IntArrayRef strides,
                                   std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                                   std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(checked(at::device_or_default(device)));
  return at::detail::empty_strided_generic(sizes, strides, &device_allocator, kKeys,
                                           at::dtype_or_default(dtype));
}

/// Copies like LibTorch's copies for CUDA.
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const bool between_devices = !from.is_cpu() && !to.is_cpu();
  const c10::Stream stream = stream_of((from.is_cpu() ? to : from).device());
  if (between_devices) {
    streams.wait(stream, streams.record(stream_of(to.device())));
  }
  const bool sets_aside = from.is_cpu() && !(non_blocking && from.is_pinned());
  streams.enqueue(stream, [source = sets_aside ? from.clone() : on_cpu(from), target = on_cpu(to)] {
    target.copy_(source);
  });
  if (between_devices) {
    streams.wait(stream_of(to.device()), streams.record(stream));
  } else if (!non_blocking || (to.is_cpu() && !to.is_pinned())) {
    streams.synchronize(streams.record(stream));
  }
  return to;
}

at::Scalar local_scalar_dense(const at::Tensor& tensor) {
  streams.synchronize(streams.record(stream_of(tensor.device())));
  return on_cpu(tensor).item();
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty_on_device);
  library.impl("empty_strided", empty_strided_on_device);
  library.impl("_copy_from", copy_from);
  library.impl("_local_scalar_dense", local_scalar_dense);
  // For module.to(device), which gives parameters new memory.
  library.impl("_has_compatible_shallow_copy_type",
               [](const at::Tensor&, const at::Tensor&) { return true; });
  library.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
  library.impl("as_strided", at::native::as_strided_tensorimpl);
  library.impl("view", at::native::view);
  library.impl("_reshape_alias", at::native::_reshape_alias);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_later>());
}

}  // namespace
}  // namespace ddp::test
