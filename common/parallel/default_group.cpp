#include "common/parallel/default_group.hpp"

#include <c10/util/Logging.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "common/backends/registry.hpp"
#include "common/base/process_exit.hpp"
#include "common/base/signals.hpp"
#include "common/meet/address.hpp"
#include "common/meet/store.hpp"

namespace ddp {

std::string shared_device(const std::vector<std::string>& devices) {
  for (auto device = devices.begin(); device != devices.end(); ++device) {
    const auto first = std::find(devices.begin(), device, *device);
    if (first != device && !device->empty()) {
      return fmt::format(
          "ranks {} and {} have one CUDA device, UUID {}, expected one for each: give each process "
          "all devices of its node, or one of its own (--gpus-per-task=1)",
          first - devices.begin(), device - devices.begin(), *device);
    }
  }
  return "";
}

namespace {

/// See Note [Default group].
using DefaultGroup = std::unique_ptr<ProcessGroup>;

/// Makes one line of an exception in a thread of a backend, such as NCCL's watchdog: the
/// collective, the calling line, and the late ranks.
void explain_backend_errors(const std::string& backend,
                            const c10::intrusive_ptr<c10d::Store>& store,
                            const LaunchEnvironment& launch,
                            const std::shared_ptr<const CollectiveLog>& log) {
  // A second connection to the store: the first may be blocked by a wait.
  explain_thread_errors([own_store = traits_of(backend).has_watchdog ? store->clone() : nullptr,
                         timeout = store->getTimeout(), launch, log](const std::string& what) {
    const std::optional<std::string> error = backend_error(what, timeout);
    if (!error) {
      return what;
    }
    const std::vector<int> late =
        own_store ? late_ranks(own_store, launch, /*timed_out=*/true) : std::vector<int>();
    return fmt::format(
        "{}{}; called last: {}",
        late.empty() ? "" : fmt::format("rank {} did not arrive: ", fmt::join(late, ", ")), *error,
        log->last());
  });
}

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
  // --interface, or the first in torch's own variable.
  const std::string names = process_getenv("GLOO_SOCKET_IFNAME").value_or("");
  const std::string interface =
      options.interface.empty() ? names.substr(0, names.find(',')) : options.interface;
  if (!interface.empty()) {
    addresses_of_interface(interface);  // refuses one that this host does not have
    // "=": exactly this name, not all names that begin with it.
    setenv("NCCL_SOCKET_IFNAME", ("=" + interface).c_str(), /*overwrite=*/0);
  }
  if (launch.world_size > 1) {
    survive_broken_connections();
  }
  const Rendezvous meeting = rendezvous(launch, interface, timeout);
  launch.store.server = meeting.server;
  Board board(meeting.store, launch.rank, launch.world_size, timeout);
  board.same(
      "settings",
      fmt::format("version {}\nworld size {}\nnodes: {}\ndevice {}\n{}", DDP_VERSION,
                  launch.world_size, launch.num_nodes > 1 ? "several" : "one",
                  c10::DeviceTypeName(device.type(), /*lower_case=*/true), options.settings));
  // Later than the comparison: a rank that finds one node does not tell its address.
  const std::string address = address_for_peers(launch, interface, meeting, board);
  if (device.is_cuda()) {
    // Ranks with different host ids may share a device: NCCL then sends through its sockets.
    const char* const host_id = std::getenv("NCCL_HOSTID");
    board.check("devices", cuda_device_uuid(device.index()) + (host_id != nullptr ? host_id : ""),
                shared_device);
  }
  const auto log = std::make_shared<CollectiveLog>();
  explain_backend_errors(name, meeting.store, launch, log);
  const auto connect = [=](const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size) {
    return make_backend(name, c10::make_intrusive<c10d::PrefixStore>("backend", store),
                        {.rank = rank,
                         .world_size = world_size,
                         .device = device,
                         .timeout = timeout,
                         .address = address});
  };
  auto process_group = std::make_unique<ProcessGroup>(launch, meeting.store, device, connect,
                                                      options.all_reduces, log);
  // Keeps the group until an error is printed, because the other ranks notice its end.
  at_train_end([group = process_group->c10d_group()] {});
  return process_group;
}

/// Collectives of a rank alone, on the tensor's own device.
class OneRank final : public c10d::Backend {
 public:
  using Done = c10::intrusive_ptr<c10d::Work>;  // null: there is nothing to wait for

  OneRank() : c10d::Backend(/*rank=*/0, /*size=*/1) {}
  const std::string getBackendName() const override { return ""; }

  Done allreduce(std::vector<at::Tensor>&, const c10d::AllreduceOptions&) override { return {}; }
  Done broadcast(std::vector<at::Tensor>&, const c10d::BroadcastOptions&) override { return {}; }
  Done allgather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                 const c10d::AllgatherOptions&) override {
    outputs[0][0].copy_(inputs[0]);
    return {};
  }
};

/// World without init_process_group().
struct Alone {
  static LaunchEnvironment launch() {
    LaunchEnvironment alone;
    alone.restart_count = read_launch_environment().restart_count;
    return alone;
  }
  ProcessGroup group{launch(), c10::make_intrusive<c10d::HashStore>(), torch::kCPU,
                     [](const auto&, int, int) { return c10::make_intrusive<OneRank>(); }};
};

}  // namespace

void init_process_group(const Options& options, const LaunchEnvironment& launch,
                        const torch::Device& device) {
  TORCH_CHECK(!options.settings.empty(), "Options: got no settings, expected resolve_options()");
  std::string shared_settings = fmt::format("program {}\n", options.program);
  for (const Setting& setting : options.settings) {
    shared_settings += setting.agree ? fmt::format("{} {}\n", setting.name, setting.text) : "";
  }
  init_process_group(launch, device,
                     {.backend = options.backend,
                      .timeout_seconds = options.timeout_seconds,
                      .interface = options.interface,
                      .settings = shared_settings,
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

const ProcessGroup& default_process_group() {
  const DefaultGroup& group = of_this_rank<DefaultGroup>();
  TORCH_CHECK(group, "Expected init_process_group() to have been called, got no group");
  return *group;
}

const ProcessGroup& world() {
  const DefaultGroup& group = of_this_rank<DefaultGroup>();
  return group ? *group : of_this_rank<Alone>().group;
}

}  // namespace ddp
