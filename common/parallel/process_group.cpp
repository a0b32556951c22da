#include "common/parallel/process_group.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "common/backends/backend.hpp"
#include "common/exit_codes.hpp"
#include "common/parallel/network.hpp"

namespace ddp {
namespace {

using Clock = std::chrono::steady_clock;

std::chrono::milliseconds timeout_of(const Options& options) {
  return std::chrono::milliseconds(static_cast<int64_t>(options.timeout_seconds * 1000));
}

std::vector<uint8_t> to_bytes(const std::string& text) {
  return {text.begin(), text.end()};
}

std::string get_text(c10d::Store& store, const std::string& key) {
  const std::vector<uint8_t> bytes = store.get(key);
  return {bytes.begin(), bytes.end()};
}

c10::intrusive_ptr<c10d::Store> tcp_store(const std::string& host, int port, bool is_server,
                                          std::optional<int> listen_fd,
                                          std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions store_options;
  store_options.port = static_cast<uint16_t>(port);
  store_options.isServer = is_server;
  store_options.waitWorkers = false;
  store_options.timeout = timeout;
  store_options.masterListenFd = listen_fd;
  try {
    return c10::make_intrusive<c10d::TCPStore>(host, store_options);
  } catch (const c10::Error& error) {
    throw TransientError("no store at " + endpoint(host, port) + " within " +
                         std::to_string(timeout.count() / 1000) +
                         " s, expected rank 0 (or the launcher's agent) to serve it");
  }
}

/// "host:port", written by rank 0 and read by the others. The rename makes it appear whole.
void publish_address(const std::string& file, const std::string& address) {
  const std::string temporary = file + ".tmp";
  std::ofstream(temporary) << address << '\n';
  std::filesystem::rename(temporary, file);
}

std::string read_address(const std::string& file, std::chrono::milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  std::string address;
  while (!(std::ifstream(file) >> address)) {
    if (Clock::now() > deadline) {
      throw TransientError("rank 0 did not publish its address in " + file + " within " +
                           std::to_string(timeout.count() / 1000) + " s");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return address;
}

/// A store, and where it is reached; no host if nobody else needs to.
struct OpenStore {
  c10::intrusive_ptr<c10d::Store> store;
  std::string host;
  int port = 0;
};

OpenStore connect_to(const std::string& host, int port, std::chrono::milliseconds timeout) {
  require_resolvable(host);
  return {tcp_store(host, port, /*is_server=*/false, std::nullopt, timeout), host, port};
}

OpenStore serve_at(const std::string& host, const Listener& listener,
                   std::chrono::milliseconds timeout) {
  return {tcp_store(host, listener.port, /*is_server=*/true, listener.fd, timeout), host,
          listener.port};
}

OpenStore open_store(const LaunchEnvironment& environment, const std::string& interface,
                     std::chrono::milliseconds timeout) {
  const StoreLocation& location = environment.store;
  const bool serves = environment.rank == 0;
  const bool several_hosts = environment.num_nodes > 1;
  switch (location.kind) {
    case StoreLocation::Kind::kNone:
      return {c10::make_intrusive<c10d::HashStore>(), "", 0};
    case StoreLocation::Kind::kAgentTcp:
      return connect_to(location.host, location.port, timeout);
    case StoreLocation::Kind::kTcp: {
      if (!serves) {
        return connect_to(location.host, location.port, timeout);
      }
      if (location.listen_fd >= 0) {
        return serve_at(location.host, {location.listen_fd, location.port}, timeout);
      }
      const std::string host =
          several_hosts ? address_to_serve(location.host, interface, location.peer) : location.host;
      return serve_at(host, listen_on(host, location.port), timeout);
    }
    case StoreLocation::Kind::kSharedFile: {
      if (serves) {
        const std::string host =
            several_hosts ? address_to_publish(location.host, interface) : "127.0.0.1";
        OpenStore open = serve_at(host, listen_on(host, 0), timeout);
        publish_address(location.file, endpoint(open.host, open.port));
        return open;
      }
      const auto [host, port] = split_endpoint(read_address(location.file, timeout));
      return connect_to(host, port, timeout);
    }
  }
  TORCH_INTERNAL_ASSERT(false, "unknown store kind");
}

/// Every rank announces itself and waits for all others.
void wait_for_all(c10d::Store& store, const std::string& event, int rank, int world_size,
                  std::chrono::milliseconds timeout) {
  const auto key = [&](int r) { return event + "/" + std::to_string(r); };
  store.set(key(rank), to_bytes("here"));
  std::vector<std::string> keys;
  for (int r = 0; r < world_size; ++r) {
    keys.push_back(key(r));
  }
  try {
    store.wait(keys, timeout);
  } catch (const c10::Error&) {
    std::string missing;
    for (int r = 0; r < world_size; ++r) {
      if (!store.check({key(r)})) {
        missing += (missing.empty() ? "" : ", ") + std::to_string(r);
      }
    }
    throw TransientError("within " + std::to_string(timeout.count() / 1000) + " s " + event +
                         " lacks rank " + missing + " of world size " + std::to_string(world_size) +
                         ", expected all of them");
  }
}

/// As above, before anything was computed. A store that goes away then was another job's, which had
/// the port first and has ended; or a rank of this job has failed, and the launcher is about to end
/// this one too, which it is given the time for: 75 is not to hide that rank's exit code.
void rendezvous(c10d::Store& store, const OpenStore& open, int rank, int world_size,
                std::chrono::milliseconds timeout) {
  try {
    wait_for_all(store, "rendezvous", rank, world_size, timeout);
  } catch (const c10::Error&) {
    constexpr std::chrono::seconds kLaunchersTurn{1};
    std::this_thread::sleep_for(kLaunchersTurn);
    throw TransientError("the store at " + endpoint(open.host, open.port) +
                         " went away during the rendezvous, expected it to stay; another job may "
                         "have held its port");
  }
}

/// What all ranks must have been told alike, one setting a line.
std::string shared_settings(const Options& options, int world_size) {
  std::ostringstream text;
  text << "program " << options.program << "\nversion " << DDP_VERSION << "\nworld size "
       << world_size << "\n--total-epochs " << options.total_epochs << "\n--save-every "
       << options.save_every << "\n--batch-size " << resolve_batch_per_rank(options, world_size)
       << "\n--accumulate " << options.accumulate << "\n--optimizer " << options.optimizer
       << "\n--lr " << options.learning_rate.value_or(-1) << "\n--lr-schedule "
       << options.lr_schedule << "\n--seed " << options.seed << "\n--dataset " << options.dataset
       << "\n--sampler " << options.sampler << "\n--speedup " << options.speedup << "\n--backend "
       << options.backend << "\n--resume " << options.resume << "\n--metrics "
       << !options.metrics.empty() << "\n--no-communication " << options.no_communication
       << "\n--bucket-mib " << options.bucket_mib << "\n--gradient-compression "
       << options.gradient_compression << "\n--shard-optimizer " << options.shard_optimizer << "\n";
  return text.str();
}

/// The first line in which two texts differ: {ours, theirs}.
std::pair<std::string, std::string> first_difference(const std::string& ours,
                                                     const std::string& theirs) {
  std::istringstream a(ours);
  std::istringstream b(theirs);
  std::string line_a;
  std::string line_b;
  do {
    line_a.clear();
    line_b.clear();
    std::getline(a, line_a);
    std::getline(b, line_b);
  } while (line_a == line_b && (a || b));
  return {line_a, line_b};
}

/// The network that the user wants: --interface, or what torch's own programs read.
std::string wanted_interface(const Options& options) {
  for (const std::string& wanted : {options.interface, process_getenv("DDP_INTERFACE").value_or(""),
                                    process_getenv("GLOO_SOCKET_IFNAME").value_or("")}) {
    if (!wanted.empty()) {
      return wanted.substr(0, wanted.find(','));
    }
  }
  return "";
}

/// This host's address for its peers. On one host loopback will do, and reaches no other machine.
/// On several it is the address of the wanted interface, or that by which this host reaches the
/// store.
std::string address_for_peers(const LaunchEnvironment& environment, const std::string& interface,
                              const OpenStore& open, c10d::Store& store) {
  const bool several_hosts = environment.num_nodes > 1 && !open.host.empty();
  const std::string towards_store = several_hosts ? address_towards(open.host, open.port) : "";
  std::string own =
      interface.empty() ? towards_store : address_of_interface(interface, towards_store);
  if (!several_hosts) {
    return own.empty() ? "127.0.0.1" : own;
  }
  const auto key = [](int rank) { return "address/" + std::to_string(rank); };
  store.set(key(environment.rank), to_bytes(own));
  // The host that serves the store may know it by a loopback address ("localhost", or its own name
  // in /etc/hosts): then the way to a rank elsewhere tells. If there is none, all are on this host.
  for (int rank = 0; rank < environment.world_size && is_loopback_address(own); ++rank) {
    const std::string other = get_text(store, key(rank));
    if (!is_loopback_address(other)) {
      own = address_towards(other, open.port);
    }
  }
  return own;
}

}  // namespace

ProcessGroup::ProcessGroup(LaunchEnvironment environment, c10::intrusive_ptr<c10d::Store> store,
                           c10::intrusive_ptr<c10d::ProcessGroup> group, std::string backend_name,
                           torch::Device device)
    : environment_(std::move(environment)),
      store_(std::move(store)),
      group_(std::move(group)),
      backend_name_(std::move(backend_name)),
      device_(device) {}

template <typename Collective>
c10::intrusive_ptr<c10d::Work> ProcessGroup::start(int64_t bytes,
                                                   const Collective& collective) const {
  if (all_reduce_paused_) {
    return {};
  }
  if (!wait_timer_enabled_) {
    return collective();
  }
  wait_.all_reduce_bytes.push_back(bytes);
  // On the host nothing hides what it takes to start: a backend may even do all of the work here.
  const Clock::time_point before = Clock::now();
  auto work = collective();
  if (!device_.is_cuda()) {
    wait_.host_ms += std::chrono::duration<double, std::milli>(Clock::now() - before).count();
  }
  return work;
}

c10::intrusive_ptr<c10d::Work> ProcessGroup::start_all_reduce(
    std::vector<torch::Tensor>& tensors) const {
  return start(static_cast<int64_t>(tensors.front().nbytes()),
               [&] { return group_->getDefaultBackend()->allreduce(tensors); });
}

c10::intrusive_ptr<c10d::Work> ProcessGroup::start_reduce_scatter(DividedTensor& tensor) const {
  torch::Tensor& own = tensor.parts[static_cast<size_t>(rank())];
  return start(static_cast<int64_t>(tensor.whole.front().nbytes()),
               [&]() -> c10::intrusive_ptr<c10d::Work> {
                 const auto backend = group_->getDefaultBackend();
                 if (backend_name_ == "shm") {
                   std::vector<torch::Tensor> output{own};
                   std::vector<std::vector<torch::Tensor>> inputs{tensor.parts};
                   return backend->reduce_scatter(output, inputs);
                 }
                 if (backend_name_ == "nccl" && tensor.is_even()) {
                   return backend->_reduce_scatter_base(own, tensor.whole.front());
                 }
                 return backend->allreduce(tensor.whole);
               });
}

void ProcessGroup::gather_parts(std::vector<DividedTensor>& tensors) const {
  if (all_reduce_paused_) {
    return;
  }
  CommunicationWait backward = std::exchange(wait_, {});
  const Clock::time_point before = Clock::now();
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  const auto backend = group_->getDefaultBackend();
  for (DividedTensor& tensor : tensors) {
    backward.gather_bytes += static_cast<int64_t>(tensor.whole.front().nbytes());
    torch::Tensor& own = tensor.parts[static_cast<size_t>(rank())];
    if (backend_name_ == "shm") {
      std::vector<std::vector<torch::Tensor>> outputs{tensor.parts};
      std::vector<torch::Tensor> input{own};
      works.push_back(backend->allgather(outputs, input));
    } else if (backend_name_ == "nccl" && tensor.is_even()) {
      works.push_back(backend->_allgather_base(tensor.whole.front(), own));
    } else {
      // c10d's all-gather wants parts of one size, and Gloo's would copy them there and back.
      for (int root = 0; root < world_size(); ++root) {
        std::vector<torch::Tensor> part{tensor.parts[static_cast<size_t>(root)]};
        if (part.front().numel() > 0) {
          c10d::BroadcastOptions options;
          options.rootRank = root;
          works.push_back(backend->broadcast(part, options));
        }
      }
    }
  }
  if (!device_.is_cuda()) {
    wait_.host_ms = std::chrono::duration<double, std::milli>(Clock::now() - before).count();
  }
  for (const auto& work : works) {
    wait(work);
  }
  CommunicationWait gather = std::exchange(wait_, std::move(backward));
  if (wait_timer_enabled_) {
    wait_.gather_host_ms += gather.host_ms;
    wait_.gather_device = std::move(gather.device);
  }
}

void ProcessGroup::record_all_reduces(const c10::SmallVector<int64_t, 16>& bytes) const {
  if (wait_timer_enabled_) {
    wait_.all_reduce_bytes.append(bytes.begin(), bytes.end());
  }
}

void ProcessGroup::wait(const c10::intrusive_ptr<c10d::Work>& work) const {
  if (!work) {
    return;
  }
  if (!wait_timer_enabled_) {
    work->wait();
  } else if (device_.is_cuda()) {
    // wait() only makes the stream wait; the time passes there.
    const c10::impl::VirtualGuardImpl guard(device_.type());
    const auto record = [&] {
      c10::Event event(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
      event.record(guard.getStream(device_));
      return event;
    };
    c10::Event before = record();
    work->wait();
    wait_.device.emplace_back(std::move(before), record());
  } else {
    const Clock::time_point before = Clock::now();
    work->wait();
    wait_.host_ms += std::chrono::duration<double, std::milli>(Clock::now() - before).count();
  }
}

double CommunicationWait::backward_ms() const {
  double total_ms = host_ms;
  for (const auto& [before, after] : device) {
    total_ms += before.elapsedTime(after);
  }
  return total_ms;
}

double CommunicationWait::gather_ms() const {
  double total_ms = gather_host_ms;
  for (const auto& [before, after] : gather_device) {
    total_ms += before.elapsedTime(after);
  }
  return total_ms;
}

void ProcessGroup::broadcast(torch::Tensor tensor, int root) const {
  std::vector<torch::Tensor> tensors{std::move(tensor)};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  wait(group_->getDefaultBackend()->broadcast(tensors, options));
}

torch::Tensor ProcessGroup::all_gather(const torch::Tensor& tensor) const {
  std::vector<torch::Tensor> input{tensor.contiguous()};
  std::vector<std::vector<torch::Tensor>> output(1);
  for (int r = 0; r < world_size(); ++r) {
    output[0].push_back(torch::empty_like(input[0]));
  }
  wait(group_->getDefaultBackend()->allgather(output, input));
  return torch::stack(output[0]);
}

void ProcessGroup::barrier() const {
  all_reduce(torch::zeros({1}, device_));
}

torch::Tensor ProcessGroup::allocate(int64_t numel, torch::ScalarType dtype) const {
  const torch::TensorOptions options = torch::TensorOptions(dtype).device(device_);
  const auto backend = group_->getDefaultBackend();
  return device_.is_cpu() && backend->supportsTensorAlloc(device_.index())
             ? backend->allocateTensor(numel, options)
             : torch::empty({numel}, options);
}

void ProcessGroup::verify_same(const std::string& topic, const std::string& text) const {
  const std::string key = topic + "/";
  store_->set(key + std::to_string(rank()), to_bytes(text));
  // Rank 0 reads everyone's, so that it too stops when another rank disagrees.
  for (int r = rank() == 0 ? 1 : 0; r < (rank() == 0 ? world_size() : 1); ++r) {
    const std::string other = get_text(*store_, key + std::to_string(r));
    if (other != text) {
      const auto [ours, theirs] = first_difference(text, other);
      throw UsageError(topic + ": rank " + std::to_string(rank()) + " has \"" + ours + "\", rank " +
                       std::to_string(r) + " has \"" + theirs + "\", expected the same");
    }
  }
}

std::string ProcessGroup::share(const std::string& topic, const std::string& text) const {
  if (rank() == 0) {
    store_->set(topic, to_bytes(text));
  }
  return get_text(*store_, topic);
}

void attach_backend(c10d::ProcessGroup& group, const torch::Device& device,
                    const c10::intrusive_ptr<c10d::Backend>& backend) {
  using Type = c10d::ProcessGroup::BackendType;
  const std::string name = backend->getBackendName();
  const Type type = name == "nccl" ? Type::NCCL : name == "gloo" ? Type::GLOO : Type::CUSTOM;
  group.setBackend(device.type(), type, backend);
  group.setDefaultBackend(type);
  group.setGroupName("world");
}

ProcessGroup init_process_group(const Options& options, const LaunchEnvironment& environment,
                                const torch::Device& device) {
  const std::chrono::milliseconds timeout = timeout_of(options);
  const std::string name = resolve_backend(options.backend, device);
  check_launch(name, environment);
  const std::string interface = wanted_interface(options);
  if (!interface.empty()) {
    address_of_interface(interface);  // a wrong name is refused before anyone waits
    // NCCL chooses by itself; "=" asks for this very name, not for all that begin with it.
    setenv("NCCL_SOCKET_IFNAME", ("=" + interface).c_str(), /*overwrite=*/0);
  }
  const OpenStore open = open_store(environment, interface, timeout);
  const auto store = c10::make_intrusive<c10d::PrefixStore>(
      environment.store.prefix.empty() ? "ddp" : environment.store.prefix, open.store);
  store->setTimeout(timeout);
  rendezvous(*store, open, environment.rank, environment.world_size, timeout);

  auto group =
      c10::make_intrusive<c10d::ProcessGroup>(store, environment.rank, environment.world_size);
  ProcessGroup process_group(environment, store, group, name, device);
  process_group.verify_same("settings", shared_settings(options, environment.world_size));

  const auto backend = make_backend(
      name, c10::make_intrusive<c10d::PrefixStore>("backend", store),
      {environment.rank, environment.world_size, device, timeout,
       address_for_peers(environment, interface, open, *store), environment.num_nodes});
  attach_backend(*group, device, backend);
  return ProcessGroup(environment, store, group, backend->getBackendName(), device);
}

void destroy_process_group(ProcessGroup& process_group) {
  c10d::Store& store = *process_group.store_;
  const int rank = process_group.rank();
  const int world_size = process_group.world_size();
  wait_for_all(store, "departure", rank, world_size, store.getTimeout());
  // Rank 0 may be the one who serves the store: it goes last, when the others have their answer.
  if (rank != 0) {
    store.set("gone/" + std::to_string(rank), to_bytes("gone"));
  } else {
    std::vector<std::string> others;
    for (int r = 1; r < world_size; ++r) {
      others.push_back("gone/" + std::to_string(r));
    }
    store.wait(others, store.getTimeout());
  }
  process_group.group_->getDefaultBackend()->shutdown();
}

}  // namespace ddp
