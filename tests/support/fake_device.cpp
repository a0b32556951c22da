#include "tests/support/fake_device.hpp"

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
#include <c10/core/impl/DeviceGuardImplInterface.h>
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
namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr int kPoison = 0xff;  // NaN as floating point, -1 as an integer

/// Moment of a stream, for events.
struct Moment {
  c10::Stream stream;
  bool reached = false;
};

/// Device memory. Operators that have not run yet keep it, even without a tensor.
struct Block {
  Block(size_t bytes, c10::Stream where)
      : memory(c10::GetCPUAllocator()->allocate(bytes)), size(bytes), stream(where) {
    poison();
  }
  void poison() { std::memset(memory.get(), kPoison, size); }
  c10::DataPtr memory;
  size_t size;
  c10::Stream stream;  // stream of the allocation
};

/// All streams of all devices. They run on the thread that waits.
class Streams {
 public:
  /// @param waits_for moment until which the stream waits; none: it goes on
  void enqueue(const c10::Stream& stream, std::function<void()> run,
               std::shared_ptr<Moment> waits_for = nullptr) {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    queues_[stream].push_back({std::move(run), std::move(waits_for)});
  }
  std::shared_ptr<Moment> record(const c10::Stream& stream) {
    auto moment = std::make_shared<Moment>(Moment{stream});
    enqueue(stream, [moment] { moment->reached = true; });
    return moment;
  }
  void wait(const c10::Stream& stream, std::shared_ptr<Moment> moment) {
    enqueue(
        stream, [] {}, std::move(moment));
  }
  /// Lets the host wait. @throws the exception of an operator, because a GPU's errors come late
  void synchronize(const std::shared_ptr<Moment>& moment) {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    if (!moment->reached) {
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
  bool is_reached(const Moment& moment) {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    return moment.reached;
  }
  std::atomic<StreamOrder> order = StreamOrder::kOthersLast;

 private:
  struct Operation {
    std::function<void()> run;
    std::shared_ptr<Moment> waits_for;
    bool is_ready() const { return waits_for == nullptr || waits_for->reached; }
  };
  using Queue = std::deque<Operation>;
  struct Before {
    bool operator()(const c10::Stream& a, const c10::Stream& b) const {
      return std::pair(a.device_index(), a.id()) < std::pair(b.device_index(), b.id());
    }
  };

  static void run_first(Queue& queue) {
    const Operation operation = std::move(queue.front());
    queue.pop_front();
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    operation.run();
  }
  /// Ends, because a moment is recorded before anything can wait for it.
  void run_until(const Moment& moment) {
    for (Queue& queue = queues_[moment.stream]; !moment.reached; run_first(queue)) {
      if (!queue.front().is_ready()) {
        run_until(*queue.front().waits_for);
      }
    }
  }
  void run_others(const c10::Stream& stream) {
    for (bool has_run = order == StreamOrder::kOthersFirst; std::exchange(has_run, false);) {
      for (auto& [other, queue] : queues_) {
        for (; other != stream && !queue.empty() && queue.front().is_ready(); has_run = true) {
          run_first(queue);
        }
      }
    }
  }

  std::recursive_mutex mutex_;  // an operation may free memory, which enqueues another
  std::map<c10::Stream, Queue, Before> queues_;
};

/// Never destroyed: memory may be freed after main().
Streams& streams() {
  static auto* const all = new Streams();
  return *all;
}

thread_local c10::DeviceIndex current_device = 0;
thread_local std::array<c10::StreamId, kFakeDevices> current_streams{};

c10::Device checked(c10::Device device) {
  TORCH_CHECK(device.type() == kType && device.index() < kFakeDevices, "Expected fake device 0 to ",
              kFakeDevices - 1, ", got ", device);
  return {kType, device.has_index() ? device.index() : current_device};
}

c10::Stream stream_of(c10::Device device) {
  const c10::Device which = checked(device);
  return c10::Stream(c10::Stream::UNSAFE, which,
                     current_streams[static_cast<size_t>(which.index())]);
}

void synchronize(const c10::Stream& stream) {
  streams().synchronize(streams().record(stream));
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {kType, std::exchange(current_device, checked(device).index())};
  }
  c10::Device getDevice() const override { return {kType, current_device}; }
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
  void synchronizeStream(const c10::Stream& stream) const override { synchronize(stream); }
  void synchronizeDevice(c10::DeviceIndex index) const override {
    streams().synchronize_device(index);
  }

  using Event = std::shared_ptr<Moment>;
  static Event& moment_of(void* event) {
    TORCH_CHECK(event != nullptr, "Expected an event that was recorded, got one that was not");
    return *static_cast<Event*>(event);
  }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex device,
              c10::EventFlag) const override {
    TORCH_CHECK(device == -1 || device == stream.device_index(), "Expected an event of device ",
                device, " to be recorded there, got ", stream);
    if (*event == nullptr) {
      *event = new Event();
    }
    moment_of(*event) = streams().record(stream);
  }
  void block(void* event, const c10::Stream& stream) const override {
    streams().wait(stream, moment_of(event));
  }
  bool queryEvent(void* event) const override { return streams().is_reached(*moment_of(event)); }
  void synchronizeEvent(void* event) const override { streams().synchronize(moment_of(event)); }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  double elapsedTime(void* from, void* to, c10::DeviceIndex) const override {
    TORCH_CHECK(queryEvent(from) && queryEvent(to),
                "Expected events that are over, got one before");
    return 1;
  }
};

std::shared_ptr<Block>& block_of(const c10::DataPtr& pointer) {
  return *static_cast<std::shared_ptr<Block>*>(pointer.get_context());
}

std::atomic<size_t> free_bytes = 0;  // free memory that devices report

/// Overwrites freed memory in the order of the allocation's stream, as a caching allocator's next
/// owner would.
void free_block(void* context) {
  const std::unique_ptr<std::shared_ptr<Block>> owner(
      static_cast<std::shared_ptr<Block>*>(context));
  const std::shared_ptr<Block>& block = *owner;
  streams().enqueue(block->stream, [block] { block->poison(); });
}

struct DeviceAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device(kType, current_device);
    auto block = std::make_unique<std::shared_ptr<Block>>(
        std::make_shared<Block>(std::max<size_t>(bytes, 1), stream_of(device)));
    void* const data = (*block)->memory.get();
    return {data, block.release(), free_block, device};
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
    return {free_bytes, free_bytes};
  }
} device_allocator;
REGISTER_ALLOCATOR(kType, &device_allocator)

/// Knows pinned memory by its address. A queued copy keeps it.
struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    auto kept = std::make_unique<c10::DataPtr>(c10::GetCPUAllocator()->allocate(bytes));
    void* const data = kept->get();
    const std::lock_guard<std::mutex> lock(mutex);
    ends[data] = static_cast<std::byte*>(data) + std::max<size_t>(bytes, 1);
    return {data, kept.release(), release, c10::kCPU};
  }
  static void release(void* context) {
    const std::unique_ptr<c10::DataPtr> kept(static_cast<c10::DataPtr*>(context));
    const std::lock_guard<std::mutex> lock(mutex);
    ends.erase(kept->get());
  }
  static bool is_pinned(const void* place) {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto after = ends.upper_bound(place);
    return after != ends.begin() && place < std::prev(after)->second;
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
  static inline std::mutex mutex;
  static inline auto& ends = *new std::map<const void*, const void*>();
} pinned_allocator;

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kFakeDevices; }
  bool isPinnedPtr(const void* place) const override { return PinnedAllocator::is_pinned(place); }
  /// For manual_seed(), which seeds all devices. This device draws no random numbers.
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static const at::Generator generator = at::detail::createCPUGenerator();
    return generator;
  }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
};

[[maybe_unused]] const bool is_registered = [] {
  c10::register_privateuse1_backend("fake");
  c10::impl::registerDeviceGuard(kType, new Guard());
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  return true;
}();

/// The same memory for the CPU's kernels. Only operations that have their turn may use it.
at::Tensor on_cpu(const at::Tensor& tensor) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const std::shared_ptr<Block> block = block_of(tensor.storage().data_ptr());
  return at::from_blob(
      tensor.unsafeGetTensorImpl()->mutable_data(), tensor.sizes(), tensor.strides(),
      [block](void*) {}, tensor.options().device(at::kCPU).requires_grad(false));
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
                  tensor.device(), " and ", device.value_or(c10::Device(kType)));
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
  TORCH_CHECK(results.empty(), "Expected an operator of the fake device, got ", op.operator_name());
  Values tried = with_tensors(arguments, [](const at::Tensor& tensor) {
    return tensor.is_cpu() ? tensor : at::zeros_like(on_cpu(tensor));
  });
  op.callBoxed(&tried);
  for (const c10::IValue& result : tried) {
    TORCH_CHECK(result.isTensor(), "Expected an operator that returns tensors, got ",
                op.operator_name());
  }
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
  streams().enqueue(stream_of(device), [op, values = with_tensors(arguments, for_kernel),
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

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(checked(at::device_or_default(device)));
  return at::detail::empty_generic(sizes, &device_allocator, kKeys, at::dtype_or_default(dtype),
                                   format);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(checked(at::device_or_default(device)));
  return at::detail::empty_strided_generic(sizes, strides, &device_allocator, kKeys,
                                           at::dtype_or_default(dtype));
}

/// Copies like LibTorch's copies for CUDA.
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (from.is_cpu()) {
    const bool is_late = non_blocking && from.is_pinned();
    streams().enqueue(stream_of(to.device()), [source = is_late ? from : from.clone(),
                                               target = on_cpu(to)] { target.copy_(source); });
    if (!non_blocking) {
      synchronize(stream_of(to.device()));
    }
    return to;
  }
  const c10::Stream stream = stream_of(from.device());
  if (to.is_cpu()) {
    streams().enqueue(stream, [source = on_cpu(from), target = to] { target.copy_(source); });
    if (!non_blocking || !to.is_pinned()) {
      synchronize(stream);
    }
    return to;
  }
  const c10::Stream target_stream = stream_of(to.device());
  streams().wait(stream, streams().record(target_stream));
  streams().enqueue(stream, [source = on_cpu(from), target = on_cpu(to)] { target.copy_(source); });
  streams().wait(target_stream, streams().record(stream));
  return to;
}

at::Scalar local_scalar_dense(const at::Tensor& tensor) {
  synchronize(stream_of(tensor.device()));
  return on_cpu(tensor).item();
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
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

torch::Device fake_device(int index) {
  return {kType, static_cast<c10::DeviceIndex>(index)};
}

void set_stream_order(StreamOrder order) {
  streams().order = order;
}

void set_free_memory(size_t bytes) {
  free_bytes = bytes;
}

}  // namespace ddp::test
