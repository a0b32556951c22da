#include "common/parallel/process_group.hpp"

#include <c10/util/Logging.h>
#include <fmt/ranges.h>
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <sstream>
#include <string_view>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "common/backends/backend.hpp"
#include "common/backends/store_exchange.hpp"
#include "common/base/exit_codes.hpp"
#include "common/launch/device_count.hpp"
#include "common/launch/network.hpp"
#include "common/launch/spawn.hpp"
#include "common/parallel/bucket_ranges.hpp"
#include "common/parallel/rendezvous.hpp"

namespace ddp {
namespace {

using Clock = std::chrono::steady_clock;

std::chrono::milliseconds timeout_of(const ProcessGroupOptions& options) {
  // Up, as c10d takes zero for no timeout at all.
  return std::chrono::ceil<std::chrono::milliseconds>(
      std::chrono::duration<double>(options.timeout_seconds));
}

/// See ProcessGroupOptions::settings.
std::string shared_settings(const Options& options, int world_size) {
  std::ostringstream text;
  text << "program " << options.program << "\n--total-epochs " << options.total_epochs
       << "\n--save-every " << options.save_every << "\n--batch-size "
       << (options.find_batch ? "auto"
                              : std::to_string(resolve_batch_per_rank(options, world_size)))
       << "\n--accumulate " << options.accumulate << "\n--global-batch "
       << (options.global_batch || !options.find_batch
               ? std::to_string(resolve_global_batch(options, world_size))
               : "as found")
       << "\n--scale-lr " << options.scale_lr << "\n--optimizer " << options.optimizer << "\n--lr "
       << (options.learning_rate ? fmt::format("{}", *options.learning_rate)
                                 : "the optimizer's own")
       << "\n--lr-schedule " << options.lr_schedule << "\n--seed " << options.seed
       << "\n--deterministic " << options.deterministic << "\n--dataset "
       << std::filesystem::path(options.dataset).filename().native() << "\n--dataset-size "
       << options.dataset_size << "\n--hidden " << fmt::format("{}", fmt::join(options.hidden, ","))
       << "\n--layers " << fmt::format("{}", fmt::join(options.layers, ",")) << "\n--sampler "
       << options.sampler << "\n--speedup " << options.speedup << "\n--backend " << options.backend
       << "\n--resume " << options.resume << "\n--metrics " << !options.metrics.empty()
       << "\n--trace " << !options.trace.empty() << "\n--tensorboard "
       << !options.tensorboard.empty() << "\n--check finite " << options.check_finite
       << "\n--check weights " << options.check_weights_every << "\n--no-communication "
       << options.no_communication << "\n--bucket-mib " << fmt::format("{}", options.bucket_mib)
       << "\n--gradient-compression " << options.gradient_compression << "\n--shard-optimizer "
       << options.shard_optimizer << "\n--inject " << options.inject << "\n";
  return text.str();
}

ProcessGroupOptions group_options(const Options& options, const LaunchEnvironment& environment) {
  return {.backend = options.backend,
          .timeout_seconds = options.timeout_seconds,
          .interface = options.interface,
          .settings = shared_settings(options, environment.world_size)};
}

/// The first line in which two texts differ: {ours, theirs}.
std::pair<std::string, std::string> first_difference(const std::string& ours,
                                                     const std::string& theirs) {
  const auto differs = std::ranges::mismatch(ours, theirs).in1;
  const size_t begin = std::string(ours.begin(), differs).rfind('\n') + 1;  // npos + 1 is 0
  const auto line = [begin](const std::string& text) {
    return text.substr(begin, text.find('\n', begin) - begin);
  };
  return {line(ours), line(theirs)};
}

const std::string kSame = "same";

/// Rank 0 compares and all end with its words: a rank that agrees with it must not go on to wait
/// for one that has left.
/// @return kSame, or the exit code and the message: the objection, or naming the ranks that gave no
/// text within `timeout`
std::string compare(
    c10d::Store& store, const std::vector<std::string>& keys, const std::string& topic,
    std::chrono::milliseconds timeout,
    const std::function<std::string(const std::vector<std::string>& texts)>& objection) {
  const auto refusal = [](ExitCode code, const std::string& what) {
    return fmt::format("{} {}", static_cast<int>(code), what);
  };
  try {
    wait_for_ranks(store, keys, "the comparison of " + topic, timeout);
  } catch (const TransientError& error) {
    return refusal(error.code(), error.what());
  }
  std::vector<std::string> texts;
  for (const std::string& key : keys) {
    texts.push_back(store.get_to_str(key));
  }
  const std::string found = objection(texts);
  return found.empty() ? kSame : refusal(ExitCode::kUsage, found);
}

/// On the other ranks. @throws TransientError naming rank 0 if it does not set `key` in time
void expect_of_rank_0(c10d::Store& store, const std::string& key, const std::string& topic,
                      std::chrono::milliseconds timeout) {
  try {
    store.wait({key}, timeout);
  } catch (const c10::DistStoreError&) {
    throw TransientError(fmt::format(
        "within {} s the comparison of {} lacks rank 0, expected it to tell the other ranks",
        in_seconds(timeout), topic));
  }
}

/// The network that the user wants: --interface, or what torch's own programs read.
/// @throws UsageError naming who asked for an interface that this host does not have
std::string wanted_interface(const ProcessGroupOptions& options) {
  for (const auto& [source, wanted] : std::initializer_list<std::pair<const char*, std::string>>{
           {"--interface", options.interface},
           {"DDP_INTERFACE", process_getenv("DDP_INTERFACE").value_or("")},
           {"GLOO_SOCKET_IFNAME", process_getenv("GLOO_SOCKET_IFNAME").value_or("")}}) {
    if (!wanted.empty()) {
      std::string interface = wanted.substr(0, wanted.find(','));
      address_of_interface(interface, "", source);
      return interface;
    }
  }
  return "";
}

}  // namespace

DividedTensor divide(const torch::Tensor& whole, int world_size) {
  DividedTensor divided{.whole = {whole}, .parts = {}};
  for (int rank = 0; rank < world_size; ++rank) {
    const auto [begin, end] = part_range(whole.numel(), rank, world_size);
    divided.parts.push_back(whole.narrow(0, begin, end - begin));
  }
  return divided;
}

double WaitTime::total_ms() const {
  double total = host_ms;
  for (const auto& [before, after] : device) {
    total += before->elapsedTime(*after);
  }
  return total;
}

ProcessGroup::ProcessGroup(LaunchEnvironment environment, c10::intrusive_ptr<c10d::Store> store,
                           c10::intrusive_ptr<c10d::ProcessGroup> group, std::string backend_name,
                           torch::Device device, std::shared_ptr<CollectiveWatch> watch,
                           std::shared_ptr<CollectiveLog> log)
    : environment_(std::move(environment)),
      store_(std::move(store)),
      group_(std::move(group)),
      backend_name_(std::move(backend_name)),
      device_(device),
      watch_(std::move(watch)),
      log_(std::move(log)) {}

template <typename Collective>
auto ProcessGroup::call(const Collective& collective) const {
  std::optional<CollectiveWatch::Call> watched;
  if (watch_) {
    watched.emplace(*watch_);
  }
  return collective(*group_->getDefaultBackend());
}

template <typename Collective>
c10::intrusive_ptr<c10d::Work> ProcessGroup::call(const char* kind, const torch::Tensor& tensor,
                                                  const CallSite& site,
                                                  const Collective& collective) const {
  const auto with_last_call = [this](const Error& error) {
    return fmt::format("{}; {}", error.what(), log_->last_call());
  };
  log_->begin(kind, tensor, site);
  try {
    const Clock::time_point begin = trace_ == nullptr ? Clock::time_point() : Clock::now();
    auto work = call(collective);
    log_->started(work.get());
    if (trace_ != nullptr) {
      trace_->add_collective(kind, tensor, site, begin, *work);
    }
    return work;
  } catch (const UsageError& error) {
    throw UsageError(with_last_call(error));
  } catch (const TransientError& error) {
    throw TransientError(with_last_call(error));
  } catch (const Error& error) {
    throw Error(error.code(), with_last_call(error));
  }
}

template <typename Collective>
c10::intrusive_ptr<c10d::Work> ProcessGroup::start(const char* kind, const torch::Tensor& tensor,
                                                   const CallSite& site,
                                                   const Collective& collective) const {
  if (before_all_reduce_) {
    before_all_reduce_(tensor);
  }
  if (all_reduce_paused_) {
    return {};
  }
  if (!wait_timer_enabled_) {
    return call(kind, tensor, site, collective);
  }
  wait_.all_reduce_bytes.push_back(static_cast<int64_t>(tensor.nbytes()));
  // On the host nothing hides what it takes to start: a backend may even do all of the work here.
  const Clock::time_point before = Clock::now();
  const WaitTime::Event stream_before = record_if_blocking();
  auto work = call(kind, tensor, site, collective);
  if (stream_before) {
    wait_.backward.device.emplace_back(stream_before, record_if_blocking());
  } else if (device_.is_cpu()) {
    add_wait(wait_.backward, before);
  }
  return work;
}

c10::intrusive_ptr<c10d::Work> ProcessGroup::start_all_reduce(std::vector<torch::Tensor>& tensors,
                                                              c10d::ReduceOp::RedOpType op,
                                                              const CallSite& site) const {
  return start("all_reduce", tensors.front(), site, [&](c10d::Backend& backend) {
    return backend.allreduce(tensors, {.reduceOp = op});
  });
}

c10::intrusive_ptr<c10d::Work> ProcessGroup::start_reduce_scatter(DividedTensor& tensor,
                                                                  const CallSite& site) const {
  torch::Tensor& own = tensor.parts[static_cast<size_t>(rank())];
  return start("reduce_scatter", tensor.whole.front(), site, [&](c10d::Backend& backend) {
    if (backend_name_ == "shm") {
      std::vector<torch::Tensor> output{own};
      std::vector<std::vector<torch::Tensor>> inputs{tensor.parts};
      return backend.reduce_scatter(output, inputs);
    }
    if (backend_name_ == "nccl" && tensor.is_even()) {
      return backend._reduce_scatter_base(own, tensor.whole.front());
    }
    return backend.allreduce(tensor.whole);
  });
}

void ProcessGroup::gather_parts(std::vector<DividedTensor>& tensors, const CallSite& site) const {
  if (all_reduce_paused_) {
    return;
  }
  const Clock::time_point before = Clock::now();
  const WaitTime::Event stream_before = record_if_blocking();
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  for (DividedTensor& tensor : tensors) {
    wait_.gather_bytes += static_cast<int64_t>(tensor.whole.front().nbytes());
    torch::Tensor& own = tensor.parts[static_cast<size_t>(rank())];
    if (backend_name_ == "shm") {
      std::vector<std::vector<torch::Tensor>> outputs{tensor.parts};
      std::vector<torch::Tensor> input{own};
      works.push_back(call("all_gather", tensor.whole.front(), site, [&](c10d::Backend& backend) {
        return backend.allgather(outputs, input);
      }));
    } else if (backend_name_ == "nccl" && tensor.is_even()) {
      works.push_back(call("all_gather", tensor.whole.front(), site, [&](c10d::Backend& backend) {
        return backend._allgather_base(tensor.whole.front(), own);
      }));
    } else {
      // c10d's all-gather wants parts of one size, and Gloo's would copy them there and back.
      for (int root = 0; root < world_size(); ++root) {
        start_broadcast(tensor.parts[static_cast<size_t>(root)], root, site, works);
      }
    }
  }
  if (stream_before) {
    wait_.gather.device.emplace_back(stream_before, record_if_blocking());
  } else if (wait_timer_enabled_ && device_.is_cpu()) {
    add_wait(wait_.gather, before);
  }
  for (const auto& work : works) {
    wait(work, wait_.gather);
  }
}

WaitTime::Event ProcessGroup::record() const {
  WaitTime::Event event;
  if (!events_.empty() && events_.front().use_count() == 1) {
    event = std::move(events_.front());
    events_.pop_front();
  } else {
    event = std::make_shared<c10::Event>(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  }
  event->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  events_.push_back(event);
  return event;
}

WaitTime::Event ProcessGroup::record_if_blocking() const {
  const bool blocks = backend_name_ == "mpi" && !device_.is_cpu();
  return wait_timer_enabled_ && blocks ? record() : nullptr;
}

void ProcessGroup::record_bytes(const CommunicationWait& captured) const {
  if (wait_timer_enabled_) {
    wait_.all_reduce_bytes.append(captured.all_reduce_bytes.begin(),
                                  captured.all_reduce_bytes.end());
    wait_.gather_bytes += captured.gather_bytes;
  }
}

void ProcessGroup::wait(const c10::intrusive_ptr<c10d::Work>& work, WaitTime& time) const {
  if (!work) {
    return;
  }
  if (!wait_timer_enabled_) {
    wait(*work);
  } else if (!device_.is_cpu()) {
    // wait() only makes the stream wait; the time passes there.
    const WaitTime::Event before = record();
    wait(*work);
    time.device.emplace_back(before, record());
  } else {
    const Clock::time_point before = Clock::now();
    wait(*work);
    add_wait(time, before);
  }
}

void ProcessGroup::add_wait(WaitTime& time, std::chrono::steady_clock::time_point begin) const {
  const Clock::time_point end = Clock::now();
  time.host_ms += std::chrono::duration<double, std::milli>(end - begin).count();
  if (trace_ != nullptr) {
    trace_->add_wait(begin, end);
  }
}

void ProcessGroup::wait(c10d::Work& work) const {
  if (backend_name_ != "gloo") {
    work.wait();
    return;
  }
  try {
    wait_over_gloo(*group_->getDefaultBackend(), work);
  } catch (const std::exception& error) {
    // Gloo's errors have no type of their own. The second is that of a collective beside the one
    // whose time was over.
    const std::string_view what = error.what();
    const bool timed_out = what.find("Timed out") != std::string_view::npos ||
                           what.find("Application timeout") != std::string_view::npos;
    const std::vector<int> late = late_ranks(store_, environment_, timed_out);
    if (late.empty()) {
      const auto* const from_torch = dynamic_cast<const c10::Error*>(&error);
      throw Error(
          ExitCode::kTrainingFailed,
          fmt::format("{}: {}", from_torch == nullptr ? what : from_torch->what_without_backtrace(),
                      log_->of(work)));
    }
    if (rank() == 0 && environment_.store.is_served_by_rank_0()) {
      at_train_end(wait_for_launcher);  // others may still ask
    }
    throw Error(ExitCode::kTrainingFailed,
                fmt::format("rank {} did not arrive within {} s, expected all {} ranks: {}",
                            fmt::join(late, ", "), in_seconds(store_->getTimeout()), world_size(),
                            log_->of(work)));
  }
}

void ProcessGroup::broadcast(torch::Tensor tensor, int root, const CallSite& site) const {
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  start_broadcast(tensor, root, site, works);
  for (const auto& work : works) {
    wait(work);
  }
}

void ProcessGroup::start_broadcast(const torch::Tensor& tensor, int root, const CallSite& site,
                                   std::vector<c10::intrusive_ptr<c10d::Work>>& works) const {
  // Gloo waits for all of a tensor with one --timeout: a large one goes piece by piece.
  constexpr int64_t kPieceBytes = 4 << 20;
  const std::vector<torch::Tensor> pieces =
      backend_name_ == "gloo" && tensor.is_contiguous()
          ? tensor.view(-1).split(kPieceBytes / tensor.element_size())
          : std::vector<torch::Tensor>{tensor};
  for (const torch::Tensor& piece : pieces) {
    if (piece.numel() > 0) {
      std::vector<torch::Tensor> part{piece};
      works.push_back(call("broadcast", piece, site, [&](c10d::Backend& backend) {
        return backend.broadcast(part, {.rootRank = root});
      }));
    }
  }
}

torch::Tensor ProcessGroup::all_gather(const torch::Tensor& tensor, const CallSite& site) const {
  std::vector<torch::Tensor> input{tensor.contiguous()};
  std::vector<std::vector<torch::Tensor>> output(1);
  for (int r = 0; r < world_size(); ++r) {
    output[0].push_back(torch::empty_like(input[0]));
  }
  wait(call("all_gather", tensor, site,
            [&](c10d::Backend& backend) { return backend.allgather(output, input); }));
  return torch::stack(output[0]);
}

void ProcessGroup::barrier(const CallSite& site) const {
  // Ranks meet while all-reduces are paused, too. No c10d barrier: NCCL's would guess the device.
  std::vector<torch::Tensor> one{torch::zeros({1}, device_)};
  wait(call("barrier", one.front(), site,
            [&](c10d::Backend& backend) { return backend.allreduce(one); }));
}

std::string ProcessGroup::lost_rank() const {
  return ddp::lost_rank(group_->getDefaultBackend().get());
}

torch::Tensor ProcessGroup::allocate(int64_t numel, torch::ScalarType dtype) const {
  const torch::TensorOptions options = torch::TensorOptions(dtype).device(device_);
  const auto backend = group_->getDefaultBackend();
  return device_.is_cpu() && backend->supportsTensorAlloc(device_.index())
             ? backend->allocateTensor(numel, options)
             : torch::empty({numel}, options);
}

std::string ProcessGroup::exchange_key(const std::string& topic) const {
  return fmt::format("{}/{}", topic, exchanges_++);
}

void ProcessGroup::verify_same(const std::string& topic, const std::string& text) const {
  verify(topic, text, [&](const std::vector<std::string>& texts) -> std::string {
    const auto other = std::ranges::find_if(texts, [&](const auto& its) { return its != text; });
    if (other == texts.end()) {
      return "";
    }
    const auto [theirs, ours] = first_difference(*other, text);
    return fmt::format(R"({}: rank {} has "{}", rank 0 has "{}", expected the same)", topic,
                       other - texts.begin(), theirs, ours);
  });
}

void ProcessGroup::verify(
    const std::string& topic, const std::string& text,
    const std::function<std::string(const std::vector<std::string>& texts)>& objection) const {
  const std::string key = exchange_key(topic);
  const std::vector<std::string> keys = keys_of_ranks(key, world_size());
  const std::string verdict_key = key + "/verdict";
  const std::chrono::milliseconds timeout = store_->getTimeout();
  std::string verdict;
  try {
    store_->set(keys[static_cast<size_t>(rank())], text);
    if (rank() == 0) {
      verdict = compare(*store_, keys, topic, timeout, objection);
      store_->set(verdict_key, verdict);
    } else {
      // Once rank 0 has come, it may itself wait as long for another rank, which it then names.
      constexpr std::chrono::seconds kLonger{5};
      expect_of_rank_0(*store_, keys.front(), topic, timeout);
      expect_of_rank_0(*store_, verdict_key, topic, timeout + kLonger);
      verdict = store_->get_to_str(verdict_key);
    }
  } catch (const c10::DistNetworkError&) {
    wait_for_launcher();
    throw TransientError(
        fmt::format("the store went away during the comparison of {}, expected rank 0 (or the "
                    "launcher's agent) to serve it",
                    topic));
  }
  if (verdict == kSame) {
    return;
  }
  let_others_read(*store_, topic, rank(), world_size(), timeout);
  const std::string what = verdict.substr(verdict.find(' ') + 1);
  if (static_cast<ExitCode>(std::stoi(verdict)) == ExitCode::kUsage) {
    throw UsageError(what);
  }
  throw TransientError(what);
}

std::string ProcessGroup::share(const std::string& topic, const std::string& text) const {
  const std::string key = exchange_key(topic);
  if (rank() == 0) {
    store_->set(key, text);
  }
  return store_->get_to_str(key);
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

void attach_backend(c10d::ProcessGroup& group, const torch::Device& device,
                    const c10::intrusive_ptr<c10d::Backend>& backend) {
  using Type = c10d::ProcessGroup::BackendType;
  const std::string name = backend->getBackendName();
  const Type type = name == "nccl" ? Type::NCCL : name == "gloo" ? Type::GLOO : Type::CUSTOM;
  group.setBackend(device.type(), type, backend);
  group.setDefaultBackend(type);
  group.setGroupName("world");
}

ProcessGroup create_process_group(const Options& options, const LaunchEnvironment& environment,
                                  const torch::Device& device) {
  return create_process_group(environment, device, group_options(options, environment));
}

ProcessGroup create_process_group(const LaunchEnvironment& environment, const torch::Device& device,
                                  const ProcessGroupOptions& options) {
  // c10d logs, with backtraces, what it then throws; the exception makes one line of it.
  setenv("TORCH_CPP_LOG_LEVEL", "FATAL", /*overwrite=*/0);
  c10::initLogging();
  const std::chrono::milliseconds timeout = timeout_of(options);
  const std::string name = resolve_backend(options.backend, device);
  check_launch(name, environment);
  const std::string interface = wanted_interface(options);
  if (!interface.empty()) {
    // NCCL chooses by itself; "=" asks for this very name, not for all that begin with it.
    setenv("NCCL_SOCKET_IFNAME", ("=" + interface).c_str(), /*overwrite=*/0);
  }
  if (name == "nccl") {
    require_interface_of_nccl(process_getenv("NCCL_SOCKET_IFNAME").value_or(""));
  }
  const Rendezvous meeting = rendezvous(environment, interface, timeout);
  const c10::intrusive_ptr<c10d::Store>& store = meeting.store;
  auto group =
      c10::make_intrusive<c10d::ProcessGroup>(store, environment.rank, environment.world_size);
  ProcessGroup process_group(environment, store, group, name, device);
  process_group.verify_same(
      "settings",
      fmt::format("version {}\nworld size {}\ndevice {}\n{}", DDP_VERSION, environment.world_size,
                  c10::DeviceTypeName(device.type(), /*lower_case=*/true), options.settings));
  if (device.is_cuda()) {
    process_group.verify("devices", cuda_device_uuid(device.index()), shared_device);
  }
  std::shared_ptr<CollectiveWatch> watch;
  const auto log = std::make_shared<CollectiveLog>();
  if (name == "nccl") {
    explain_timeouts(store, environment, log);
    watch = std::make_shared<CollectiveWatch>(timeout, progress_of(device));
  }
  const BackendOptions backend_options{environment.rank,
                                       environment.world_size,
                                       device,
                                       timeout,
                                       address_for_peers(environment, interface, meeting),
                                       environment.num_nodes,
                                       [log] { return log->last_call(); }};
  std::optional<CollectiveWatch::Call> watched;
  if (watch) {
    watched.emplace(*watch);
  }
  const auto backend =
      make_backend(name, c10::make_intrusive<c10d::PrefixStore>("backend", store), backend_options);
  watched.reset();
  attach_backend(*group, device, backend);
  // The others notice its end, and an error is to be said before. The watch is the last to go, as
  // an end may hang, too.
  at_train_end([watch, group] {});
  return ProcessGroup(environment, store, group, backend->getBackendName(), device,
                      std::move(watch), log);
}

void destroy_process_group(ProcessGroup& process_group) {
  process_group.destroyed_ = true;
  depart(*process_group.store_, process_group.rank(), process_group.world_size());
  for (const auto& release : process_group.before_shutdown_) {
    release();
  }
  process_group.call([](c10d::Backend& backend) { backend.shutdown(); });
  if (process_group.watch_) {
    process_group.watch_->end();
    process_group.watch_.reset();
  }
}

namespace {

/// See Note [Default group]. Destroyed when `train` has ended, by exception or not, while what
/// LibTorch and NCCL keep per thread is still there.
thread_local std::unique_ptr<ProcessGroup> default_group;

}  // namespace

void init_process_group(const Options& options, const LaunchEnvironment& environment,
                        const torch::Device& device) {
  init_process_group(environment, device, group_options(options, environment));
}

void init_process_group(const LaunchEnvironment& environment, const torch::Device& device,
                        const ProcessGroupOptions& options) {
  default_group.reset();
  // No make_unique: a process group can be neither copied nor moved.
  default_group.reset(new ProcessGroup(create_process_group(environment, device, options)));
  at_train_end([] { default_group.reset(); });
}

ProcessGroup* find_default_process_group() {
  return default_group && !default_group->is_destroyed() ? default_group.get() : nullptr;
}

ProcessGroup& default_process_group() {
  ProcessGroup* const group = find_default_process_group();
  TORCH_CHECK(group != nullptr, "Expected init_process_group() to have been called, got no group");
  return *group;
}

void destroy_process_group() {
  destroy_process_group(default_process_group());
}

void all_reduce(torch::Tensor tensor, const CallSite& site) {
  default_process_group().all_reduce(std::move(tensor), site);
}

void broadcast(torch::Tensor tensor, int root, const CallSite& site) {
  default_process_group().broadcast(std::move(tensor), root, site);
}

}  // namespace ddp
