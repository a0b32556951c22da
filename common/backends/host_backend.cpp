#include "common/backends/host_backend.hpp"

#include <mutex>

namespace ddp {
namespace {

/// Completed work: an operation is complete when its call returns.
class DoneWork : public c10d::Work {
 public:
  explicit DoneWork(int rank) : c10d::Work(rank) { finish(); }
  void renew(c10d::OpType type, const std::vector<at::Tensor>& results) {
    opType_ = type;
    results_ = results;
  }
  bool wait(std::chrono::milliseconds) override { return true; }
  void synchronize() override {}
  std::vector<at::Tensor> result() override { return results_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future =
        c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    future->markCompleted(c10::IValue(results_));
    return future;
  }

 private:
  std::vector<at::Tensor> results_;
};

/// Type in which tensors of `type` are summed.
at::ScalarType summed_type(at::ScalarType type) {
  return type == at::kHalf || type == at::kBFloat16        ? at::kFloat
         : c10::isIntegralType(type, /*includeBool=*/true) ? at::kLong
                                                           : type;
}

/// The tensor itself if it is contiguous, on the host and of that type, else such a copy.
at::Tensor on_host(const at::Tensor& tensor, at::ScalarType type) {
  return tensor.is_cpu() && tensor.scalar_type() == type
             ? tensor.contiguous()
             : tensor.to(tensor.options().device(at::kCPU).dtype(type)).contiguous();
}

void copy_back(const at::Tensor& tensor, const at::Tensor& hosted) {
  if (!hosted.is_same(tensor)) {
    tensor.copy_(hosted);
  }
}

using WorkPointer = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;
using Lists = std::vector<Tensors>;

class HostBackend final : public c10d::Backend {
 public:
  HostBackend(std::string name, std::unique_ptr<Communicator> communicator)
      : c10d::Backend(communicator->rank(), communicator->world_size()),
        name_(std::move(name)),
        prefix_("backend " + name_ + ": "),
        communicator_(std::move(communicator)) {}

  const std::string getBackendName() const override { return name_; }

  void shutdown() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    done_.reset();  // its results may be memory of the communicator
    if (communicator_ != nullptr) {
      communicator_->close();
      communicator_.reset();
    }
  }

  WorkPointer allreduce(std::vector<at::Tensor>& tensors,
                        const c10d::AllreduceOptions& options) override {
    const at::Tensor& given = only("all_reduce", tensors);
    const ReduceOp reduce_op = reduce_op_of(options.reduceOp);
    const bool is_linear = reduce_op == ReduceOp::kSum || reduce_op == ReduceOp::kAverage;
    const at::Tensor tensor = given.is_complex() && is_linear ? at::view_as_real(given) : given;
    const at::ScalarType type = summed_type(tensor.scalar_type());
    TORCH_CHECK(type == at::kFloat || type == at::kDouble ||
                    (type == at::kLong && reduce_op != ReduceOp::kAverage),
                prefix_, "Expected all_reduce of ",
                reduce_op == ReduceOp::kAverage ? "floating-point" : "real", " numbers, got ",
                given.dtype());
    const at::Tensor data = on_host(tensor, type);
    const std::lock_guard<std::mutex> lock(mutex_);
    const bool divides = reduce_op == ReduceOp::kAverage && !communicator().has_average();
    communicator().all_reduce(data.data_ptr(), static_cast<size_t>(data.numel()),
                              type == at::kFloat    ? DType::kFloat32
                              : type == at::kDouble ? DType::kFloat64
                                                    : DType::kInt64,
                              divides ? ReduceOp::kSum : reduce_op);
    if (divides) {
      data.div_(size_);
    }
    copy_back(tensor, data);
    return done(c10d::OpType::ALLREDUCE, tensors);
  }

  void stop(Stop stop) {
    const std::lock_guard<std::mutex> lock(mutex_);
    communicator().stop(stop);
  }

  WorkPointer broadcast(std::vector<at::Tensor>& tensors,
                        const c10d::BroadcastOptions& options) override {
    const at::Tensor& tensor = only("broadcast", tensors);
    TORCH_CHECK(options.rootRank >= 0 && options.rootRank < size_, prefix_,
                "Expected broadcast from rank 0 to ", size_ - 1, ", got ", options.rootRank);
    const at::Tensor data = on_host(tensor, tensor.scalar_type());
    const std::lock_guard<std::mutex> lock(mutex_);
    communicator().broadcast(data.data_ptr(), data.nbytes(), static_cast<int>(options.rootRank));
    copy_back(tensor, data);
    return done(c10d::OpType::BROADCAST, tensors);
  }

  WorkPointer allgather(std::vector<std::vector<at::Tensor>>& outputs,
                        std::vector<at::Tensor>& inputs, const c10d::AllgatherOptions&) override {
    const at::Tensor& input = only("all_gather", inputs);
    TORCH_CHECK(outputs.size() == 1 && outputs[0].size() == static_cast<size_t>(size_), prefix_,
                "Expected all_gather into ", size_, " tensors, got ",
                outputs.empty() ? 0 : outputs[0].size());
    std::vector<at::Tensor> hosted;
    std::vector<void*> places;
    for (const at::Tensor& output : outputs[0]) {
      TORCH_CHECK(output.numel() == input.numel() && output.scalar_type() == input.scalar_type(),
                  prefix_, "Expected all_gather into tensors of ", input.numel(), " ",
                  input.dtype(), ", got ", output.numel(), " ", output.dtype());
      hosted.push_back(on_host(output, output.scalar_type()));
      places.push_back(hosted.back().data_ptr());
    }
    const at::Tensor data = on_host(input, input.scalar_type());
    const std::lock_guard<std::mutex> lock(mutex_);
    communicator().all_gather(data.const_data_ptr(), places.data(), data.nbytes());
    for (size_t r = 0; r < hosted.size(); ++r) {
      copy_back(outputs[0][r], hosted[r]);
    }
    return done(c10d::OpType::ALLGATHER, outputs[0]);
  }

  // The four collectives of Python's FSDP2.

  /// Gathers into the parts of `output`, which must be contiguous.
  WorkPointer _allgather_base(at::Tensor& output, at::Tensor& input,
                              const c10d::AllgatherOptions& options) override {
    Lists outputs = {output.view({-1}).tensor_split(size_)};
    Tensors inputs = {input};
    return allgather(outputs, inputs, options);
  }

  WorkPointer allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& options) override {
    WorkPointer work;
    for (size_t i = 0; i < inputs.size(); ++i) {
      work = _allgather_base(outputs[i], inputs[i], options);
    }
    return work;
  }

  /// Reduces a copy of the whole `input` on every rank, and keeps this rank's part.
  WorkPointer _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                   const c10d::ReduceScatterOptions& options) override {
    TORCH_CHECK(input.numel() == output.numel() * size_, prefix_, "Expected reduce_scatter of ",
                output.numel() * size_, " elements, got ", input.numel());
    Tensors copy = {input.clone(at::MemoryFormat::Contiguous)};
    const WorkPointer work = allreduce(copy, {.reduceOp = options.reduceOp});
    output.copy_(
        copy[0].view({-1}).tensor_split(size_)[static_cast<size_t>(rank_)].view_as(output));
    return work;
  }

  WorkPointer reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::ReduceScatterOptions& options) override {
    WorkPointer work;
    for (size_t i = 0; i < inputs.size(); ++i) {
      work = _reduce_scatter_base(outputs[i], inputs[i], options);
    }
    return work;
  }

  WorkPointer barrier(const c10d::BarrierOptions&) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    communicator().barrier();
    return done(c10d::OpType::BARRIER, {});
  }

  /// Collective. Tensor of `size` elements that allreduce() works on without a copy, if the
  /// communicator has such memory.
  at::Tensor allocateTensor(long size, at::TensorOptions options) override {
    std::shared_ptr<void> memory;
    if (size_ > 1) {
      const std::lock_guard<std::mutex> lock(mutex_);
      memory = communicator().allocate(static_cast<size_t>(size) * options.dtype().itemsize());
    }
    return memory == nullptr ? at::empty({size}, options)
                             : at::from_blob(
                                   memory.get(), {size}, [memory](void*) {}, options);
  }
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }

 private:
  ReduceOp reduce_op_of(c10d::ReduceOp::RedOpType op) const {
    using Op = c10d::ReduceOp;
    constexpr std::array kNames = {"SUM",  "AVG", "PRODUCT", "MIN",        "MAX",
                                   "BAND", "BOR", "BXOR",    "PREMUL_SUM", "UNUSED"};
    TORCH_CHECK(op == Op::SUM || op == Op::AVG || op == Op::MAX || op == Op::MIN, prefix_,
                "Expected all_reduce with SUM, AVG, MAX or MIN, got ", kNames.at(op), "; use gloo");
    return op == Op::SUM   ? ReduceOp::kSum
           : op == Op::AVG ? ReduceOp::kAverage
           : op == Op::MAX ? ReduceOp::kMax
                           : ReduceOp::kMin;
  }

  Communicator& communicator() {
    TORCH_CHECK(communicator_ != nullptr, prefix_,
                "Expected a call before the process group was destroyed, got one after");
    return *communicator_;
  }

  /// Returns the same object again if the caller has not kept it, so that a step allocates nothing.
  /// It keeps `results` until the next operation. Call it under the lock.
  WorkPointer done(c10d::OpType type, const std::vector<at::Tensor>& results) {
    if (done_.use_count() != 1) {
      done_ = c10::make_intrusive<DoneWork>(rank_);
    }
    done_->renew(type, results);
    return done_;
  }

  const at::Tensor& only(const char* operation, const std::vector<at::Tensor>& tensors) const {
    TORCH_CHECK(tensors.size() == 1, prefix_, "Expected ", operation, " of 1 tensor, got ",
                tensors.size());
    TORCH_CHECK(tensors[0].layout() == at::kStrided, prefix_, "Expected ", operation,
                " of a dense tensor, got ", tensors[0].toString());
    return tensors[0];
  }

  std::string name_;
  std::string prefix_;  // for messages
  std::unique_ptr<Communicator> communicator_;  // null after shutdown()
  mutable std::mutex mutex_;
  c10::intrusive_ptr<DoneWork> done_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_host_backend(const std::string& name,
                                                    std::unique_ptr<Communicator> communicator) {
  return c10::make_intrusive<HostBackend>(name, std::move(communicator));
}

void stop_host_backend(c10d::Backend& backend, Stop stop) {
  if (auto* const host = dynamic_cast<HostBackend*>(&backend)) {
    host->stop(stop);
  }
}

}  // namespace ddp
