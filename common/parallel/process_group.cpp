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
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "common/backends/backend.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/seconds_since.hpp"
#include "common/data/flat_parameters.hpp"
#include "common/launch/hardware.hpp"
#include "common/launch/network.hpp"
#include "common/launch/spawn.hpp"
#include "common/launch/stop_request.hpp"
#include "common/parallel/agreement.hpp"
#include "common/parallel/collective_log.hpp"
#include "common/parallel/rendezvous.hpp"

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

/// See Note [Default group]. Destroyed at the end of `train`, before the thread's own data of
/// LibTorch and NCCL.
thread_local std::unique_ptr<ProcessGroup> default_group;

}  // namespace

ProcessGroup::ProcessGroup(LaunchEnvironment launch, c10::intrusive_ptr<c10d::Store> store,
                           c10::intrusive_ptr<c10d::ProcessGroup> group, torch::Device device,
                           std::shared_ptr<CollectiveLog> log, bool all_reduces, Connect connect)
    : launch_(std::move(launch)),
      store_(std::move(store)),
      group_(std::move(group)),
      device_(device),
      log_(std::move(log)),
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
  verify_same(*this, "ranks of a group", fmt::format("{}", fmt::join(ranks, " ")));
  for (auto member = ranks.begin(); member != ranks.end(); ++member) {
    if (*member < 0 || *member >= world_size() ||
        std::find(ranks.begin(), member, *member) != member) {
      throw UsageError(
          fmt::format("ranks of a group: got {}, expected each of 0 to {} at most once",
                      fmt::join(ranks, " "), world_size() - 1));
    }
  }
  if (backend_name() == "mpi") {
    throw UsageError(
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

template <typename Collective>
void ProcessGroup::on_contiguous(const torch::Tensor& tensor, const Collective& work) const {
  const torch::NoGradGuard no_grad;
  if (tensor.is_contiguous()) {
    work(tensor);
    return;
  }
  const torch::Tensor copy = tensor.contiguous();  // Gloo ignores strides
  work(copy);
  tensor.copy_(copy);
}

// Gloo's own clock runs on while a job is suspended, so wait_over_gloo() has the limit.
std::chrono::milliseconds ProcessGroup::limit_of_c10d() const {
  return backend_name() == "gloo" ? std::chrono::hours(24 * 365) : c10d::kUnsetTimeout;
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
  TORCH_CHECK(tensor.front().is_contiguous(),
              "Expected all_reduce of a contiguous tensor, got strides ", tensor.front().strides());
  if (!all_reduces_) {
    return {};
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
  try {
    wait_over_gloo(backend, *work, store_->getTimeout());
  } catch (const std::exception& error) {
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

void ProcessGroup::broadcast(const torch::Tensor& tensor, int root, const CallSite& site) const {
  // In pieces over Gloo, because each wait has the limit --timeout.
  constexpr int64_t kPieceBytes = 4 << 20;
  on_contiguous(tensor, [&](const torch::Tensor& whole) {
    const int64_t piece_elements = backend_name() == "gloo"
                                       ? kPieceBytes / static_cast<int64_t>(whole.element_size())
                                       : std::max<int64_t>(whole.numel(), 1);
    std::vector<Work> works;
    for (const torch::Tensor& piece : whole.view(-1).split(piece_elements)) {
      if (piece.numel() > 0) {
        std::vector<torch::Tensor> one{piece};
        works.push_back(start("broadcast", piece, site, [&](c10d::Backend& backend) {
          return backend.broadcast(one, {.rootRank = root, .timeout = limit_of_c10d()});
        }));
      }
    }
    for (const Work& work : works) {
      wait(work);
    }
  });
}

torch::Tensor ProcessGroup::all_gather(const torch::Tensor& tensor, const CallSite& site) const {
  std::vector<torch::Tensor> input{tensor.contiguous()};
  std::vector<std::vector<torch::Tensor>> output(1);
  for (int r = 0; r < world_size(); ++r) {
    output[0].push_back(torch::empty_like(input[0]));
  }
  wait(start("all_gather", tensor, site, [&](c10d::Backend& backend) {
    return backend.allgather(output, input, {.timeout = limit_of_c10d()});
  }));
  return torch::stack(output[0]);
}

torch::Tensor ProcessGroup::reduce_scatter(const torch::Tensor& input, c10d::ReduceOp::RedOpType op,
                                           const CallSite& site) const {
  const torch::NoGradGuard no_grad;
  TORCH_CHECK(input.dim() > 0 && input.size(0) == world_size(), "Expected reduce_scatter of ",
              world_size(), " rows, one for each rank, got a tensor of ", input.sizes());
  if (!backend_name().starts_with("nccl")) {  // on the host it is an all-reduce, in Gloo too
    const torch::Tensor rows = input.clone(at::MemoryFormat::Contiguous);
    all_reduce(rows, op, site);
    return rows[rank()].clone();
  }
  torch::Tensor rows = input.contiguous();
  torch::Tensor own = torch::empty_like(rows[0]);
  wait(start("reduce_scatter", input, site, [&](c10d::Backend& backend) {
    return backend._reduce_scatter_base(own, rows, {.reduceOp = op});
  }));
  return own;
}

// Not by wait(), which waits for Gloo's work in short intervals: a send gives its message up at the
// end of an interval.
void ProcessGroup::send(const torch::Tensor& tensor, int to, const CallSite& site) const {
  std::vector<torch::Tensor> one{tensor.detach().contiguous()};
  start("send", tensor, site, [&](c10d::Backend& backend) {
    return backend.send(one, to, /*tag=*/0);
  })->wait();
}

void ProcessGroup::recv(const torch::Tensor& tensor, int from, const CallSite& site) const {
  on_contiguous(tensor, [&](const torch::Tensor& whole) {
    std::vector<torch::Tensor> one{whole};
    start("recv", whole, site, [&](c10d::Backend& backend) {
      return backend.recv(one, from, /*tag=*/0);
    })->wait();
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
  verify_same(
      *process_group, "settings",
      fmt::format("version {}\nworld size {}\nnodes: {}\ndevice {}\n{}", DDP_VERSION,
                  launch.world_size, launch.num_nodes > 1 ? "several" : "one",
                  c10::DeviceTypeName(device.type(), /*lower_case=*/true), options.settings));
  // Later than the comparison: a rank that finds one node does not tell its address.
  *address = address_for_peers(launch, interface, meeting);
  if (device.is_cuda()) {
    // Ranks with different host ids may share a device: NCCL then sends through its sockets.
    const char* const host_id = std::getenv("NCCL_HOSTID");
    verify(*process_group, "devices",
           cuda_device_uuid(device.index()) + (host_id != nullptr ? host_id : ""), shared_device);
    explain_nccl_timeouts(meeting.store, launch, log);
  }
  attach_backend(*group, device, connect(meeting.store, launch.rank, launch.world_size));
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

void init_process_group(const LaunchEnvironment& launch, const torch::Device& device,
                        const ProcessGroupOptions& options) {
  default_group.reset();
  default_group = create_process_group(launch, device, options);
  at_train_end([] { default_group.reset(); });
}

void destroy_process_group() {
  const ProcessGroup& group = default_process_group();
  depart(*group.store(), group.rank(), group.world_size());
  group.c10d_group()->getDefaultBackend()->shutdown();
  // Keeps the object until `train` has ended, because other objects refer to it.
  at_train_end([group = std::shared_ptr<ProcessGroup>(std::move(default_group))] {});
}

const ProcessGroup* find_default_process_group() {
  return default_group.get();
}

const ProcessGroup& default_process_group() {
  TORCH_CHECK(default_group != nullptr,
              "Expected init_process_group() to have been called, got no group");
  return *default_group;
}

void expect_same_weights(const torch::nn::Module& module) {
  const ProcessGroup& process_group = default_process_group();
  if (!process_group.all_reduces()) {
    return;
  }
  const auto half_of = [hash = parameter_hash(module)](size_t begin) {
    return static_cast<int64_t>(std::stoull(hash.substr(begin, 16), nullptr, 16));
  };
  const torch::Tensor own = torch::tensor({half_of(0), half_of(16)}, torch::kInt64);
  const torch::Tensor of_ranks =
      process_group.all_gather(own.to(process_group.device())).to(torch::kCPU);
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
