#include "common/parallel/process_group.hpp"

#include <ATen/record_function.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Logging.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <sstream>
#include <system_error>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "common/backends/gloo.hpp"
#include "common/backends/host_backend.hpp"
#include "common/backends/registry.hpp"
#include "common/base/patience.hpp"
#include "common/base/process_exit.hpp"
#include "common/base/refuse.hpp"
#include "common/base/seconds_since.hpp"
#include "common/device/hardware.hpp"
#include "common/launch/stop_request.hpp"
#include "common/meet/address.hpp"
#include "common/meet/store.hpp"
#include "common/model/flat_parameters.hpp"
#include "common/parallel/collective_log.hpp"

namespace ddp {
namespace {

/// Settings that all ranks must share, for ProcessGroupOptions::settings.
std::string shared_settings(const Options& options, int world_size) {
  return fmt::format(
      "program {}\n--total-epochs {}\n--save-every {}\n--global-batch {}\n--optimizer {}\n--lr {}\n"
      "--seed {}\n--deterministic {}\n--dataset {}\n--dataset-size {}\n--hidden {}\n--layers {}\n"
      "--batch-size auto {}\n--backend {}\n--bucket-mib {}\n--resume {}\n--metrics "
      "{}\n--no-communication {}\n",
      options.program, options.total_epochs, options.save_every,
      options.find_batch && !options.global_batch
          ? "as found"
          : std::to_string(global_batch_of(options, world_size)),
      options.optimizer,
      options.learning_rate ? fmt::format("{}", *options.learning_rate) : "the optimizer's own",
      options.seed, options.deterministic,
      std::filesystem::path(options.dataset).filename().native(), options.dataset_size,
      fmt::join(options.hidden, ","), fmt::join(options.layers, ","), options.find_batch,
      options.backend, options.bucket_mib, options.resume, !options.metrics.empty(),
      options.no_communication);
}

/// Network interface that the user wants: --interface, or the first in torch's own variable.
/// @throws UsageError if this host does not have it
std::string wanted_interface(const std::string& option) {
  const std::string names = process_getenv("GLOO_SOCKET_IFNAME").value_or("");
  std::string interface = option.empty() ? names.substr(0, names.find(',')) : option;
  if (!interface.empty()) {
    addresses_of_interface(interface);
  }
  return interface;
}

/// See Note [Default group].
using DefaultGroup = std::unique_ptr<ProcessGroup>;

/// Backends ignore strides, and that elements are lazily conjugated or negated.
bool is_plain(const torch::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

/// The tensor itself if it is plain, else a copy.
torch::Tensor plain(const torch::Tensor& tensor) {
  return is_plain(tensor) ? tensor : tensor.clone(at::MemoryFormat::Contiguous);
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
  } catch (const c10::Error&) {
    // The store is gone: then connections break, too.
  }
  return "";
}

}  // namespace

ProcessGroup::ProcessGroup(LaunchEnvironment launch, c10::intrusive_ptr<c10d::Store> store,
                           c10::intrusive_ptr<c10d::ProcessGroup> group, torch::Device device,
                           std::shared_ptr<CollectiveLog> log, bool all_reduces, Connect connect)
    : launch_(std::move(launch)),
      store_(std::move(store)),
      group_(std::move(group)),
      device_(device),
      log_(std::move(log)),
      board_(store_, launch_.rank, launch_.world_size, store_->getTimeout()),
      all_reduces_(all_reduces),
      connect_(std::move(connect)) {}

ProcessGroup::~ProcessGroup() {
  if (is_subgroup_ && !device_.is_cpu() && std::uncaught_exceptions() == 0) {
    try {  // else NCCL's destructor aborts running collectives
      c10::impl::VirtualGuardImpl(device_.type()).getStream(device_).synchronize();
      group_->getDefaultBackend()->shutdown();
    } catch (const std::exception&) {  // the device's next call throws it again
    }
  }
}

std::unique_ptr<ProcessGroup> ProcessGroup::subgroup(const std::vector<int>& ranks) const {
  const std::string name = fmt::format(
      "group/{}", store_->add(fmt::format("groups/{}", rank()), 1));  // the same on all ranks
  board_.same("ranks of a group", fmt::format("{}", fmt::join(ranks, " ")));
  for (auto member = ranks.begin(); member != ranks.end(); ++member) {
    if (*member < 0 || *member >= world_size() ||
        std::find(ranks.begin(), member, *member) != member) {
      refuse("ranks of a group: got {}, expected each of 0 to {} at most once",
             fmt::join(ranks, " "), world_size() - 1);
    }
  }
  if (backend_name() == "mpi") {
    refuse(
        "ranks of a group: got --backend mpi, which connects all ranks of its world, expected shm, "
        "gloo or nccl");
  }
  if (device_.is_cuda()) {
    explain_thread_errors({});  // it would report ranks outside of a group as late
  }
  const auto own = std::ranges::find(ranks, rank());
  if (own == ranks.end()) {
    return nullptr;
  }
  LaunchEnvironment launch = launch_;
  launch.rank = static_cast<int>(own - ranks.begin());
  launch.world_size = static_cast<int>(ranks.size());
  const auto server = std::ranges::find(ranks, launch_.store.server);
  launch.store.server = server == ranks.end() ? -1 : static_cast<int>(server - ranks.begin());
  const auto store = c10::make_intrusive<c10d::PrefixStore>(name, store_);
  const auto group = c10::make_intrusive<c10d::ProcessGroup>(store, launch.rank, launch.world_size);
  attach_backend(*group, device_, connect_(store, launch.rank, launch.world_size));
  auto subgroup = std::make_unique<ProcessGroup>(
      launch, store, group, device_, std::make_shared<CollectiveLog>(), all_reduces_, connect_);
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

void ProcessGroup::expect_plain(const char* what, const torch::Tensor& tensor) {
  TORCH_CHECK(is_plain(tensor), "Expected ", what, " a contiguous tensor, got strides ",
              tensor.strides(), tensor.is_contiguous() ? " and a lazy conjugate" : "");
}

void ProcessGroup::expect_rows(const char* what, const torch::Tensor& rows) const {
  TORCH_CHECK(rows.dim() > 0 && rows.size(0) == world_size(), "Expected ", what, " ", world_size(),
              " rows, one for each rank, got a tensor of ", rows.sizes());
  expect_plain(what, rows);
}

template <typename Collective>
void ProcessGroup::on_contiguous(const torch::Tensor& tensor, const Collective& work) const {
  const torch::NoGradGuard no_grad;
  const torch::Tensor whole = plain(tensor);
  work(whole);
  if (!whole.is_same(tensor)) {
    tensor.copy_(whole);
  }
}

// Gloo's own clock runs on while a job is suspended, so wait_over_gloo() has the limit.
std::chrono::milliseconds ProcessGroup::limit_of_c10d() const {
  return backend_name() == "gloo" ? kNoLimit : c10d::kUnsetTimeout;
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
  if (averages && backend_name() == "gloo") {  // it has no AVG
    const torch::NoGradGuard no_grad;
    tensor.front().div_(world_size());
    op = c10d::ReduceOp::SUM;
  }
  return start("all_reduce", tensor.front(), site, [&](c10d::Backend& backend) {
    return backend.allreduce(tensor, {.reduceOp = op, .timeout = limit_of_c10d()});
  });
}

void ProcessGroup::wait(const Work& work) const {
  if (!work) {
    return;
  }
  c10d::Backend& backend = *group_->getDefaultBackend();
  if (backend.getBackendName() != "gloo") {
    work->wait();
    return;
  }
  constexpr std::chrono::seconds kStoreAnswers{1};
  bool store_answers = true;
  const auto stopped = [&]() -> std::string {
    if (!store_answers) {
      return "";
    }
    try {
      const auto answer = ask_in_time(
          [store = store_, next = failed_backwards_ + 1, number = log_->number_of(*work)] {
            return stopped_rank(*store, next, number);
          },
          kStoreAnswers);
      store_answers = answer.has_value();
      return answer.value_or("");
    } catch (const std::system_error&) {  // no thread can be started
      return "";
    }
  };
  try {
    wait_over_gloo(backend, *work, store_->getTimeout(), [&] { return !stopped().empty(); });
  } catch (const std::exception& error) {
    if (const std::string who = stopped(); !who.empty()) {
      throw Error(ExitCode::kTrainingFailed, fmt::format("{} {}", who, log_->of(*work)));
    }
    const bool timed_out = dynamic_cast<const GlooTimeout*>(&error) != nullptr;
    const std::vector<int> late = late_ranks(store_, launch_, timed_out);
    if (late.empty()) {
      const auto* const from_torch = dynamic_cast<const c10::Error*>(&error);
      throw Error(
          ExitCode::kTrainingFailed,
          fmt::format("{}: {}",
                      from_torch == nullptr ? error.what() : from_torch->what_without_backtrace(),
                      log_->of(*work)));
    }
    if (rank() == launch_.store.server) {
      at_train_end(wait_for_launcher);  // other ranks may still read the store
    }
    throw Error(ExitCode::kTrainingFailed,
                fmt::format("rank {} did not arrive within {} s, expected all {} ranks: {}",
                            fmt::join(late, ", "), in_seconds(store_->getTimeout()), world_size(),
                            log_->of(*work)));
  }
}

void ProcessGroup::end_training() const {
  at_store("destroy_process_group", [this] { stop(kEnded); });
}

// See Note [Stops].
void ProcessGroup::stop(uint32_t stop) const {
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
        std::string("the last backward failed on this rank, and not on all: ") + error.what());
  }
}

ProcessGroup::Work ProcessGroup::start_broadcast(const torch::Tensor& tensor, int root,
                                                 const CallSite& site) const {
  expect_plain("broadcast of", tensor);
  std::vector<torch::Tensor> one{bytes_of(tensor)};
  return start("broadcast", tensor, site, [&](c10d::Backend& backend) {
    return backend.broadcast(one, {.rootRank = root, .timeout = limit_of_c10d()});
  });
}

void ProcessGroup::broadcast(const torch::Tensor& tensor, int root, const CallSite& site) const {
  // In pieces over Gloo, because each wait has the limit --timeout.
  constexpr int64_t kPieceBytes = 4 << 20;
  on_contiguous(tensor, [&](const torch::Tensor& whole) {
    const int64_t piece_elements = backend_name() == "gloo"
                                       ? kPieceBytes / static_cast<int64_t>(whole.element_size())
                                       : whole.numel();
    std::vector<Work> works;
    for (const torch::Tensor& piece : whole.view(-1).split(piece_elements)) {
      works.push_back(start_broadcast(piece, root, site));
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
    return backend.allgather(output, input, {.timeout = limit_of_c10d()});
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
  if (device_.is_cpu() && backend_name() != "gloo") {  // the others have no all-to-all
    return all_gather(rows, site).select(1, rank()).contiguous();
  }
  const torch::Tensor output = torch::empty_like(rows);
  torch::Tensor from = bytes_of(rows);
  torch::Tensor to = bytes_of(output);
  std::vector<int64_t> equal_parts;
  wait(start("all_to_all", rows, site, [&](c10d::Backend& backend) {
    return backend.alltoall_base(to, from, equal_parts, equal_parts, {.timeout = limit_of_c10d()});
  }));
  return output;
}

// Not by wait(), which waits for Gloo's work in short intervals: a send gives its message up at the
// end of an interval, and Gloo's own clock runs on while a job is suspended.
template <typename Message>
void ProcessGroup::pass(const char* kind, const torch::Tensor& tensor, int peer,
                        const CallSite& site, const Message& message) const {
  RECORD_USER_SCOPE(kind);
  std::vector<torch::Tensor> one{bytes_of(tensor)};
  try {
    const Work work = message(*group_->getDefaultBackend(), one);
    if (backend_name() != "gloo") {
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
  pass("send", plain(tensor.detach()), to, site, [to](c10d::Backend& backend, auto& message) {
    return backend.send(message, to, /*tag=*/0);
  });
}

void ProcessGroup::recv(const torch::Tensor& tensor, int from, const CallSite& site) const {
  on_contiguous(tensor, [&](const torch::Tensor& whole) {
    pass("recv", whole, from, site, [from](c10d::Backend& backend, auto& message) {
      return backend.recv(message, from, /*tag=*/0);
    });
  });
}

void ProcessGroup::barrier(const CallSite& site) const {
  // Not by c10d's barrier: over NCCL it would guess the device.
  std::vector<torch::Tensor> one{torch::zeros({1}, device_)};
  wait(start("barrier", one.front(), site, [&](c10d::Backend& backend) {
    return backend.allreduce(one, {.timeout = limit_of_c10d()});
  }));
  if (!device_.is_cpu()) {  // wait() blocks only the device's stream
    c10::impl::VirtualGuardImpl(device_.type()).getStream(device_).synchronize();
  }
}

torch::Tensor ProcessGroup::allocate(int64_t numel, torch::ScalarType dtype) const {
  const torch::TensorOptions options = torch::TensorOptions(dtype).device(device_);
  const auto backend = group_->getDefaultBackend();
  return device_.is_cpu() && backend->supportsTensorAlloc(device_.index())
             ? backend->allocateTensor(numel, options)
             : torch::empty({numel}, options);
}

void attach_backend(c10d::ProcessGroup& group, const torch::Device& device,
                    const c10::intrusive_ptr<c10d::Backend>& backend) {
  using Type = c10d::ProcessGroup::BackendType;
  const std::string name = backend->getBackendName();
  const Type type = name.starts_with("nccl") ? Type::NCCL
                    : name == "gloo"         ? Type::GLOO
                                             : Type::CUSTOM;
  group.setBackend(device.type(), type, backend);
  group.setDefaultBackend(type);
  group.setGroupName("world");
}

std::string shared_device(const std::vector<std::string>& devices) {
  for (size_t rank = 1; rank < devices.size(); ++rank) {
    const auto here = devices.begin() + static_cast<ptrdiff_t>(rank);
    const auto first = std::find(devices.begin(), here, *here);
    if (first != here && !here->empty()) {
      return fmt::format(
          "ranks {} and {} have one CUDA device, UUID {}, expected one for each: give each process "
          "all devices of its node, or one of its own (--gpus-per-task=1)",
          first - devices.begin(), rank, *here);
    }
  }
  return "";
}

namespace {

std::unique_ptr<ProcessGroup> create_process_group(LaunchEnvironment launch,
                                                   const torch::Device& device,
                                                   const ProcessGroupOptions& options) {
  // Silences c10d, which logs errors with backtraces before it throws them.
  setenv("TORCH_CPP_LOG_LEVEL", "FATAL", /*overwrite=*/0);
  c10::initLogging();
  // Rounded up, because c10d takes zero for no timeout.
  const auto timeout = std::chrono::ceil<std::chrono::milliseconds>(
      std::chrono::duration<double>(options.timeout_seconds));
  const std::string name = resolve_backend(options.backend, device);
  check_launch(name, launch);
  const std::string interface = wanted_interface(options.interface);
  if (!interface.empty()) {
    // "=": exactly this name, not all names that begin with it.
    setenv("NCCL_SOCKET_IFNAME", ("=" + interface).c_str(), /*overwrite=*/0);
  }
  if (launch.world_size > 1) {
    survive_broken_connections();
  }
  const Rendezvous meeting = rendezvous(launch, interface, timeout);
  launch.store.server = meeting.server;
  const auto group =
      c10::make_intrusive<c10d::ProcessGroup>(meeting.store, launch.rank, launch.world_size);
  const auto log = std::make_shared<CollectiveLog>();
  const auto address = std::make_shared<std::string>();
  const auto connect = [name, device, timeout, address](
                           const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size) {
    return make_backend(name, c10::make_intrusive<c10d::PrefixStore>("backend", store),
                        {.rank = rank,
                         .world_size = world_size,
                         .device = device,
                         .timeout = timeout,
                         .address = *address});
  };
  auto process_group = std::make_unique<ProcessGroup>(launch, meeting.store, group, device, log,
                                                      options.all_reduces, connect);
  process_group->board().same(
      "settings",
      fmt::format("version {}\nworld size {}\nnodes: {}\ndevice {}\n{}", DDP_VERSION,
                  launch.world_size, launch.num_nodes > 1 ? "several" : "one",
                  c10::DeviceTypeName(device.type(), /*lower_case=*/true), options.settings));
  // Later than the comparison: a rank that finds one node does not tell its address.
  *address = address_for_peers(launch, interface, meeting, process_group->board());
  if (device.is_cuda()) {
    // Ranks with different host ids may share a device: NCCL then sends through its sockets.
    const char* const host_id = std::getenv("NCCL_HOSTID");
    process_group->board().check(
        "devices", cuda_device_uuid(device.index()) + (host_id != nullptr ? host_id : ""),
        shared_device);
    explain_nccl_timeouts(meeting.store, launch, log);
  }
  attach_backend(*group, device, connect(meeting.store, launch.rank, launch.world_size));
  if (process_group->backend_name() == "gloo") {
    explain_thread_errors([log](const std::string& what) {
      return what.find("[enforce fail at ") == std::string::npos
                 ? what
                 : "Gloo got a message of another size than this rank expects: " + what +
                       "; called last: " + log->last();
    });
  }
  // Keeps the group until an error is printed, because the other ranks notice its end.
  at_train_end([group] {});
  return process_group;
}

}  // namespace

void init_process_group(const Options& options, const LaunchEnvironment& launch,
                        const torch::Device& device) {
  init_process_group(launch, device,
                     {.backend = options.backend,
                      .timeout_seconds = options.timeout_seconds,
                      .interface = options.interface,
                      .settings = shared_settings(options, launch.world_size),
                      .all_reduces = !options.no_communication});
}

void init_process_group(LaunchEnvironment launch, torch::Device device,
                        const ProcessGroupOptions& options) {
  DefaultGroup& group = of_this_rank<DefaultGroup>();
  group.reset();  // may own the launch() and device() that were given: these are copies
  group = create_process_group(std::move(launch), device, options);
  // Before LibTorch's and NCCL's own data of the thread are destroyed.
  at_train_end([&group] { group.reset(); });
}

void destroy_process_group(const CallSite& site) {
  const ProcessGroup& group = default_process_group();
  group.end_training();
  depart(group.board(), fmt::format("destroy_process_group ({})", site.text()));
  group.c10d_group()->getDefaultBackend()->shutdown();
  // Keeps the object until `train` has ended, because other objects refer to it.
  at_train_end([group = std::shared_ptr<ProcessGroup>(std::move(of_this_rank<DefaultGroup>()))] {});
}

const ProcessGroup* find_default_process_group() {
  return of_this_rank<DefaultGroup>().get();
}

const ProcessGroup& default_process_group() {
  const ProcessGroup* const group = find_default_process_group();
  TORCH_CHECK(group != nullptr, "Expected init_process_group() to have been called, got no group");
  return *group;
}

void expect_same_weights(const torch::nn::Module& module, const CallSite& site) {
  const ProcessGroup& process_group = default_process_group();
  if (!process_group.all_reduces()) {
    return;
  }
  const auto half_of = [hash = parameter_hash(module)](size_t begin) {
    return static_cast<int64_t>(std::stoull(hash.substr(begin, 16), nullptr, 16));
  };
  const torch::Tensor own = torch::tensor({half_of(0), half_of(16)}, torch::kInt64);
  const torch::Tensor of_ranks =
      process_group.all_gather(own.to(process_group.device()), site.in("expect_same_weights"))
          .to(torch::kCPU);
  const auto digest = [&of_ranks](int rank) {
    return fmt::format("{:016x}", static_cast<uint64_t>(of_ranks[rank][0].item<int64_t>()));
  };
  std::string others;
  for (int rank = 1; rank < process_group.world_size(); ++rank) {
    if (!of_ranks[rank].equal(of_ranks[0])) {
      others +=
          fmt::format("{}rank {} has digest {}", others.empty() ? "" : ", ", rank, digest(rank));
    }
  }
  if (!others.empty()) {
    throw Error(ExitCode::kTrainingFailed,
                fmt::format("the weights differ: {}, expected rank 0's {}", others, digest(0)));
  }
}

}  // namespace ddp
