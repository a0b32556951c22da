#include "common/parallel/process_group.hpp"

#include <ATen/record_function.h>
#include <fmt/ranges.h>

#include <sstream>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "common/backends/gloo.hpp"
#include "common/backends/host_backend.hpp"
#include "common/backends/registry.hpp"
#include "common/base/patience.hpp"
#include "common/base/process_exit.hpp"
#include "common/device/device.hpp"

namespace ddp {
namespace {

/// Backends ignore strides, and that elements are lazily conjugated or negated.
bool is_plain(const torch::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

/// The tensor itself if it is plain, else a copy.
torch::Tensor plain(const torch::Tensor& tensor) {
  return is_plain(tensor) ? tensor : tensor.clone(at::MemoryFormat::Contiguous);
}

void expect_plain(const char* what, const torch::Tensor& tensor) {
  TORCH_CHECK(is_plain(tensor), "Expected ", what, " a contiguous tensor, got strides ",
              tensor.strides(), tensor.is_contiguous() ? " and a lazy conjugate" : "");
}

/// Calls `work` with `tensor`, or with a contiguous copy that is copied back.
template <typename Collective>
void on_contiguous(const torch::Tensor& tensor, const Collective& work) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor whole = plain(tensor);
  work(whole);
  if (!whole.is_same(tensor)) {
    tensor.copy_(whole);
  }
}

/// For data that are only moved, because backends lack some types.
torch::Tensor bytes_of(const torch::Tensor& tensor) {
  const torch::NoGradGuard no_grad;
  return tensor.view(-1).view(torch::kByte);
}

/// Key of the store at which ranks say that they have stopped, see Note [Stops].
std::string stop_key(Stop stop) {
  return fmt::format("stop/{}", stop);
}

/// @param failed_backwards number of the next one
/// @return "rank 1 has ended its training, this rank calls", if a rank has stopped before this
/// collective; else ""
std::string stopped_rank(c10d::Store& store, Stop failed_backwards, uint64_t collective) {
  try {
    for (const Stop stop : {failed_backwards, kEnded}) {
      if (store.check({stop_key(stop)})) {
        uint64_t count = 0;
        int rank = 0;
        std::istringstream(store.get_to_str(stop_key(stop))) >> count >> rank;
        if (count < collective) {
          return fmt::format("rank {} {}", rank, how_stopped(stop));
        }
      }
    }
  } catch (const c10::Error&) {  // the store is gone: then connections break, too
  }
  return "";
}

}  // namespace

ProcessGroup::ProcessGroup(LaunchEnvironment launch, c10::intrusive_ptr<c10d::Store> store,
                           const torch::Device& device, Connect connect, bool all_reduces,
                           std::shared_ptr<CollectiveLog> log)
    : launch_(std::move(launch)),
      store_(std::move(store)),
      device_(device),
      connect_(std::move(connect)),
      group_(c10::make_intrusive<c10d::ProcessGroup>(store_, rank(), world_size())),
      board_(store_, rank(), world_size(), store_->getTimeout()),
      log_(std::move(log)),
      all_reduces_(all_reduces) {
  attach_backend(*group_, device_, connect_(store_, rank(), world_size()));
  traits_ = traits_of(backend_name());
  limit_ = traits_.waits_in_slices ? kNoLimit : c10d::kUnsetTimeout;
}

ProcessGroup::~ProcessGroup() {
  if (is_subgroup_ && !device_.is_cpu() && std::uncaught_exceptions() == 0) {
    try {  // else NCCL's destructor aborts running collectives
      current_stream(device_).synchronize();
      group_->getDefaultBackend()->shutdown();
    } catch (const std::exception&) {  // the device's next call throws it again
    }
  }
}

std::unique_ptr<ProcessGroup> ProcessGroup::subgroup(const std::vector<int>& ranks) const {
  const int64_t number = store_->add(fmt::format("groups/{}", rank()), 1);  // same on all ranks
  const std::string listed = fmt::format("{}", fmt::join(ranks, " "));
  board_.same("ranks of a group", listed);
  for (auto member = ranks.begin(); member != ranks.end(); ++member) {
    if (*member < 0 || *member >= world_size() ||
        std::find(ranks.begin(), member, *member) != member) {
      refuse("ranks of a group: got {}, expected each of 0 to {} at most once", listed,
             world_size() - 1);
    }
  }
  if (!traits_.has_subgroups) {
    refuse(
        "ranks of a group: got --backend {}, which connects all ranks of its world, expected shm, "
        "gloo or nccl",
        backend_name());
  }
  if (traits_.has_watchdog) {
    explain_thread_errors({});  // it would report ranks outside of a group as late
  }
  const auto number_of = [&ranks](int rank) {  // in the group; -1: none
    const auto found = std::ranges::find(ranks, rank);
    return found == ranks.end() ? -1 : static_cast<int>(found - ranks.begin());
  };
  LaunchEnvironment launch = launch_;
  launch.rank = number_of(rank());
  launch.world_size = static_cast<int>(ranks.size());
  launch.store.server = number_of(launch_.store.server);
  if (launch.rank < 0) {
    return nullptr;
  }
  const auto store =
      c10::make_intrusive<c10d::PrefixStore>(fmt::format("group/{}", number), store_);
  auto subgroup = std::make_unique<ProcessGroup>(launch, store, device_, connect_, all_reduces_);
  subgroup->is_subgroup_ = true;
  return subgroup;
}

template <typename Collective>
ProcessGroup::Work ProcessGroup::start(const char* kind, const torch::Tensor& tensor,
                                       const CallSite& site, const Collective& collective) const {
  RECORD_USER_SCOPE(kind);  // for --trace
  log_->begin(kind, tensor, site);
  try {
    Work work = collective(*group_->getDefaultBackend());
    log_->started(work.get());
    return work;
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}; {}", error.what(), log_->last_call()));
  }
}

void ProcessGroup::expect_rows(const char* what, const torch::Tensor& rows) const {
  TORCH_CHECK(rows.dim() > 0 && rows.size(0) == world_size(), "Expected ", what, " ", world_size(),
              " rows, one for each rank, got a tensor of ", rows.sizes());
  expect_plain(what, rows);
}

void ProcessGroup::all_reduce(const torch::Tensor& tensor, c10d::ReduceOp::RedOpType op,
                              const CallSite& site) const {
  on_contiguous(tensor, [&](const torch::Tensor& whole) {
    std::vector<torch::Tensor> one{whole};
    wait(start_all_reduce(one, op, site));
  });
}

ProcessGroup::Work ProcessGroup::start_all_reduce(std::vector<torch::Tensor>& tensor,
                                                  c10d::ReduceOp::RedOpType op,
                                                  const CallSite& site) const {
  expect_plain("all_reduce of", tensor.front());
  const bool averages = op == c10d::ReduceOp::AVG;
  TORCH_CHECK(!averages || tensor.front().is_floating_point() || tensor.front().is_complex(),
              "Expected all_reduce with AVG of floating-point numbers, got ",
              tensor.front().dtype());
  if (!all_reduces_) {
    return {};
  }
  if (averages && !traits_.has_average) {
    const torch::NoGradGuard no_grad;
    tensor.front().div_(world_size());
    op = c10d::ReduceOp::SUM;
  }
  return start("all_reduce", tensor.front(), site, [&](c10d::Backend& backend) {
    return backend.allreduce(tensor, {.reduceOp = op, .timeout = limit_});
  });
}

void ProcessGroup::wait(const Work& work) const {
  if (!work) {
    return;
  }
  if (!traits_.waits_in_slices) {
    work->wait();
    return;
  }
  bool store_answers = true;
  const auto stopped = [&]() -> std::string {
    const auto ask = [store = store_, next = failed_backwards_ + 1, call = log_->number_of(*work)] {
      return stopped_rank(*store, next, call);
    };
    try {
      const auto answer = store_answers ? ask_in_time(ask, std::chrono::seconds(1)) : std::nullopt;
      store_answers = answer.has_value();
      return answer.value_or("");
    } catch (const std::system_error&) {  // no thread can be started
      return "";
    }
  };
  try {
    wait_over_gloo(*group_->getDefaultBackend(), *work, store_->getTimeout(),
                   [&] { return !stopped().empty(); });
  } catch (const std::exception& error) {
    std::string what = stopped();
    if (what.empty()) {
      const bool timed_out = dynamic_cast<const GlooTimeout*>(&error) != nullptr;
      const auto* const from_torch = dynamic_cast<const c10::Error*>(&error);
      what = from_torch == nullptr ? error.what() : from_torch->what_without_backtrace();
      if (const auto late = late_ranks(store_, launch_, timed_out); !late.empty()) {
        what = fmt::format("rank {} did not arrive within {} s, expected all {} ranks",
                           fmt::join(late, ", "), in_seconds(store_->getTimeout()), world_size());
        if (rank() == launch_.store.server) {
          at_train_end(wait_for_launcher);  // other ranks may still read the store
        }
      }
      what += ":";
    }
    throw Error(ExitCode::kTrainingFailed, what + " " + log_->of(*work));
  }
}

void ProcessGroup::end_training() const {
  at_store("destroy_process_group", [this] { stop(kEnded); });
}

void ProcessGroup::stop(Stop stop) const {
  store_->set(stop_key(stop), fmt::format("{} {}", log_->count(), rank()));
  stop_host_backend(*group_->getDefaultBackend(), stop);
}

void ProcessGroup::meet_after_failed_backward() const {
  const std::string what = "the end of a backward that failed";
  try {
    at_store(what, [&] {
      stop(++failed_backwards_);
      board_.gather("failed backward", "", what);
    });
  } catch (const TransientError& error) {
    throw Error(
        ExitCode::kTrainingFailed,
        fmt::format("the last backward failed on this rank, and not on all: {}", error.what()));
  }
}

ProcessGroup::Work ProcessGroup::start_broadcast(const torch::Tensor& tensor, int root,
                                                 const CallSite& site) const {
  expect_plain("broadcast of", tensor);
  std::vector<torch::Tensor> one{bytes_of(tensor)};
  return start("broadcast", tensor, site, [&](c10d::Backend& backend) {
    return backend.broadcast(one, {.rootRank = root, .timeout = limit_});
  });
}

void ProcessGroup::broadcast(const torch::Tensor& tensor, int root, const CallSite& site) const {
  on_contiguous(tensor, [&](const torch::Tensor& whole) {
    const int64_t piece = traits_.piece_bytes / static_cast<int64_t>(whole.element_size());
    std::vector<Work> works;
    for (const torch::Tensor& part : whole.view(-1).split(std::min(piece, whole.numel()))) {
      works.push_back(start_broadcast(part, root, site));
    }
    for (const Work& work : works) {
      wait(work);
    }
  });
}

ProcessGroup::Work ProcessGroup::start_all_gather(const torch::Tensor& rows,
                                                  const torch::Tensor& tensor,
                                                  const CallSite& site) const {
  expect_plain("all_gather of", tensor);
  expect_rows("all_gather into", rows);
  TORCH_CHECK(rows.numel() == tensor.numel() * world_size() && rows.dtype() == tensor.dtype(),
              "Expected all_gather into rows of ", tensor.numel(), " ", tensor.dtype(), ", got ",
              rows.sizes(), " ", rows.dtype());
  std::vector<torch::Tensor> input{bytes_of(tensor)};
  std::vector<std::vector<torch::Tensor>> output{
      bytes_of(rows).view({world_size(), static_cast<int64_t>(tensor.nbytes())}).unbind()};
  return start("all_gather", tensor, site, [&](c10d::Backend& backend) {
    return backend.allgather(output, input, {.timeout = limit_});
  });
}

torch::Tensor ProcessGroup::all_gather(const torch::Tensor& tensor, const CallSite& site) const {
  const torch::NoGradGuard no_grad;
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes.insert(sizes.begin(), world_size());
  const torch::Tensor rows = torch::empty(sizes, tensor.options());
  wait(start_all_gather(rows, plain(tensor), site));
  return rows;
}

torch::Tensor ProcessGroup::reduce_scatter(const torch::Tensor& input, c10d::ReduceOp::RedOpType op,
                                           const CallSite& site) const {
  const torch::NoGradGuard no_grad;
  const torch::Tensor rows = input.clone(at::MemoryFormat::Contiguous);
  wait(start_reduce_scatter(rows, op, site));
  return rows[rank()].clone();
}

ProcessGroup::Work ProcessGroup::start_reduce_scatter(const torch::Tensor& rows,
                                                      c10d::ReduceOp::RedOpType op,
                                                      const CallSite& site) const {
  expect_rows("reduce_scatter of", rows);
  if (device_.is_cpu()) {  // there it is an all-reduce, in Gloo too
    std::vector<torch::Tensor> one{rows};
    return start_all_reduce(one, op, site);
  }
  torch::Tensor own = rows[rank()];
  torch::Tensor all = rows;
  return start("reduce_scatter", rows, site, [&](c10d::Backend& backend) {
    return backend._reduce_scatter_base(own, all, {.reduceOp = op});
  });
}

torch::Tensor ProcessGroup::all_to_all(const torch::Tensor& input, const CallSite& site) const {
  const torch::NoGradGuard no_grad;
  const torch::Tensor rows = plain(input);
  expect_rows("all_to_all of", rows);
  if (!traits_.has_all_to_all) {
    return all_gather(rows, site).select(1, rank()).contiguous();
  }
  const torch::Tensor output = torch::empty_like(rows);
  torch::Tensor from = bytes_of(rows);
  torch::Tensor to = bytes_of(output);
  std::vector<int64_t> equal_parts;
  wait(start("all_to_all", rows, site, [&](c10d::Backend& backend) {
    return backend.alltoall_base(to, from, equal_parts, equal_parts, {.timeout = limit_});
  }));
  return output;
}

// Not by wait(), which waits for Gloo's work in short intervals: a send gives its message up at the
// end of an interval, and Gloo's own clock runs on while a job is suspended.
void ProcessGroup::pass(bool sends, const torch::Tensor& tensor, int peer,
                        const CallSite& site) const {
  const char* const kind = sends ? "send" : "recv";
  RECORD_USER_SCOPE(kind);
  std::vector<torch::Tensor> one{bytes_of(tensor)};
  try {
    const auto backend = group_->getDefaultBackend();
    const Work work = sends ? backend->send(one, peer, /*tag=*/0) : backend->recv(one, peer, 0);
    if (!traits_.waits_in_slices) {
      work->wait();
    } else if (!ask_in_time([work] { return work->wait(kNoLimit); }, store_->getTimeout())) {
      work->abort();
      throw std::runtime_error(
          fmt::format("it did not end within {} s", in_seconds(store_->getTimeout())));
    }
  } catch (const c10::Error&) {  // a wrong argument
    throw;
  } catch (const std::exception& error) {
    throw Error(ExitCode::kTrainingFailed,
                fmt::format("{}: {} of {} {}, rank {}, {}", error.what(), kind, tensor.numel(),
                            c10::getDtypeNames(tensor.scalar_type()).first, peer, site.text()));
  }
}

void ProcessGroup::send(const torch::Tensor& tensor, int to, const CallSite& site) const {
  pass(/*sends=*/true, plain(tensor.detach()), to, site);
}

void ProcessGroup::recv(const torch::Tensor& tensor, int from, const CallSite& site) const {
  on_contiguous(tensor,
                [&](const torch::Tensor& whole) { pass(/*sends=*/false, whole, from, site); });
}

void ProcessGroup::barrier(const CallSite& site) const {
  // Not by c10d's barrier: over NCCL it would guess the device.
  std::vector<torch::Tensor> one{torch::zeros({1}, device_)};
  wait(start("barrier", one.front(), site,
             [&](c10d::Backend& backend) { return backend.allreduce(one, {.timeout = limit_}); }));
  if (!device_.is_cpu()) {  // wait() blocks only the device's stream
    current_stream(device_).synchronize();
  }
}

torch::Tensor ProcessGroup::allocate(int64_t numel, torch::ScalarType dtype) const {
  const torch::TensorOptions options = torch::TensorOptions(dtype).device(device_);
  const auto backend = group_->getDefaultBackend();
  return device_.is_cpu() && backend->supportsTensorAlloc(device_.index())
             ? backend->allocateTensor(numel, options)
             : torch::empty({numel}, options);
}

}  // namespace ddp
