// How ranks become a process group: told the same, over the network that was asked for, and for as
// long as they need between two collectives.
#include "common/parallel/process_group.hpp"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <functional>
#include <future>
#include <iostream>
#include <map>
#include <memory>
#include <regex>
#include <thread>

#include "common/backends/backend.hpp"
#include "common/backends/hierarchical.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/private_file.hpp"
#include "common/base/process.hpp"
#include "common/base/scratch_folder.hpp"
#include "common/base/seconds_since.hpp"
#include "common/data/dataset.hpp"
#include "common/launch/network.hpp"
#include "common/launch/stop_request.hpp"
#include "common/parallel/collective_watch.hpp"
#include "common/parallel/distributed_sampler.hpp"
#include "common/parallel/rendezvous.hpp"
#include "common/parallel/signs_of_life.hpp"
#include "tests/catch.hpp"
#include "tests/support/run_program.hpp"

namespace {

using ddp::Options;
using ddp::ProcessGroup;
using ddp::test::contains;
using ddp::test::RunResult;

Options plain() {
  Options options;
  options.program = "process_group_test";
  options.total_epochs = options.save_every = 2;
  options.backend = "gloo";
  options.timeout_seconds = 30;
  return options;
}

/// Stage 04 on the CPU, as mpirun would start it: rank 0 takes any free port, and tells the others
/// in a file.
std::unique_ptr<ddp::test::Program> start_rank(
    const std::string& folder, int rank, int world_size, const std::vector<std::string>& arguments,
    const std::map<std::string, std::string>& variables = {}) {
  ddp::test::RunOptions options;
  options.cwd = folder;
  options.environment = {{"OMPI_COMM_WORLD_RANK", std::to_string(rank)},
                         {"OMPI_COMM_WORLD_SIZE", std::to_string(world_size)},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", std::to_string(rank)},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", std::to_string(world_size)},
                         {"PMIX_NAMESPACE", "job"},
                         {"PMIX_SERVER_TMPDIR", folder}};
  options.environment.insert(variables.begin(), variables.end());
  std::vector<std::string> command = {std::string(DDP_BIN_DIR) + "/04_ddp_launcher"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  command.insert(command.end(), {"--device", "cpu"});
  return std::make_unique<ddp::test::Program>(command, options);
}

enum class Server { kNobody, kRank0, kAgent };

/// A store as torchrun's agent serves it.
c10::intrusive_ptr<c10d::Store> agents_store(const ddp::Listener& listener) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(listener.port);
  options.isServer = true;
  options.waitWorkers = false;
  options.masterListenFd = listener.fd;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

/// A rank's place in a job of one host that meets at such a store.
ddp::LaunchEnvironment of_agent(int rank, int world_size, int port) {
  ddp::LaunchEnvironment environment;
  environment.rank = environment.local_rank = rank;
  environment.world_size = environment.local_world_size = world_size;
  environment.store.kind = ddp::StoreLocation::Kind::kAgentTcp;
  environment.store.host = "127.0.0.1";
  environment.store.port = port;
  return environment;
}

/// Runs `body` in a process of its own, whose exit code is 0 if that throws what `expected`, a
/// regular expression, says. Without exec, so it must not need a thread or a lock of this process.
pid_t in_child(const std::string& expected, const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // a lock that a thread of the parent held would never be free
    try {
      body();
    } catch (const std::exception& error) {
      const bool is_expected = std::regex_match(error.what(), std::regex(expected));
      if (!is_expected) {
        std::cerr << "threw \"" << error.what() << "\", expected " << expected << std::endl;
      }
      _exit(is_expected ? 0 : 2);
    } catch (...) {
    }
    _exit(1);
  }
  return child;
}

/// @return that of a process that ended by itself, or -1
int exit_code_of(pid_t child) {
  int status = 0;
  REQUIRE(child > 0);
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/// A rank that takes itself to be alone on its host, and talks to the others over Gloo.
ProcessGroup on_host_of_its_own(const ddp::LaunchEnvironment& environment) {
  c10d::TCPStoreOptions client;
  client.port = static_cast<uint16_t>(environment.store.port);
  const auto store = c10::make_intrusive<c10d::TCPStore>(environment.store.host, client);
  ddp::shm::HostIdentity identity = ddp::shm::read_host_identity();
  identity.host_name += std::to_string(environment.rank);
  const ddp::BackendOptions options{
      environment.rank,        environment.world_size, torch::kCPU,
      std::chrono::minutes(2), environment.store.host, environment.world_size};
  auto group =
      c10::make_intrusive<c10d::ProcessGroup>(store, environment.rank, environment.world_size);
  ddp::attach_backend(*group, torch::kCPU,
                      ddp::make_hierarchical_backend(
                          store, options, ddp::find_topology(store, options, identity), identity));
  return ProcessGroup(environment, store, group, "hierarchical", torch::kCPU);
}

/// Ranks that are threads, and meet as processes do, each with options and a device of its own.
/// @param server of the store; nobody: it is a file
/// @return what each threw
std::vector<std::string> meet(const std::vector<Options>& options_of_rank,
                              const std::vector<torch::Device>& devices,
                              const std::function<void(ProcessGroup&, const Options&)>& body,
                              Server server = Server::kNobody) {
  // c10d's flight recorder is one object for the process and not made for ranks that are threads.
  setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1);
  const int world_size = static_cast<int>(options_of_rank.size());
  const bool by_agent = server == Server::kAgent;
  const ddp::Listener listener = ddp::listen_on("127.0.0.1", 0);
  const auto store = by_agent ? agents_store(listener) : nullptr;
  const ddp::FileDescriptor file(ddp::create_nameless_file());
  if (!by_agent) {
    close(listener.fd);  // the port is rank 0's, if it needs one
  }
  std::vector<std::string> messages(options_of_rank.size());
  const auto run = [&](int rank) {
    std::string& message = messages[static_cast<size_t>(rank)];
    try {
      at::init_num_threads();
      ddp::LaunchEnvironment environment = of_agent(rank, world_size, listener.port);
      if (server == Server::kRank0) {
        environment.store.kind = ddp::StoreLocation::Kind::kTcp;
      } else if (server == Server::kNobody) {
        environment.store.kind = ddp::StoreLocation::Kind::kInheritedFile;
        environment.store.fd = file.get();
      }
      const Options& options = options_of_rank[static_cast<size_t>(rank)];
      ProcessGroup group =
          ddp::create_process_group(options, environment, devices[static_cast<size_t>(rank)]);
      body(group, options);
      ddp::destroy_process_group(group);
    } catch (const ddp::UsageError& error) {
      message = error.what();
    } catch (const ddp::Error& error) {
      message = fmt::format("{}: {}", static_cast<int>(error.code()), error.what());
    } catch (const std::exception& error) {
      message = std::string("not a usage error: ") + error.what();
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back(run, rank);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return messages;
}

std::vector<std::string> meet(const std::vector<Options>& options_of_rank,
                              const std::function<void(ProcessGroup&, const Options&)>& body) {
  return meet(options_of_rank, std::vector<torch::Device>(options_of_rank.size(), torch::kCPU),
              body);
}

/// Sets a variable of this process for as long as it lives.
class Variable {
 public:
  Variable(std::string name, const std::string& value) : name_(std::move(name)) {
    setenv(name_.c_str(), value.c_str(), /*overwrite=*/1);
  }
  ~Variable() { unsetenv(name_.c_str()); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  std::string name_;
};

}  // namespace

TEST_CASE("ranks that were told different things refuse before they connect, and name the setting",
          "[settings]") {
  struct Difference {
    std::string named;  ///< the setting, and the value of rank 2
    std::function<void(Options&)> make;
  };
  const std::vector<Difference> differences = {
      {"program other", [](Options& o) { o.program = "other"; }},
      {"--total-epochs 3", [](Options& o) { o.total_epochs = 3; }},
      {"--save-every 1", [](Options& o) { o.save_every = 1; }},
      {"--batch-size 16", [](Options& o) { o.batch_per_rank = 16; }},
      {"--batch-size 8", [](Options& o) { o.global_batch = 24; }},
      {"--batch-size auto", [](Options& o) { o.find_batch = true; }},
      {"--scale-lr sqrt", [](Options& o) { o.scale_lr = "sqrt"; }},
      {"--accumulate 2", [](Options& o) { o.accumulate = 2; }},
      {"--optimizer adam", [](Options& o) { o.optimizer = "adam"; }},
      {"--lr 0.02", [](Options& o) { o.learning_rate = 0.02; }},
      {"--lr-schedule linear", [](Options& o) { o.lr_schedule = "linear"; }},
      {"--seed 43", [](Options& o) { o.seed = 43; }},
      {"--deterministic 1", [](Options& o) { o.deterministic = true; }},
      {"--dataset digits", [](Options& o) { o.dataset = "digits"; }},
      {"--dataset-size 2047", [](Options& o) { o.dataset_size = 2047; }},
      {"--hidden 7,8",
       [](Options& o) {
         o.hidden = {7, 8};
       }},
      {"--layers 20,3,1",
       [](Options& o) {
         o.layers = {20, 3, 1};
       }},
      {"--sampler none", [](Options& o) { o.sampler = "none"; }},
      {"--speedup fused", [](Options& o) { o.speedup = "fused"; }},
      {"--backend shm", [](Options& o) { o.backend = "shm"; }},
      {"--bucket-mib 25.000001", [](Options& o) { o.bucket_mib = 25.000001; }},
      {"--gradient-compression bf16", [](Options& o) { o.gradient_compression = "bf16"; }},
      {"--shard-optimizer 1", [](Options& o) { o.shard_optimizer = true; }},
      {"--resume auto", [](Options& o) { o.resume = "auto"; }},
      {"--metrics 1", [](Options& o) { o.metrics = "m.jsonl"; }},
      {"--trace 1", [](Options& o) { o.trace = "t.json"; }},
      {"--check finite 1", [](Options& o) { o.check_finite = true; }},
      {"--check weights 5", [](Options& o) { o.check_weights_every = 5; }},
      {"--no-communication 1", [](Options& o) { o.no_communication = true; }},
      {"--inject no-mean", [](Options& o) { o.inject = "no-mean"; }},
  };
  for (const auto& [named, make] : differences) {
    INFO(named);
    std::vector<Options> options(3, plain());
    make(options[2]);
    std::atomic<bool> connected = false;
    const auto messages = meet(options, [&](ProcessGroup&, const Options&) { connected = true; });
    CHECK_FALSE(connected);
    for (const std::string& message : messages) {
      INFO(message);
      CHECK(contains(message, "settings: rank 2 has \"" + named + "\", rank 0 has \""));
      CHECK(contains(message, "\", expected the same"));
      CHECK_FALSE(contains(message, "\n"));
    }
  }
}

TEST_CASE("a global batch that one rank alone was told is named, though it is the others' too",
          "[settings]") {
  std::vector<Options> options(2, plain());
  for (Options& of_rank : options) {
    of_rank.find_batch = true;
  }
  options[1].global_batch = 2 * options[0].batch_per_rank;
  for (const std::string& message : meet(options, [](ProcessGroup&, const Options&) {})) {
    INFO(message);
    CHECK(contains(message, fmt::format("rank 1 has \"--global-batch {}\", rank 0 has "
                                        "\"--global-batch as found\"",
                                        *options[1].global_batch)));
  }
}

TEST_CASE("numbers that print alike to six digits are different, too", "[settings]") {
  std::vector<Options> options(2, plain());
  options[0].learning_rate = 0.1;
  options[1].learning_rate = 0.10000001;
  const auto messages = meet(options, [](ProcessGroup&, const Options&) {});
  CHECK(contains(messages[1], "\"--lr 0.10000001\", rank 0 has \"--lr 0.1\""));
}

TEST_CASE("a rank that found no GPU is another setting", "[settings]") {
  const auto messages =
      meet({plain(), plain()}, {torch::Device("cuda:0"), torch::kCPU}, [](auto&, auto&) {});
  CHECK(contains(messages[0], "rank 1 has \"device cpu\", rank 0 has \"device cuda\""));
  CHECK(messages[1] == messages[0]);
}

TEST_CASE("what concerns one rank alone may differ", "[settings]") {
  std::vector<Options> options(2, plain());
  options[1].threads = 2;
  options[1].bind = "cores";
  options[1].quiet = options[1].verbose = true;
  options[1].timeout_seconds = 31;
  options[1].snapshot = options[1].data_dir = "elsewhere";
  options[1].interface = "lo";
  const auto messages = meet(options, [](ProcessGroup& group, const Options&) { group.barrier(); });
  CHECK(messages == std::vector<std::string>{"", ""});
}

TEST_CASE("other data is refused before the first collective", "[settings]") {
  Options other = plain();
  other.dataset_size = 2047;
  const auto sampled = meet(std::vector<Options>(3, plain()), [&](ProcessGroup& group, auto& same) {
    ddp::DistributedSampler(ddp::load_dataset(group.rank() == 1 ? other : same), group, same);
    throw std::runtime_error("went on");
  });
  for (const std::string& message : sampled) {
    INFO(message);
    CHECK(contains(message, "dataset: rank 1 has \"synthetic 2047+511 samples, hash "));
    CHECK(contains(message, "rank 0 has \"synthetic 2048+512 samples, hash "));
  }
}

TEST_CASE("ranks that have one GPU are refused, all alike", "[settings]") {
  const auto meet_with = [](const std::vector<std::string>& devices) {
    return meet(
        std::vector<Options>(devices.size(), plain()),
        std::vector<torch::Device>(devices.size(), torch::kCPU), [&](ProcessGroup& group, auto&) {
          group.verify("devices", devices[static_cast<size_t>(group.rank())], ddp::shared_device);
        });
  };
  for (const std::string& message : meet_with({"a", "b", "c", "b"})) {
    CHECK(message ==
          "ranks 1 and 3 have one CUDA device, UUID b, expected one for each: give each process "
          "all devices of its node, or one of its own (--gpus-per-task=1)");
  }
  for (const std::string& message : meet_with({"", "b", "", "c"})) {
    CHECK(message.empty());
  }
}

TEST_CASE("a rank that ends before its text was compared is named by all others", "[settings]") {
  const auto without = [](int lost, Server server) {
    Options options = plain();
    options.timeout_seconds = 8;
    auto messages = meet(
        std::vector<Options>(4, options), std::vector<torch::Device>(4, torch::kCPU),
        [lost](ProcessGroup& group, auto&) {
          group
              .barrier();  // until all are connected they read one another's addresses in the store
          if (group.rank() == lost) {
            throw std::runtime_error("ended");
          }
          group.verify_same("model", "the same");
        },
        server);
    messages.erase(messages.begin() + lost);
    return messages;
  };
  struct Case {
    int lost;
    Server server;
    std::string message;
  };
  const std::vector<Case> cases = {
      {1, Server::kRank0,
       "within 8 s the comparison of model lacks rank 1 of world size 4, expected all of them"},
      {3, Server::kAgent,
       "within 8 s the comparison of model lacks rank 3 of world size 4, expected all of them"},
      {0, Server::kAgent,
       "within 8 s the comparison of model lacks rank 0, expected it to tell the other ranks"},
      {1, Server::kNobody,
       "within 8 s the comparison of model lacks rank 1 of world size 4, expected all of them"},
      {0, Server::kNobody,
       "within 8 s the comparison of model lacks rank 0, expected it to tell the other ranks"},
      {0, Server::kRank0,
       "the store went away during the comparison of model, expected rank 0 (or the launcher's "
       "agent) to serve it"}};
  std::vector<std::future<std::vector<std::string>>> runs;
  for (const Case& one : cases) {
    runs.push_back(std::async(std::launch::async, without, one.lost, one.server));
  }
  for (size_t i = 0; i < cases.size(); ++i) {
    CHECK(runs[i].get() == std::vector<std::string>(3, "75: " + cases[i].message));
  }
}

TEST_CASE("real ranks told different things: exit code 2, one line each, nothing trained",
          "[settings][stage]") {
  const ddp::ScratchFolder folder("ddp-process-group");
  std::vector<std::unique_ptr<ddp::test::Program>> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.push_back(
        start_rank(folder.path(), rank, 3, {"2", "1", "--seed", rank == 2 ? "7" : "42"}));
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const RunResult result = ranks[rank]->wait();
    INFO(result.err);
    CHECK(result.exit_code == 2);
    CHECK(result.out.empty());
    CHECK(result.err == "04_ddp_launcher: error: [rank " + std::to_string(rank) +
                            "] settings: rank 2 has \"--seed 7\", rank 0 has \"--seed 42\", "
                            "expected the same\n");
  }
}

namespace {

/// @return the first of our processes to end, which is still to be waited for; 0: none within 50 s
pid_t first_to_end() {
  const auto begin = std::chrono::steady_clock::now();
  siginfo_t ended{};
  while (ended.si_pid == 0 && ddp::seconds_since(begin) < 50) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    REQUIRE(waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) == 0);
  }
  return ended.si_pid;
}

}  // namespace

TEST_CASE("a rank that is there twice is refused, the run goes on", "[store][stage]") {
  const ddp::ScratchFolder folder("ddp-process-group");
  std::vector<std::unique_ptr<ddp::test::Program>> processes;
  for (const int rank : {1, 1, 0}) {
    // Until it is stopped: whoever comes when a run is over meets nobody.
    processes.push_back(start_rank(folder.path(), rank, 2, {"1000000", "1000000", "--quiet"}));
  }
  const pid_t refused = first_to_end();
  for (const auto& process : processes) {
    if (process->pid() != refused) {
      kill(process->pid(), SIGUSR1);
    }
  }
  for (size_t i = 0; i < processes.size(); ++i) {
    const bool is_refused = processes[i]->pid() == refused;
    CHECK((!is_refused || i < 2));
    const RunResult result = processes[i]->wait();
    INFO(result.err);
    CHECK(result.exit_code == (is_refused ? 75 : 85));
    if (is_refused) {
      CHECK(result.err ==
            "04_ddp_launcher: error: [rank 1] rank 1 was here before: another process has its "
            "number, or an earlier start met at the same store; expected each of 2 ranks once\n");
    }
  }
  CHECK(refused != 0);
}

TEST_CASE("a connection that breaks under a message is noticed at once, not after --timeout",
          "[lost][stage]") {
  int forgotten = 0;  // else Gloo tells it: the peer's message came after the connection's end
  for (const std::string message : {"501", "502", "503", "504"}) {
    const ddp::ScratchFolder folder("ddp-process-group");
    const std::vector<std::string> arguments = {"1000000", "1000000",   "--backend",
                                                "gloo",    "--timeout", "120"};
    const auto other = start_rank(folder.path(), 0, 2, arguments);
    const auto cut = start_rank(folder.path(), 1, 2, arguments,
                                {{"LD_PRELOAD", DDP_CUT_CONNECTION}, {"DDP_CUT_AT", message}});
    const RunResult result = cut->wait();
    INFO(message << ": " << result.seconds << " s\n" << result.err);
    CHECK(result.exit_code == 1);
    CHECK(std::ranges::count(result.err, '\n') == 1);
    CHECK(other->wait().exit_code == 1);
    CHECK(result.seconds < 60);
    forgotten +=
        contains(result.err, "[rank 1] a connection to another rank broke, expected") ? 1 : 0;
  }
  CHECK(forgotten > 0);
}

TEST_CASE("a device that is far behind the host, but gets further, is not given up", "[timeout]") {
  // What a thread throws would end this process.
  std::atomic<int> questions = 0;
  ddp::CollectiveWatch watch(std::chrono::milliseconds(200), [&] { return ++questions % 8 == 0; });
  {
    const ddp::CollectiveWatch::Call call(watch);
    std::this_thread::sleep_for(std::chrono::milliseconds(700));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));  // --timeout, the turn, and as much
  CHECK(questions >= 16);
  watch.end();
  const int asked = questions;
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  CHECK(questions == asked);
}

TEST_CASE("two collectives may be further apart than --timeout", "[timeout]") {
  const auto train = [](const std::string& backend) {
    Options options = plain();
    options.timeout_seconds = 3;
    options.backend = backend;
    return meet({options, options}, [](ProcessGroup& group, const Options&) {
      const torch::Tensor tensor = torch::ones({1000});
      // Rank 1 is a bit late, so that rank 0 does wait, and looks at its clock.
      std::this_thread::sleep_for(std::chrono::milliseconds(100 * group.rank()));
      group.all_reduce(tensor);
      std::this_thread::sleep_for(std::chrono::milliseconds(4000 + 100 * group.rank()));
      group.all_reduce(tensor);
      group.broadcast(tensor);
      TORCH_CHECK(group.all_gather(tensor).sum().item<double>() == 8000);
    });
  };
  const std::vector<std::string> nothing_thrown(2);
  auto over_gloo = std::async(std::launch::async, train, "gloo");
  CHECK(train("shm") == nothing_thrown);
  CHECK(over_gloo.get() == nothing_thrown);
}

TEST_CASE("a rank that was asked to stop gives rank 0 up that gives no sign, or no further one",
          "[store]") {
  struct Case {
    std::string sign;  // that the store has; empty: none
    int patience_s;
  };
  std::vector<pid_t> children;
  for (const Case& one : {Case{"", 8}, Case{"an earlier save 7", 8}, Case{"key 1", 3}}) {
    const std::string expected = fmt::format(
        "rank 0 gave no sign of life for {} s while it writes the snapshot", one.patience_s);
    children.push_back(in_child(expected, [&one] {
      ddp::watch_for_stop_request();
      raise(SIGTERM);  // for good
      const c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
      store->setTimeout(std::chrono::minutes(2));
      if (!one.sign.empty()) {
        store->set("sign", one.sign);
      }
      ddp::wait_for_rank_0(store, "key", "sign", "writes the snapshot", [] { return ""; });
    }));
  }
  for (const pid_t child : children) {
    CHECK(exit_code_of(child) == 0);
  }
}

TEST_CASE("an answer that rank 0 gave before a rank was lost counts", "[store]") {
  const c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
  store->setTimeout(std::chrono::minutes(1));
  const auto lost_rank = [&store] {
    store->set("key", "saved");
    return "rank 1 (pid 7) left";
  };
  CHECK(ddp::wait_for_rank_0(store, "key", "sign", "writes the snapshot", lost_rank) == "saved");
}

TEST_CASE("who gave rank 0 up just before is not blamed for its silence", "[store]") {
  const auto message = [](std::chrono::milliseconds timeout, std::chrono::milliseconds lost_after) {
    const c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
    store->setTimeout(timeout);
    const auto begin = std::chrono::steady_clock::now();
    try {
      ddp::wait_for_rank_0(store, "key", "sign", "writes the snapshot", [&] {
        return std::chrono::steady_clock::now() - begin < lost_after ? "" : "rank 1 (pid 7) left";
      });
    } catch (const ddp::Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  using std::chrono_literals::operator""ms;
  CHECK(message(2000ms, 1500ms) ==
        "rank 0 gave no sign of life for 2 s while it writes the snapshot");
  CHECK(message(60'000ms, 0ms) == "rank 1 (pid 7) left while rank 0 writes the snapshot");
}

TEST_CASE("who has the store's port and never answers is told from a store", "[store]") {
  // The kernel takes the connection; nobody accepts it.
  const ddp::Listener listener = ddp::listen_on("127.0.0.1", 0);
  const auto begin = std::chrono::steady_clock::now();
  const pid_t child = in_child(
      fmt::format("127\\.0\\.0\\.1:{} took the connection and did not answer within 2 s, .*",
                  listener.port),
      [&] {
        ddp::rendezvous(of_agent(1, 2, listener.port), "", std::chrono::seconds(2));
        throw std::runtime_error("met");
      });
  CHECK(exit_code_of(child) == 0);
  CHECK(ddp::seconds_since(begin) < 30);
  close(listener.fd);
}

TEST_CASE("where nobody listens nobody is said to have taken a connection", "[store]") {
  const ddp::Listener listener = ddp::listen_on("127.0.0.1", 0);
  close(listener.fd);
  const pid_t child =
      in_child(fmt::format("no store at 127\\.0\\.0\\.1:{} within 2 s, .*", listener.port), [&] {
        ddp::LaunchEnvironment environment = of_agent(1, 2, listener.port);
        environment.store.kind = ddp::StoreLocation::Kind::kTcp;
        ddp::rendezvous(environment, "", std::chrono::seconds(2));
        throw std::runtime_error("met");
      });
  CHECK(exit_code_of(child) == 0);
}

TEST_CASE("rank 0's end is noticed by those who wait for it, before any sign of it", "[store]") {
  struct Case {
    std::string backend;
    int hosts;  // with all ranks between them
    std::string says;
  };
  const std::string by_shm = "rank 0 \\(pid [0-9]+\\) died";
  const std::string by_gloo = "the connection to another rank broke";
  const Case one = GENERATE_COPY(Case{"shm", 1, by_shm}, Case{"hierarchical", 1, by_shm},
                                 Case{"hierarchical", 2, by_gloo}, Case{"gloo", 1, by_gloo});
  INFO(one.backend << ", hosts: " << one.hosts);
  const ddp::Listener listener = ddp::listen_on("127.0.0.1", 0);
  const auto start = [&](int rank) {
    return in_child(one.says + " while rank 0 writes the snapshot", [&, rank] {
      const ddp::LaunchEnvironment environment = of_agent(rank, 2, listener.port);
      Options options = plain();
      options.backend = one.backend;
      options.timeout_seconds = 120;
      const ProcessGroup group = one.hosts == 1
                                     ? ddp::create_process_group(options, environment, torch::kCPU)
                                     : on_host_of_its_own(environment);
      group.barrier();
      if (rank == 0) {
        group.store()->wait({"rank 1 waits"});
        _exit(0);
      }
      group.store()->set("rank 1 waits", "");
      ddp::wait_for_rank_0(group, "key", "sign", "writes the snapshot");
    });
  };
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<pid_t> children = {start(0), start(1)};
  const auto store = agents_store(listener);
  for (const pid_t child : children) {
    CHECK(exit_code_of(child) == 0);
  }
  CHECK(ddp::seconds_since(begin) < 30);
}

TEST_CASE("the interface that torch's own variables name", "[interface]") {
  const auto one_rank = [](const std::string& backend, torch::Device device = torch::kCPU) {
    Options options = plain();
    options.backend = backend;
    return meet({options}, {device}, [](ProcessGroup&, const Options&) {}).front();
  };
  const auto of_nccl = [] { return std::string(getenv("NCCL_SOCKET_IFNAME")); };
  SECTION("NCCL gets Gloo's, by its whole name, unless it has its own") {
    const Variable gloo("GLOO_SOCKET_IFNAME", "lo,eth9");
    CHECK(one_rank("gloo").empty());
    const Variable after("NCCL_SOCKET_IFNAME", of_nccl());  // unset when this section ends
    CHECK(of_nccl() == "=lo");
    const Variable nccl("NCCL_SOCKET_IFNAME", "ib");
    CHECK(one_rank("gloo").empty());
    CHECK(of_nccl() == "ib");
  }
  SECTION("a wrong name is refused under the variable's name") {
    for (const std::string name : {"GLOO_SOCKET_IFNAME", "DDP_INTERFACE"}) {
      const Variable wrong(name, "nope,lo");
      CHECK(contains(one_rank("gloo"), name + ": \"nope\" is no network interface of this host"));
    }
    const Variable wrong("NCCL_SOCKET_IFNAME", "nope");
    CHECK(contains(one_rank("nccl", torch::Device("cuda:0")),
                   "NCCL_SOCKET_IFNAME: \"nope\" names no network interface of this host"));
    CHECK(one_rank("gloo").empty());  // who does not use NCCL
  }
}

TEST_CASE("a collective is told by kind, size, number and the line that called it", "[call_site]") {
  ddp::CollectiveLog log;
  CHECK(log.last().empty());
  CHECK(log.last_call().empty());
  const auto early = c10::make_intrusive<c10d::Work>();
  const auto late = c10::make_intrusive<c10d::Work>();
  log.begin("all_reduce", torch::zeros({2, 3}), ddp::CallSite{.file = "mine.cpp", .line = 7});
  log.started(early.get());
  CHECK(log.of(*early) == "all_reduce of 6 float32 (collective 1), called at mine.cpp:7");
  CHECK(log.last_call() == "collective 1, called at mine.cpp:7");
  const int line = __LINE__ + 1;
  const auto here = ddp::CallSite::current();
  for (int i = 0; i < 64; ++i) {  // as many as are kept
    log.begin("broadcast", torch::zeros({i}, torch::kHalf), here);
    log.started(i == 10 ? late.get() : nullptr);
  }
  CHECK(log.of(*late) == fmt::format("broadcast of 10 float16 (collective 12), called at "
                                     "tests/process_group_test.cpp:{}",
                                     line));
  CHECK(contains(log.of(*early), "(collective 65)"));  // forgotten: the last one
  log.begin("all_reduce", torch::zeros({1}), ddp::CallSite{.file = "--speedup fused", .bucket = 3});
  CHECK(
      log.last() ==
      "all_reduce of 1 float32 (collective 66), called by --speedup fused, bucket 3 of gradients");
}

namespace {

/// Whose every broadcast throws.
template <typename Thrown>
class Refusing : public c10d::Backend {
 public:
  Refusing() : c10d::Backend(0, 1) {}
  const std::string getBackendName() const override { return "refusing"; }
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>&,
                                           const c10d::BroadcastOptions&) override {
    throw Thrown("got a stone, expected bread");
  }
};

template <typename Thrown>
void check_told_as_thrown() {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto group = c10::make_intrusive<c10d::ProcessGroup>(store, 0, 1);
  ddp::attach_backend(*group, torch::kCPU, c10::make_intrusive<Refusing<Thrown>>());
  const ProcessGroup process_group({}, store, group, "refusing", torch::kCPU);
  std::string told;
  const int line = __LINE__ + 2;
  try {
    process_group.broadcast(torch::zeros({3}));
  } catch (const Thrown& error) {  // not only an Error
    told = error.what();
  }
  CHECK(told == fmt::format("got a stone, expected bread; collective 1, called at "
                            "tests/process_group_test.cpp:{}",
                            line));
}

}  // namespace

TEST_CASE("an error of a collective keeps its class when the line is added", "[call_site]") {
  check_told_as_thrown<ddp::UsageError>();
  check_told_as_thrown<ddp::TransientError>();
}
