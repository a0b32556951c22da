#include "common/backends/hierarchical.hpp"

#include <algorithm>
#include <cstring>

#include "common/backends/shm/shm_kernels.hpp"
#include "common/base/exit_codes.hpp"

namespace ddp {
namespace {

/// Of each rank, in gathers and scatters, which go through a buffer.
constexpr size_t kPieceBytes = size_t{1} << 20;

at::ScalarType scalar_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return at::kFloat;
    case DType::kFloat64:
      return at::kDouble;
    case DType::kFloat16:
      return at::kHalf;
    case DType::kBFloat16:
      return at::kBFloat16;
    case DType::kInt32:
      return at::kInt;
    case DType::kInt64:
      return at::kLong;
    case DType::kInt8:
      return at::kChar;
    case DType::kUint8:
    case DType::kBool:  // Gloo would add 1 and 1
      return at::kByte;
  }
  return at::kByte;
}

c10d::ReduceOp reduce_op(DType dtype, ReduceOp op) {
  const bool is_truth = dtype == DType::kBool;
  switch (op) {
    case ReduceOp::kSum:
      return is_truth ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM;
    case ReduceOp::kProduct:
      return is_truth ? c10d::ReduceOp::MIN : c10d::ReduceOp::PRODUCT;
    case ReduceOp::kMin:
      return c10d::ReduceOp::MIN;
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
    case ReduceOp::kAverage:
      break;
  }
  throw Error(ExitCode::kTrainingFailed, "--backend hierarchical: got an average, expected a sum");
}

bool may_be_nan(DType dtype) {
  return is_supported(dtype, ReduceOp::kAverage);
}

at::Tensor as_tensor(void* data, size_t count, at::ScalarType type) {
  return at::from_blob(data, {static_cast<int64_t>(count)}, type);
}

at::Tensor as_bytes(void* data, size_t bytes) {
  return as_tensor(data, bytes, at::kByte);
}

/// A rank that waits for its leader, who waits for another host, must not be the first to give up:
/// it would blame the leader.
class Patience {
 public:
  explicit Patience(shm::Communicator& local) : local_(local), timeout_(local.timeout()) {
    constexpr std::chrono::milliseconds kMoreThanLeader{5000};
    local_.set_timeout(timeout_ + kMoreThanLeader);
  }
  ~Patience() { local_.set_timeout(timeout_); }
  Patience(const Patience&) = delete;
  Patience& operator=(const Patience&) = delete;

 private:
  shm::Communicator& local_;
  std::chrono::milliseconds timeout_;
};

}  // namespace

HierarchicalCommunicator::HierarchicalCommunicator(int rank, int world_size, Topology topology,
                                                   std::unique_ptr<shm::Communicator> local,
                                                   c10::intrusive_ptr<c10d::Backend> leaders)
    : rank_(rank),
      world_size_(world_size),
      topology_(std::move(topology)),
      local_(std::move(local)),
      leaders_(std::move(leaders)) {}

template <typename Body>
void HierarchicalCommunicator::between_hosts(const char* operation, const Body& body) {
  if (leaders_ == nullptr) {
    return;
  }
  try {
    body()->wait();
  } catch (const c10::Error& error) {
    throw Error(ExitCode::kTrainingFailed,
                std::string("--backend hierarchical: ") + operation +
                    " between the hosts: " + error.what_without_backtrace());
  } catch (const std::exception& error) {
    throw Error(ExitCode::kTrainingFailed, std::string("--backend hierarchical: ") + operation +
                                               " between the hosts: " + error.what());
  }
}

void HierarchicalCommunicator::barrier() {
  ++sequence_;
  local_->barrier();
  between_hosts("barrier", [&] { return leaders_->barrier(); });
  hand_down(nullptr, 0, DType::kUint8);
}

void HierarchicalCommunicator::hand_down(void* data, size_t count, DType dtype) {
  const Patience patience(*local_);
  local_->broadcast(data, count, dtype, 0);
}

void HierarchicalCommunicator::all_reduce(void* data, size_t count, DType dtype, ReduceOp op) {
  ++sequence_;
  reduce_everywhere(data, count, dtype, op);
}

void HierarchicalCommunicator::reduce_everywhere(void* data, size_t count, DType dtype,
                                                 ReduceOp op) {
  local_->all_reduce(data, count, dtype, op);
  if (topology_.hosts.size() > 1) {
    reduce_between_hosts(data, count, dtype, op);
    hand_down(data, count, dtype);
  }
}

void HierarchicalCommunicator::reduce_between_hosts(void* data, size_t count, DType dtype,
                                                    ReduceOp op) {
  if (count == 0) {
    return;
  }
  if (may_be_nan(dtype) && (op == ReduceOp::kMin || op == ReduceOp::kMax)) {
    compare_between_hosts(data, count, dtype, op);
    return;
  }
  between_hosts("all_reduce", [&] {
    std::vector<at::Tensor> tensors{as_tensor(data, count, scalar_type(dtype))};
    c10d::AllreduceOptions options;
    options.reduceOp = reduce_op(dtype, op);
    return leaders_->allreduce(tensors, options);
  });
}

/// Gloo's minimum and maximum of NaN and a number depend on the order.
void HierarchicalCommunicator::compare_between_hosts(void* data, size_t count, DType dtype,
                                                     ReduceOp op) {
  const size_t bytes = count * element_bytes(dtype);
  std::vector<std::vector<at::Tensor>> all(1);
  std::vector<const void*> inputs;
  for (size_t host = 0; host < topology_.hosts.size(); ++host) {
    all[0].push_back(at::empty({static_cast<int64_t>(bytes)}, at::kByte));
    inputs.push_back(all[0].back().const_data_ptr());
  }
  between_hosts("all_gather", [&] {
    std::vector<at::Tensor> own{as_bytes(data, bytes)};
    return leaders_->allgather(all, own);
  });
  if (leaders_ == nullptr) {
    return;
  }
  // A pair at a time: the kernels take as many inputs as one host may have ranks.
  std::memcpy(data, inputs[0], bytes);
  for (size_t host = 1; host < inputs.size(); ++host) {
    const void* const pair[] = {data, inputs[host]};
    shm::kernels().reduce({.dtype = dtype,
                           .op = op,
                           .count = count,
                           .inputs = pair,
                           .input_count = 2,
                           .outputs = &data,
                           .output_count = 1});
  }
}

void HierarchicalCommunicator::broadcast(void* data, size_t count, DType dtype, int root) {
  ++sequence_;
  int root_host = 0;
  int root_local = 0;
  for (size_t host = 0; host < topology_.hosts.size(); ++host) {
    const std::vector<int>& ranks = topology_.hosts[host];
    const auto found = std::find(ranks.begin(), ranks.end(), root);
    if (found != ranks.end()) {
      root_host = static_cast<int>(host);
      root_local = static_cast<int>(found - ranks.begin());
    }
  }
  const bool is_here = root_host == topology_.host;
  if (is_here) {
    local_->broadcast(data, count, dtype, root_local);
  }
  if (count > 0) {
    between_hosts("broadcast", [&] {
      std::vector<at::Tensor> tensors{as_bytes(data, count * element_bytes(dtype))};
      c10d::BroadcastOptions options;
      options.rootRank = root_host;
      return leaders_->broadcast(tensors, options);
    });
  }
  // On the root's host nothing is left to hand down, but the others must not be in the next
  // collective, where they would wait for their leader with less patience.
  hand_down(data, is_here ? 0 : count, dtype);
}

void HierarchicalCommunicator::all_gather(const void* input, void* const* outputs, size_t count,
                                          DType dtype) {
  ++sequence_;
  collect(input, outputs, count, dtype, /*wanted=*/true);
}

void HierarchicalCommunicator::gather(const void* input, void* const* outputs, size_t count,
                                      DType dtype, int root) {
  ++sequence_;
  collect(input, outputs, count, dtype, /*wanted=*/rank_ == root);
}

void HierarchicalCommunicator::collect(const void* input, void* const* outputs, size_t count,
                                       DType dtype, bool wanted) {
  const size_t hosts = topology_.hosts.size();
  size_t places = 0;  // of every host, also of those with fewer ranks
  for (const std::vector<int>& ranks : topology_.hosts) {
    places = std::max(places, ranks.size());
  }
  const size_t bytes = count * element_bytes(dtype);
  for (size_t begin = 0; begin < bytes; begin += kPieceBytes) {
    const size_t piece = std::min(kPieceBytes, bytes - begin);
    buffer_.resize(hosts * places * piece);
    const auto place = [&](size_t host, size_t local) {
      return buffer_.data() + (host * places + local) * piece;
    };
    const auto own_host = static_cast<size_t>(topology_.host);
    std::vector<void*> own;
    for (size_t local = 0; local < topology_.hosts[own_host].size(); ++local) {
      own.push_back(place(own_host, local));
    }
    local_->gather(static_cast<const std::byte*>(input) + begin, own.data(), piece, DType::kUint8,
                   0);
    between_hosts("all_gather", [&] {
      std::vector<at::Tensor> ours{as_bytes(place(own_host, 0), places * piece).clone()};
      std::vector<std::vector<at::Tensor>> all(1);
      for (size_t host = 0; host < hosts; ++host) {
        all[0].push_back(as_bytes(place(host, 0), places * piece));
      }
      return leaders_->allgather(all, ours);
    });
    hand_down(buffer_.data(), buffer_.size(), DType::kUint8);
    for (size_t host = 0; host < hosts && wanted; ++host) {
      for (size_t local = 0; local < topology_.hosts[host].size(); ++local) {
        const auto from = static_cast<size_t>(topology_.hosts[host][local]);
        std::memcpy(static_cast<std::byte*>(outputs[from]) + begin, place(host, local), piece);
      }
    }
  }
}

void HierarchicalCommunicator::reduce_scatter(const void* const* inputs, void* output, size_t count,
                                              DType dtype, ReduceOp op) {
  ++sequence_;
  const auto ranks = static_cast<size_t>(world_size_);
  const size_t unit = element_bytes(dtype);
  const size_t most = kPieceBytes / unit;
  for (size_t begin = 0; begin < count; begin += most) {
    const size_t piece = std::min(most, count - begin);
    buffer_.resize(ranks * piece * unit);
    for (size_t r = 0; r < ranks; ++r) {
      std::memcpy(buffer_.data() + r * piece * unit,
                  static_cast<const std::byte*>(inputs[r]) + begin * unit, piece * unit);
    }
    reduce_everywhere(buffer_.data(), ranks * piece, dtype, op);
    std::memcpy(static_cast<std::byte*>(output) + begin * unit,
                buffer_.data() + static_cast<size_t>(rank_) * piece * unit, piece * unit);
  }
}

void HierarchicalCommunicator::close() {
  local_->close();
  if (leaders_ != nullptr) {
    leaders_->shutdown();
  }
}

}  // namespace ddp
