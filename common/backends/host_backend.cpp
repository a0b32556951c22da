#include "common/backends/host_backend.hpp"

#include <torch/types.h>

#include <optional>

namespace ddp {
namespace {

/// The work is done when this is made.
class DoneWork : public c10d::Work {
 public:
  DoneWork(int rank, c10d::OpType type, std::vector<at::Tensor> results)
      : c10d::Work(rank, type),
        results_(std::move(results)),
        future_(c10::make_intrusive<c10::ivalue::Future>(
            c10::ListType::create(c10::TensorType::get()))) {
    future_->markCompleted(c10::IValue(results_));
    finish();
  }
  bool wait(std::chrono::milliseconds) override { return true; }
  void synchronize() override {}
  std::vector<at::Tensor> result() override { return results_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  std::vector<at::Tensor> results_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

std::optional<DType> find_dtype(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return DType::kFloat32;
    case at::kDouble:
      return DType::kFloat64;
    case at::kHalf:
      return DType::kFloat16;
    case at::kBFloat16:
      return DType::kBFloat16;
    case at::kInt:
      return DType::kInt32;
    case at::kLong:
      return DType::kInt64;
    case at::kChar:
      return DType::kInt8;
    case at::kByte:
      return DType::kUint8;
    case at::kBool:
      return DType::kBool;
    default:
      return std::nullopt;
  }
}

/// What is moved as it is: of a known type, or so many bytes.
struct Elements {
  size_t count;
  DType dtype;
  explicit Elements(const at::Tensor& tensor)
      : count(find_dtype(tensor.scalar_type()) ? static_cast<size_t>(tensor.numel())
                                               : tensor.nbytes()),
        dtype(find_dtype(tensor.scalar_type()).value_or(DType::kUint8)) {}
};

at::Tensor on_host(const at::Tensor& tensor) {
  return (tensor.is_cpu() ? tensor : tensor.cpu()).contiguous();
}

/// A contiguous stand-in on the host for a tensor that is to be written.
class Output {
 public:
  explicit Output(const at::Tensor& tensor)
      : tensor_(tensor),
        contiguous_(tensor.is_cpu() && tensor.is_contiguous()
                        ? tensor
                        : at::empty(tensor.sizes(), tensor.options().device(at::kCPU))) {}
  const at::Tensor& tensor() const { return contiguous_; }
  void* data() const { return contiguous_.data_ptr(); }
  void copy_back() const {
    if (!contiguous_.is_same(tensor_)) {
      tensor_.copy_(contiguous_);
    }
  }

 private:
  at::Tensor tensor_;
  at::Tensor contiguous_;
};

}  // namespace

HostBackend::HostBackend(std::string name, std::unique_ptr<Communicator> communicator,
                         Tensors tensors)
    : c10d::Backend(communicator->rank(), communicator->world_size()),
      name_(std::move(name)),
      prefix_("--backend " + name_ + ": "),
      tensors_(tensors),
      communicator_(std::move(communicator)) {}

Communicator& HostBackend::communicator() {
  TORCH_CHECK(communicator_ != nullptr, prefix_,
              "Expected a call before the process group was destroyed, got one after");
  return *communicator_;
}

void HostBackend::check_tensor(const char* operation, const at::Tensor& tensor) const {
  const bool staged = tensors_ != Tensors::kCpu && tensor.device().is_cuda();
  TORCH_CHECK((tensor.device().is_cpu() || staged) && tensor.layout() == at::kStrided, prefix_,
              "Expected ", operation, " of a dense CPU tensor, got ", tensor.toString(), " on ",
              tensor.device());
}

at::Tensor HostBackend::summable(const at::Tensor& tensor) const {
  // Other types have sums of our own making, for memory of the host.
  const bool is_direct =
      tensors_ == Tensors::kDirect && tensor.is_cuda() && tensor.is_contiguous() &&
      (tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble);
  if (!is_direct) {
    return on_host(tensor);
  }
  // The communicator knows nothing of streams: what is to be summed must be there.
  c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device()).synchronize();
  return tensor;
}

const at::Tensor& HostBackend::only(const char* operation,
                                    const std::vector<at::Tensor>& tensors) const {
  TORCH_CHECK(tensors.size() == 1, prefix_, "Expected ", operation, " of 1 tensor, got ",
              tensors.size());
  check_tensor(operation, tensors[0]);
  return tensors[0];
}

void HostBackend::check_same_type(const char* operation, const at::Tensor& tensor,
                                  const at::Tensor& other) const {
  check_tensor(operation, other);
  TORCH_CHECK(other.scalar_type() == tensor.scalar_type(), prefix_, "Expected ", operation,
              " of tensors with ", tensor.dtype(), ", got ", other.dtype());
}

void HostBackend::check_same_form(const char* operation, const at::Tensor& tensor,
                                  const at::Tensor& other) const {
  check_tensor(operation, other);
  TORCH_CHECK(other.numel() == tensor.numel() && other.scalar_type() == tensor.scalar_type(),
              prefix_, "Expected ", operation, " of tensors with ", tensor.numel(), " ",
              tensor.dtype(), ", got ", other.numel(), " ", other.dtype());
}

HostBackend::Reduction HostBackend::reducible(const char* operation, const at::Tensor& tensor,
                                              const c10d::ReduceOp& reduce_op) {
  Reduction reduction{};
  switch (static_cast<c10d::ReduceOp::RedOpType>(reduce_op)) {
    case c10d::ReduceOp::SUM:
      reduction.op = ReduceOp::kSum;
      break;
    case c10d::ReduceOp::AVG:
      reduction.op = ReduceOp::kAverage;
      break;
    case c10d::ReduceOp::PRODUCT:
      reduction.op = ReduceOp::kProduct;
      break;
    case c10d::ReduceOp::MIN:
      reduction.op = ReduceOp::kMin;
      break;
    case c10d::ReduceOp::MAX:
      reduction.op = ReduceOp::kMax;
      break;
    default:
      TORCH_CHECK(false, prefix_, "Expected ", operation,
                  " with SUM, AVG, PRODUCT, MIN or MAX, got c10d::ReduceOp ",
                  static_cast<int>(static_cast<c10d::ReduceOp::RedOpType>(reduce_op)));
  }
  const std::optional<DType> dtype = find_dtype(tensor.scalar_type());
  TORCH_CHECK(dtype.has_value(), prefix_, "Expected ", operation,
              " of float, double, half, bfloat16, int32, int64, int8, uint8 or bool, got ",
              tensor.dtype());
  TORCH_CHECK(is_supported(*dtype, reduction.op), prefix_, "Expected ", operation, " ",
              to_string(reduction.op), " of floating point, got ", to_string(*dtype));
  reduction.dtype = *dtype;
  if (reduction.op == ReduceOp::kAverage && !communicator().has_average()) {
    reduction.op = ReduceOp::kSum;
    reduction.divides = true;
  }
  return reduction;
}

uint64_t HostBackend::getSequenceNumberForGroup() {
  return communicator().sequence();
}

void HostBackend::shutdown() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (communicator_ != nullptr) {
    communicator_->close();
    communicator_.reset();
  }
}

c10::intrusive_ptr<c10d::Work> HostBackend::allreduce(std::vector<at::Tensor>& tensors,
                                                      const c10d::AllreduceOptions& options) {
  const at::Tensor& tensor = only("all_reduce", tensors);
  const std::lock_guard<std::mutex> lock(mutex_);
  const Reduction reduction = reducible("all_reduce", tensor, options.reduceOp);
  const at::Tensor data = summable(tensor);
  communicator().all_reduce(data.data_ptr(), static_cast<size_t>(data.numel()), reduction.dtype,
                            reduction.op);
  if (reduction.divides) {
    data.div_(size_);
  }
  if (!data.is_same(tensor)) {
    tensor.copy_(data);
  }
  return c10::make_intrusive<DoneWork>(rank_, c10d::OpType::ALLREDUCE, tensors);
}

c10::intrusive_ptr<c10d::Work> HostBackend::broadcast(std::vector<at::Tensor>& tensors,
                                                      const c10d::BroadcastOptions& options) {
  const at::Tensor& tensor = only("broadcast", tensors);
  TORCH_CHECK(options.rootRank >= 0 && options.rootRank < size_, prefix_,
              "Expected broadcast from rank 0 to ", size_ - 1, ", got ", options.rootRank);
  const at::Tensor data = on_host(tensor);
  const Elements elements(data);
  const std::lock_guard<std::mutex> lock(mutex_);
  communicator().broadcast(data.data_ptr(), elements.count, elements.dtype,
                           static_cast<int>(options.rootRank));
  if (!data.is_same(tensor)) {
    tensor.copy_(data);
  }
  return c10::make_intrusive<DoneWork>(rank_, c10d::OpType::BROADCAST, tensors);
}

c10::intrusive_ptr<c10d::Work> HostBackend::allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                                      std::vector<at::Tensor>& inputs,
                                                      const c10d::AllgatherOptions&) {
  const at::Tensor& input = only("all_gather", inputs);
  TORCH_CHECK(outputs.size() == 1 && outputs[0].size() == static_cast<size_t>(size_), prefix_,
              "Expected all_gather into ", size_, " tensors, got ",
              outputs.empty() ? 0 : outputs[0].size());
  check_same_form("all_gather", input, outputs[0][static_cast<size_t>(rank_)]);
  std::vector<Output> places;
  std::vector<void*> pointers;
  std::vector<size_t> counts;  // ranks may give parts of different sizes
  for (const at::Tensor& output : outputs[0]) {
    check_same_type("all_gather", input, output);
    pointers.push_back(places.emplace_back(output).data());
    counts.push_back(Elements(output).count);
  }
  const at::Tensor data = on_host(input);
  const std::lock_guard<std::mutex> lock(mutex_);
  communicator().all_gather(data.const_data_ptr(), pointers.data(), counts.data(),
                            Elements(data).dtype);
  for (const Output& place : places) {
    place.copy_back();
  }
  return c10::make_intrusive<DoneWork>(rank_, c10d::OpType::ALLGATHER, outputs[0]);
}

c10::intrusive_ptr<c10d::Work> HostBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                            const c10d::AllgatherOptions& options) {
  TORCH_CHECK(output.is_contiguous() && output.numel() == input.numel() * size_, prefix_,
              "Expected all_gather into one contiguous tensor of ", input.numel() * size_,
              " elements, got ", output.numel());
  std::vector<std::vector<at::Tensor>> outputs{output.view({-1}).chunk(size_)};
  if (input.numel() == 0) {
    outputs[0].assign(static_cast<size_t>(size_), output);
  }
  std::vector<at::Tensor> inputs{input};
  allgather(outputs, inputs, options);
  return c10::make_intrusive<DoneWork>(rank_, c10d::OpType::_ALLGATHER_BASE,
                                       std::vector<at::Tensor>{output});
}

c10::intrusive_ptr<c10d::Work> HostBackend::gather(std::vector<std::vector<at::Tensor>>& outputs,
                                                   std::vector<at::Tensor>& inputs,
                                                   const c10d::GatherOptions& options) {
  const at::Tensor& input = only("gather", inputs);
  const bool is_root = options.rootRank == rank_;
  const size_t expected = is_root ? static_cast<size_t>(size_) : 0;
  const size_t given = outputs.empty() ? 0 : outputs[0].size();
  TORCH_CHECK(options.rootRank >= 0 && options.rootRank < size_ && given == expected, prefix_,
              "Expected gather to rank 0 to ", size_ - 1, " into ", expected, " tensors, got rank ",
              options.rootRank, " and ", given);
  std::vector<Output> places;
  std::vector<void*> pointers;
  for (size_t r = 0; r < given; ++r) {
    check_same_form("gather", input, outputs[0][r]);
    pointers.push_back(places.emplace_back(outputs[0][r]).data());
  }
  const at::Tensor data = on_host(input);
  const Elements elements(data);
  const std::lock_guard<std::mutex> lock(mutex_);
  communicator().gather(data.const_data_ptr(), pointers.data(), elements.count, elements.dtype,
                        static_cast<int>(options.rootRank));
  for (const Output& place : places) {
    place.copy_back();
  }
  return c10::make_intrusive<DoneWork>(rank_, c10d::OpType::GATHER,
                                       is_root ? outputs[0] : std::vector<at::Tensor>{});
}

c10::intrusive_ptr<c10d::Work> HostBackend::reduce_scatter(
    std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
    const c10d::ReduceScatterOptions& options) {
  const at::Tensor& output = only("reduce_scatter", outputs);
  TORCH_CHECK(inputs.size() == 1 && inputs[0].size() == static_cast<size_t>(size_), prefix_,
              "Expected reduce_scatter of ", size_, " tensors, got ",
              inputs.empty() ? 0 : inputs[0].size());
  const std::lock_guard<std::mutex> lock(mutex_);
  const Reduction reduction = reducible("reduce_scatter", output, options.reduceOp);
  check_same_form("reduce_scatter", output, inputs[0][static_cast<size_t>(rank_)]);
  std::vector<at::Tensor> data;
  std::vector<const void*> pointers;
  std::vector<size_t> counts;  // ranks may get parts of different sizes
  for (const at::Tensor& input : inputs[0]) {
    check_same_type("reduce_scatter", output, input);
    pointers.push_back(data.emplace_back(on_host(input)).const_data_ptr());
    counts.push_back(static_cast<size_t>(input.numel()));
  }
  const Output place(output);
  communicator().reduce_scatter(pointers.data(), place.data(), counts.data(), reduction.dtype,
                                reduction.op);
  if (reduction.divides) {
    place.tensor().div_(size_);
  }
  place.copy_back();
  return c10::make_intrusive<DoneWork>(rank_, c10d::OpType::REDUCE_SCATTER, outputs);
}

c10::intrusive_ptr<c10d::Work> HostBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK(input.numel() == output.numel() * size_, prefix_, "Expected reduce_scatter of ",
              output.numel() * size_, " elements, got ", input.numel());
  std::vector<std::vector<at::Tensor>> inputs{input.contiguous().view({-1}).chunk(size_)};
  if (input.numel() == 0) {
    inputs[0].assign(static_cast<size_t>(size_), input);
  }
  std::vector<at::Tensor> outputs{output};
  return reduce_scatter(outputs, inputs, options);
}

c10::intrusive_ptr<c10d::Work> HostBackend::barrier(const c10d::BarrierOptions&) {
  const std::lock_guard<std::mutex> lock(mutex_);
  communicator().barrier();
  return c10::make_intrusive<DoneWork>(rank_, c10d::OpType::BARRIER, std::vector<at::Tensor>{});
}

at::Tensor HostBackend::allocateTensor(long size, at::TensorOptions options) {
  TORCH_CHECK(options.device().is_cpu() && size >= 0, prefix_,
              "Expected to allocate elements on the CPU, got ", size, " on ", options.device());
  if (size_ == 1) {
    return at::empty({size}, options);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::shared_ptr<void> memory =
      communicator().allocate(static_cast<size_t>(size) * options.dtype().itemsize());
  if (memory == nullptr) {
    return at::empty({size}, options);
  }
  return at::from_blob(
      memory.get(), {size}, [memory](void*) {}, options);
}

}  // namespace ddp
