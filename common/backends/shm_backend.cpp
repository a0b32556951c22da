#include <array>
#include <optional>

#include "common/backends/shm.hpp"

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

std::optional<shm::DType> find_dtype(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return shm::DType::kFloat32;
    case at::kDouble:
      return shm::DType::kFloat64;
    case at::kHalf:
      return shm::DType::kFloat16;
    case at::kBFloat16:
      return shm::DType::kBFloat16;
    case at::kInt:
      return shm::DType::kInt32;
    case at::kLong:
      return shm::DType::kInt64;
    case at::kChar:
      return shm::DType::kInt8;
    case at::kByte:
      return shm::DType::kUint8;
    case at::kBool:
      return shm::DType::kBool;
    default:
      return std::nullopt;
  }
}

void check_cpu(const char* operation, const at::Tensor& tensor) {
  TORCH_CHECK(tensor.device().is_cpu() && tensor.layout() == at::kStrided,
              "--backend shm: Expected ", operation, " of a dense CPU tensor, got ",
              tensor.toString(), " on ", tensor.device());
}

const at::Tensor& only(const char* operation, const std::vector<at::Tensor>& tensors) {
  TORCH_CHECK(tensors.size() == 1, "--backend shm: Expected ", operation, " of 1 tensor, got ",
              tensors.size());
  check_cpu(operation, tensors[0]);
  return tensors[0];
}

shm::DType reducible(const char* operation, const at::Tensor& tensor,
                     const c10d::ReduceOp& reduce_op, shm::ReduceOp& op) {
  switch (static_cast<c10d::ReduceOp::RedOpType>(reduce_op)) {
    case c10d::ReduceOp::SUM:
      op = shm::ReduceOp::kSum;
      break;
    case c10d::ReduceOp::AVG:
      op = shm::ReduceOp::kAverage;
      break;
    case c10d::ReduceOp::PRODUCT:
      op = shm::ReduceOp::kProduct;
      break;
    case c10d::ReduceOp::MIN:
      op = shm::ReduceOp::kMin;
      break;
    case c10d::ReduceOp::MAX:
      op = shm::ReduceOp::kMax;
      break;
    default:
      TORCH_CHECK(false, "--backend shm: Expected ", operation,
                  " with SUM, AVG, PRODUCT, MIN or MAX, got c10d::ReduceOp ",
                  static_cast<int>(static_cast<c10d::ReduceOp::RedOpType>(reduce_op)));
  }
  const std::optional<shm::DType> dtype = find_dtype(tensor.scalar_type());
  TORCH_CHECK(dtype.has_value(), "--backend shm: Expected ", operation,
              " of float, double, half, bfloat16, int32, int64, int8, uint8 or bool, got ",
              tensor.dtype());
  TORCH_CHECK(shm::is_supported(*dtype, op), "--backend shm: Expected ", operation, " ",
              shm::to_string(op), " of floating point, got ", shm::to_string(*dtype));
  return *dtype;
}

/// What is moved as it is: of a known type, or so many bytes.
struct Elements {
  size_t count;
  shm::DType dtype;
  explicit Elements(const at::Tensor& tensor)
      : count(find_dtype(tensor.scalar_type()) ? static_cast<size_t>(tensor.numel())
                                               : tensor.nbytes()),
        dtype(find_dtype(tensor.scalar_type()).value_or(shm::DType::kUint8)) {}
};

/// A contiguous stand-in for a tensor that is to be written.
class Output {
 public:
  explicit Output(const at::Tensor& tensor)
      : tensor_(tensor),
        contiguous_(tensor.is_contiguous() ? tensor
                                           : at::empty_like(tensor, at::MemoryFormat::Contiguous)) {
  }
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

void check_same_type(const char* operation, const at::Tensor& tensor, const at::Tensor& other) {
  check_cpu(operation, other);
  TORCH_CHECK(other.scalar_type() == tensor.scalar_type(), "--backend shm: Expected ", operation,
              " of tensors with ", tensor.dtype(), ", got ", other.dtype());
}

void check_same_form(const char* operation, const at::Tensor& tensor, const at::Tensor& other) {
  check_cpu(operation, other);
  TORCH_CHECK(other.numel() == tensor.numel() && other.scalar_type() == tensor.scalar_type(),
              "--backend shm: Expected ", operation, " of tensors with ", tensor.numel(), " ",
              tensor.dtype(), ", got ", other.numel(), " ", other.dtype());
}

}  // namespace

ShmBackend::ShmBackend(std::unique_ptr<shm::Communicator> communicator)
    : c10d::Backend(communicator->rank(), communicator->world_size()),
      communicator_(std::move(communicator)) {}

shm::Communicator& ShmBackend::communicator() {
  TORCH_CHECK(
      communicator_ != nullptr,
      "--backend shm: Expected a call before the process group was destroyed, got one after");
  return *communicator_;
}

uint64_t ShmBackend::getSequenceNumberForGroup() {
  return communicator().sequence();
}

void ShmBackend::shutdown() {
  const std::lock_guard<std::mutex> lock(mutex_);
  communicator_.reset();
}

c10::intrusive_ptr<c10d::Work> ShmBackend::allreduce(std::vector<at::Tensor>& tensors,
                                                     const c10d::AllreduceOptions& options) {
  const at::Tensor& tensor = only("all_reduce", tensors);
  shm::ReduceOp op{};
  const shm::DType dtype = reducible("all_reduce", tensor, options.reduceOp, op);
  const at::Tensor data = tensor.contiguous();
  const std::lock_guard<std::mutex> lock(mutex_);
  communicator().all_reduce(data.data_ptr(), static_cast<size_t>(data.numel()), dtype, op);
  if (!data.is_same(tensor)) {
    tensor.copy_(data);
  }
  return c10::make_intrusive<DoneWork>(rank_, c10d::OpType::ALLREDUCE, tensors);
}

c10::intrusive_ptr<c10d::Work> ShmBackend::broadcast(std::vector<at::Tensor>& tensors,
                                                     const c10d::BroadcastOptions& options) {
  const at::Tensor& tensor = only("broadcast", tensors);
  TORCH_CHECK(options.rootRank >= 0 && options.rootRank < size_,
              "--backend shm: Expected broadcast from rank 0 to ", size_ - 1, ", got ",
              options.rootRank);
  const at::Tensor data = tensor.contiguous();
  const Elements elements(data);
  const std::lock_guard<std::mutex> lock(mutex_);
  communicator().broadcast(data.data_ptr(), elements.count, elements.dtype,
                           static_cast<int>(options.rootRank));
  if (!data.is_same(tensor)) {
    tensor.copy_(data);
  }
  return c10::make_intrusive<DoneWork>(rank_, c10d::OpType::BROADCAST, tensors);
}

c10::intrusive_ptr<c10d::Work> ShmBackend::allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                                     std::vector<at::Tensor>& inputs,
                                                     const c10d::AllgatherOptions&) {
  const at::Tensor& input = only("all_gather", inputs);
  TORCH_CHECK(outputs.size() == 1 && outputs[0].size() == static_cast<size_t>(size_),
              "--backend shm: Expected all_gather into ", size_, " tensors, got ",
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
  const at::Tensor data = input.contiguous();
  const std::lock_guard<std::mutex> lock(mutex_);
  communicator().all_gather(data.const_data_ptr(), pointers.data(), counts.data(),
                            Elements(data).dtype);
  for (const Output& place : places) {
    place.copy_back();
  }
  return c10::make_intrusive<DoneWork>(rank_, c10d::OpType::ALLGATHER, outputs[0]);
}

c10::intrusive_ptr<c10d::Work> ShmBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                           const c10d::AllgatherOptions& options) {
  TORCH_CHECK(output.is_contiguous() && output.numel() == input.numel() * size_,
              "--backend shm: Expected all_gather into one contiguous tensor of ",
              input.numel() * size_, " elements, got ", output.numel());
  std::vector<std::vector<at::Tensor>> outputs{output.view({-1}).chunk(size_)};
  if (input.numel() == 0) {
    outputs[0].assign(static_cast<size_t>(size_), output);
  }
  std::vector<at::Tensor> inputs{input};
  allgather(outputs, inputs, options);
  return c10::make_intrusive<DoneWork>(rank_, c10d::OpType::_ALLGATHER_BASE,
                                       std::vector<at::Tensor>{output});
}

c10::intrusive_ptr<c10d::Work> ShmBackend::gather(std::vector<std::vector<at::Tensor>>& outputs,
                                                  std::vector<at::Tensor>& inputs,
                                                  const c10d::GatherOptions& options) {
  const at::Tensor& input = only("gather", inputs);
  const bool is_root = options.rootRank == rank_;
  const size_t expected = is_root ? static_cast<size_t>(size_) : 0;
  const size_t given = outputs.empty() ? 0 : outputs[0].size();
  TORCH_CHECK(options.rootRank >= 0 && options.rootRank < size_ && given == expected,
              "--backend shm: Expected gather to rank 0 to ", size_ - 1, " into ", expected,
              " tensors, got rank ", options.rootRank, " and ", given);
  std::vector<Output> places;
  std::vector<void*> pointers;
  for (size_t r = 0; r < given; ++r) {
    check_same_form("gather", input, outputs[0][r]);
    pointers.push_back(places.emplace_back(outputs[0][r]).data());
  }
  const at::Tensor data = input.contiguous();
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

c10::intrusive_ptr<c10d::Work> ShmBackend::reduce_scatter(
    std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
    const c10d::ReduceScatterOptions& options) {
  const at::Tensor& output = only("reduce_scatter", outputs);
  TORCH_CHECK(inputs.size() == 1 && inputs[0].size() == static_cast<size_t>(size_),
              "--backend shm: Expected reduce_scatter of ", size_, " tensors, got ",
              inputs.empty() ? 0 : inputs[0].size());
  shm::ReduceOp op{};
  const shm::DType dtype = reducible("reduce_scatter", output, options.reduceOp, op);
  check_same_form("reduce_scatter", output, inputs[0][static_cast<size_t>(rank_)]);
  std::vector<at::Tensor> data;
  std::vector<const void*> pointers;
  std::vector<size_t> counts;  // ranks may get parts of different sizes
  for (const at::Tensor& input : inputs[0]) {
    check_same_type("reduce_scatter", output, input);
    pointers.push_back(data.emplace_back(input.contiguous()).const_data_ptr());
    counts.push_back(static_cast<size_t>(input.numel()));
  }
  const Output place(output);
  const std::lock_guard<std::mutex> lock(mutex_);
  communicator().reduce_scatter(pointers.data(), place.data(), counts.data(), dtype, op);
  place.copy_back();
  return c10::make_intrusive<DoneWork>(rank_, c10d::OpType::REDUCE_SCATTER, outputs);
}

c10::intrusive_ptr<c10d::Work> ShmBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK(input.numel() == output.numel() * size_, "--backend shm: Expected reduce_scatter of ",
              output.numel() * size_, " elements, got ", input.numel());
  std::vector<std::vector<at::Tensor>> inputs{input.contiguous().view({-1}).chunk(size_)};
  if (input.numel() == 0) {
    inputs[0].assign(static_cast<size_t>(size_), input);
  }
  std::vector<at::Tensor> outputs{output};
  return reduce_scatter(outputs, inputs, options);
}

c10::intrusive_ptr<c10d::Work> ShmBackend::barrier(const c10d::BarrierOptions&) {
  const std::lock_guard<std::mutex> lock(mutex_);
  communicator().barrier();
  return c10::make_intrusive<DoneWork>(rank_, c10d::OpType::BARRIER, std::vector<at::Tensor>{});
}

at::Tensor ShmBackend::allocateTensor(long size, at::TensorOptions options) {
  TORCH_CHECK(options.device().is_cpu() && size >= 0,
              "--backend shm: Expected to allocate elements on the CPU, got ", size, " on ",
              options.device());
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
