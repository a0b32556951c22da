#include "common/backends/host_backend.hpp"

#include <torch/types.h>

#include <algorithm>
#include <mutex>
#include <optional>

#include "common/backends/backend.hpp"

namespace ddp {
namespace {

/// There is nothing to wait for: an operation is complete when its call returns.
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

template <typename Ours, typename Theirs>
std::optional<Ours> find_index(const Theirs& all, typename Theirs::value_type wanted) {
  const auto found = std::ranges::find(all, wanted);
  return found == all.end() ? std::nullopt : std::optional(static_cast<Ours>(found - all.begin()));
}

std::optional<DType> find_dtype(at::ScalarType type) {
  return find_index<DType>(kScalarTypes, type);
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

/// Contiguous tensors on the host in place of some that are to be written.
class Outputs {
 public:
  void add(const at::Tensor& tensor) {
    tensors_.push_back(tensor);
    hosted_.push_back(tensor.is_cpu() && tensor.is_contiguous()
                          ? tensor
                          : at::empty(tensor.sizes(), tensor.options().device(at::kCPU)));
    pointers_.push_back(hosted_.back().data_ptr());
    counts_.push_back(Elements(tensor).count);
  }
  void* const* pointers() const { return pointers_.data(); }
  const size_t* counts() const { return counts_.data(); }
  const at::Tensor& first() const { return hosted_.front(); }
  void copy_back() const {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (!hosted_[i].is_same(tensors_[i])) {
        tensors_[i].copy_(hosted_[i]);
      }
    }
  }

 private:
  std::vector<at::Tensor> tensors_;
  std::vector<at::Tensor> hosted_;
  std::vector<void*> pointers_;
  std::vector<size_t> counts_;
};

class HostBackend final : public c10d::Backend, public NoticesLostRanks {
 public:
  HostBackend(std::string name, std::unique_ptr<Communicator> communicator, GpuTensors gpu_tensors)
      : c10d::Backend(communicator->rank(), communicator->world_size()),
        name_(std::move(name)),
        prefix_("--backend " + name_ + ": "),
        gpu_tensors_(gpu_tensors),
        communicator_(std::move(communicator)) {}

  const std::string getBackendName() const override { return name_; }

  void shutdown() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    done_.reset();  // whose results may be memory of the communicator
    if (communicator_ != nullptr) {
      communicator_->close();
      communicator_.reset();
    }
  }

  std::string lost_rank() const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return communicator_ == nullptr ? "" : communicator_->lost_rank();
  }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
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
    return done(c10d::OpType::ALLREDUCE, tensors);
  }

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override {
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
    return done(c10d::OpType::BROADCAST, tensors);
  }

  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions&) override {
    const at::Tensor& input = only("all_gather", inputs);
    TORCH_CHECK(outputs.size() == 1 && outputs[0].size() == static_cast<size_t>(size_), prefix_,
                "Expected all_gather into ", size_, " tensors, got ",
                outputs.empty() ? 0 : outputs[0].size());
    Outputs places;  // ranks may give parts of different sizes
    for (int r = 0; r < size_; ++r) {
      const at::Tensor& output = outputs[0][static_cast<size_t>(r)];
      check_like("all_gather", input, output, /*any_size=*/r != rank_);
      places.add(output);
    }
    const at::Tensor data = on_host(input);
    const std::lock_guard<std::mutex> lock(mutex_);
    communicator().all_gather(data.const_data_ptr(), places.pointers(), places.counts(),
                              Elements(data).dtype);
    places.copy_back();
    return done(c10d::OpType::ALLGATHER, outputs[0]);
  }

  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override {
    TORCH_CHECK(output.is_contiguous() && output.numel() == input.numel() * size_, prefix_,
                "Expected all_gather into one contiguous tensor of ", input.numel() * size_,
                " elements, got ", output.numel());
    std::vector<std::vector<at::Tensor>> outputs{output.view({size_, input.numel()}).unbind()};
    std::vector<at::Tensor> inputs{input};
    allgather(outputs, inputs, options);
    const std::lock_guard<std::mutex> lock(mutex_);
    return done(c10d::OpType::_ALLGATHER_BASE, {output});
  }

  c10::intrusive_ptr<c10d::Work> gather(std::vector<std::vector<at::Tensor>>& outputs,
                                        std::vector<at::Tensor>& inputs,
                                        const c10d::GatherOptions& options) override {
    const at::Tensor& input = only("gather", inputs);
    const std::vector<at::Tensor> wanted = outputs.empty() ? std::vector<at::Tensor>{} : outputs[0];
    const size_t expected = options.rootRank == rank_ ? static_cast<size_t>(size_) : 0;
    TORCH_CHECK(options.rootRank >= 0 && options.rootRank < size_ && wanted.size() == expected,
                prefix_, "Expected gather to rank 0 to ", size_ - 1, " into ", expected,
                " tensors, got rank ", options.rootRank, " and ", wanted.size());
    Outputs places;
    for (const at::Tensor& output : wanted) {
      check_like("gather", input, output);
      places.add(output);
    }
    const at::Tensor data = on_host(input);
    const Elements elements(data);
    const std::lock_guard<std::mutex> lock(mutex_);
    communicator().gather(data.const_data_ptr(), places.pointers(), elements.count, elements.dtype,
                          static_cast<int>(options.rootRank));
    places.copy_back();
    return done(c10d::OpType::GATHER, wanted);
  }

  c10::intrusive_ptr<c10d::Work> reduce_scatter(
      std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
      const c10d::ReduceScatterOptions& options) override {
    const at::Tensor& output = only("reduce_scatter", outputs);
    TORCH_CHECK(inputs.size() == 1 && inputs[0].size() == static_cast<size_t>(size_), prefix_,
                "Expected reduce_scatter of ", size_, " tensors, got ",
                inputs.empty() ? 0 : inputs[0].size());
    const std::lock_guard<std::mutex> lock(mutex_);
    const Reduction reduction = reducible("reduce_scatter", output, options.reduceOp);
    std::vector<at::Tensor> data;
    std::vector<const void*> pointers;
    std::vector<size_t> counts;  // ranks may get parts of different sizes
    for (int r = 0; r < size_; ++r) {
      const at::Tensor& input = inputs[0][static_cast<size_t>(r)];
      check_like("reduce_scatter", output, input, /*any_size=*/r != rank_);
      pointers.push_back(data.emplace_back(on_host(input)).const_data_ptr());
      counts.push_back(static_cast<size_t>(input.numel()));
    }
    Outputs place;
    place.add(output);
    communicator().reduce_scatter(pointers.data(), place.pointers()[0], counts.data(),
                                  reduction.dtype, reduction.op);
    if (reduction.divides) {
      place.first().div_(size_);
    }
    place.copy_back();
    return done(c10d::OpType::REDUCE_SCATTER, outputs);
  }

  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override {
    TORCH_CHECK(input.numel() == output.numel() * size_, prefix_, "Expected reduce_scatter of ",
                output.numel() * size_, " elements, got ", input.numel());
    std::vector<std::vector<at::Tensor>> inputs{
        input.contiguous().view({size_, output.numel()}).unbind()};
    std::vector<at::Tensor> outputs{output};
    return reduce_scatter(outputs, inputs, options);
  }

  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions&) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    communicator().barrier();
    return done(c10d::OpType::BARRIER, {});
  }

  /// Collective. A tensor of `size` elements that allreduce() works on without a copy, or an
  /// ordinary one if the communicator has none.
  at::Tensor allocateTensor(long size, at::TensorOptions options) override {
    TORCH_CHECK(options.device().is_cpu() && size >= 0, prefix_,
                "Expected to allocate elements on the CPU, got ", size, " on ", options.device());
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
  /// What to ask of the communicator, and whether its result is a sum that is to be divided.
  struct Reduction {
    DType dtype;
    ReduceOp op;
    bool divides;
  };

  Communicator& communicator() {
    TORCH_CHECK(communicator_ != nullptr, prefix_,
                "Expected a call before the process group was destroyed, got one after");
    return *communicator_;
  }

  /// The same one again if nobody has kept it, so that a step allocates nothing. It keeps `results`
  /// until the next operation. Under the lock.
  c10::intrusive_ptr<c10d::Work> done(c10d::OpType type, const std::vector<at::Tensor>& results) {
    if (done_.use_count() != 1) {
      done_ = c10::make_intrusive<DoneWork>(rank_);
    }
    done_->renew(type, results);
    return done_;
  }

  void check_tensor(const char* operation, const at::Tensor& tensor) const {
    const bool staged = gpu_tensors_ != GpuTensors::kRefused && !tensor.is_cpu();
    TORCH_CHECK((tensor.device().is_cpu() || staged) && tensor.layout() == at::kStrided, prefix_,
                "Expected ", operation, " of a dense CPU tensor, got ", tensor.toString(), " on ",
                tensor.device());
  }

  const at::Tensor& only(const char* operation, const std::vector<at::Tensor>& tensors) const {
    TORCH_CHECK(tensors.size() == 1, prefix_, "Expected ", operation, " of 1 tensor, got ",
                tensors.size());
    check_tensor(operation, tensors[0]);
    return tensors[0];
  }

  void check_like(const char* operation, const at::Tensor& tensor, const at::Tensor& other,
                  bool any_size = false) const {
    check_tensor(operation, other);
    TORCH_CHECK((any_size || other.numel() == tensor.numel()) &&
                    other.scalar_type() == tensor.scalar_type(),
                prefix_, "Expected ", operation, " of tensors with ", tensor.numel(), " ",
                tensor.dtype(), ", got ", other.numel(), " ", other.dtype());
  }

  /// Memory that the communicator can sum in: the tensor itself, or a copy on the host.
  at::Tensor summable(const at::Tensor& tensor) const {
    // Other types have sums of our own making, for memory of the host.
    const bool is_direct =
        gpu_tensors_ == GpuTensors::kDirect && !tensor.is_cpu() && tensor.is_contiguous() &&
        (tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble);
    if (!is_direct) {
      return on_host(tensor);
    }
    // The communicator knows nothing of streams: what is to be summed must be there.
    c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device()).synchronize();
    return tensor;
  }

  Reduction reducible(const char* operation, const at::Tensor& tensor,
                      const c10d::ReduceOp& reduce_op) {
    const auto kind = static_cast<c10d::ReduceOp::RedOpType>(reduce_op);
    const std::optional<ReduceOp> op = find_index<ReduceOp>(kReduceOps, kind);
    TORCH_CHECK(op.has_value(), prefix_, "Expected ", operation,
                " with SUM, AVG, PRODUCT, MIN or MAX, got c10d::ReduceOp ", static_cast<int>(kind));
    const std::optional<DType> dtype = find_dtype(tensor.scalar_type());
    TORCH_CHECK(dtype.has_value(), prefix_, "Expected ", operation,
                " of float, double, half, bfloat16, int32, int64, int8, uint8 or bool, got ",
                tensor.dtype());
    TORCH_CHECK(is_supported(*dtype, *op), prefix_, "Expected ", operation, " ", to_string(*op),
                " of floating point, got ", to_string(*dtype));
    const bool divides = *op == ReduceOp::kAverage && !communicator().has_average();
    return {*dtype, divides ? ReduceOp::kSum : *op, divides};
  }

  std::string name_;
  std::string prefix_;  // of messages
  GpuTensors gpu_tensors_;
  std::unique_ptr<Communicator> communicator_;  // none after shutdown()
  mutable std::mutex mutex_;
  c10::intrusive_ptr<DoneWork> done_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_host_backend(const std::string& name,
                                                    std::unique_ptr<Communicator> communicator,
                                                    GpuTensors gpu_tensors) {
  return c10::make_intrusive<HostBackend>(name, std::move(communicator), gpu_tensors);
}

}  // namespace ddp
