// Ranks form a process group and compare their settings; results of its collectives, and messages
// about a rank that does not come.
#include "common/parallel/default_group.hpp"

#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/linear.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <sys/stat.h>

#include <atomic>
#include <csignal>

#include "common/base/exit_codes.hpp"
#include "common/base/files.hpp"
#include "common/base/patience.hpp"
#include "common/launch/spawn.hpp"
#include "common/meet/address.hpp"
#include "common/meet/board.hpp"
#include "common/meet/store.hpp"
#include "common/parallel/accelerator.hpp"
#include "common/parallel/distributed_data_parallel.hpp"
#include "common/parallel/nn.hpp"
#include "common/parallel/sync_batch_norm.hpp"
#include "common/training/stop_request.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/differing_options.hpp"
#include "tests/support/ranks_by_hand.hpp"
#include "tests/support/threads_as_ranks.hpp"

namespace {

using ddp::Options;
using ddp::ProcessGroup;
using Kind = ddp::StoreLocation::Kind;

Options plain(double timeout_seconds = 30) {
  Options options;
  options.program = "process_group_test";
  options.total_epochs = options.save_every = 2;
  options.learning_rate = 0.1;
  options.backend = "gloo";
  options.timeout_seconds = timeout_seconds;
  return options;
}

/// Runs ranks as threads that meet like processes, each with its own options and device.
/// @param kind kind of the store: a file, rank 0's, or an agent's
/// @param devices none: the CPU @param change of what a launcher tells a rank
/// @return exit code and error of each rank: "75: no store", or "other: text" without exit code
std::vector<std::string> meet(const std::vector<Options>& options,
                              const std::function<void(const ProcessGroup&)>& body,
                              Kind kind = Kind::kFile,
                              const std::vector<torch::Device>& devices = {},
                              const std::function<void(ddp::LaunchEnvironment&)>& change = {}) {
  const ddp::ScratchFolder folder("ddp-process-group");
  const HeldPort port;
  const ddp::StoreLocation store{.kind = kind,
                                 .host = "127.0.0.1",
                                 .port = std::stoi(port.number()),
                                 .file = folder.path() + "/store",
                                 .prefix = ""};
  c10::intrusive_ptr<c10d::Store> of_agent;
  if (kind == Kind::kAgentTcp) {
    c10d::TCPStoreOptions serve;
    serve.port = static_cast<uint16_t>(store.port);
    serve.isServer = true;
    serve.waitWorkers = false;
    of_agent = c10::make_intrusive<c10d::TCPStore>(store.host, serve);
  }
  const int world_size = static_cast<int>(options.size());
  std::vector<std::string> messages(options.size());
  run_threads(world_size, [&](int rank) {
    const auto r = static_cast<size_t>(rank);
    try {
      Options own = options[r];
      ddp::LaunchEnvironment launch = rank_of(rank, world_size, store);
      if (change) {
        change(launch);
      }
      ddp::resolve_options(own, launch.world_size);
      ddp::init_process_group(own, launch, devices.empty() ? torch::kCPU : devices[r]);
      body(ddp::default_process_group());
      ddp::destroy_process_group();
    } catch (const ddp::Error& error) {
      messages[r] = fmt::format("{}: {}", static_cast<int>(error.code()), error.what());
    } catch (const std::exception& error) {
      messages[r] = std::string("other: ") + error.what();
    }
  });
  return messages;
}

/// Runs `body(case, group, failed)` on ranks, each case over each backend, all at once because they
/// wait. `failed` counts the ranks of this run that have thrown.
/// @param ranks their number @param check called with each case and what meet() returned
template <typename Case, typename Body, typename Check>
void meet_at_once(const std::vector<Case>& cases, const std::vector<std::string>& backends,
                  double timeout_seconds, size_t ranks, const Body& body, const Check& check) {
  std::vector<std::pair<const Case*, std::future<std::vector<std::string>>>> runs;
  Options options = plain(timeout_seconds);
  for (const std::string& backend : backends) {
    options.backend = backend;
    for (const Case& one : cases) {
      runs.emplace_back(&one, std::async(std::launch::async, [&body, &one, ranks, options] {
        std::atomic<int> failed = 0;
        const auto on_rank = [&](const ProcessGroup& group) {
          try {
            body(one, group, failed);
          } catch (...) {
            ++failed;
            throw;
          }
        };
        return meet(std::vector(ranks, options), on_rank, one.kind);
      }));
    }
  }
  for (auto& [one, run] : runs) {
    check(*one, run.get());
  }
}

const std::string kStage = DDP_BIN_DIR "/04_ddp_launcher --device cpu ";

}  // namespace

TEST_CASE("ranks that were told different things refuse before they connect, and name the setting",
          "[settings]") {
  struct Difference {
    std::string named;  ///< empty: it may differ
    Options usual;
    Options other;
  };
  std::vector<Difference> differences = {{"device cpu", plain(), plain()}, {"", plain(), plain()}};
  differences.back().usual.dataset = "here/data.safetensors";
  differences.back().other.dataset = "there/data.safetensors";
  differences.back().usual.metrics = "here/m";  // rank 0 writes it
  differences.back().other.metrics = "there/m";
  differences.push_back({"--global-batch 48", plain(), plain()});
  auto& [name, usual_batch, other_batch] = differences.back();  // beside --batch-size auto, too
  usual_batch.find_batch = other_batch.find_batch = true;
  usual_batch.global_batch = 3 * usual_batch.batch_size;
  other_batch.global_batch = 3 * (other_batch.batch_size = 16);
  using Change = std::pair<std::string, std::function<void(Options&)>>;
  for (const auto& [named, change] :
       {Change{"program other", [](Options& o) { o.program = "other"; }},
        Change{"--global-batch 48", [](Options& o) { o.batch_size = 16; }},
        Change{"--lr 0.10000001", [](Options& o) { o.learning_rate = 0.10000001; }},
        Change{"--bucket-mib 25.000001", [](Options& o) { o.bucket_mib = 25.000001; }},
        Change{"", [](Options& o) { o.learning_rate.reset(); }}}) {
    differences.push_back({named, plain(), plain()});
    change(differences.back().other);
  }
  Options resolved = plain();
  ddp::resolve_options(resolved, 3);
  for (const ddp::Setting& setting : resolved.settings) {
    const auto [usual, other] = differing_options(setting.name, 3);
    differences.push_back({setting.agree ? setting.name : "", usual, other});
  }
  for (const auto& [named, usual, other] : differences) {
    std::vector<torch::Device> devices;
    if (named == "device cpu") {  // a rank without GPU
      devices = {torch::Device("cuda:0"), torch::Device("cuda:1"), torch::kCPU};
    }
    std::atomic<int> connected = 0;
    const auto body = [&](const auto&) { ++connected; };
    for (const std::string& message : meet({usual, usual, other}, body, Kind::kFile, devices)) {
      INFO(named << ": " << message);
      CHECK(contains(message, "2: settings: rank 2 has \"" + named) == !named.empty());
      CHECK(message.empty() == named.empty());
    }
    CHECK(connected == (named.empty() ? 3 : 0));
  }
}

TEST_CASE("ranks may have networks of their own", "[settings]") {
  std::vector<Options> options(2, plain());
  options[1].interface = "lo";
  setenv("GLOO_SOCKET_IFNAME", "lo,nope", 1);  // rank 0 takes the first, as torch does
  CHECK(meet(options, [](const auto& group) { group.barrier(); }) ==
        std::vector<std::string>{"", ""});
  unsetenv("GLOO_SOCKET_IFNAME");
  CHECK(std::string(getenv("NCCL_SOCKET_IFNAME")) == "=lo");  // this name, not all that begin so
  CHECK(std::signal(SIGPIPE, SIG_DFL) == SIG_IGN);
}

TEST_CASE("the world size is compared, and whether there are several nodes", "[settings]") {
  const auto check = [](size_t ranks, const auto& change, const std::string& said) {
    const auto nothing = [](const ProcessGroup&) {};
    for (const auto& message :
         meet(std::vector(ranks, plain()), nothing, Kind::kFile, {}, change)) {
      INFO(message);
      CHECK((message.starts_with("2: ") && contains(message, said)));
    }
  };
  check(
      3,
      [](auto& launch) { launch.local_world_size = launch.world_size = launch.rank == 0 ? 2 : 3; },
      R"(rank 1 has "world size 3", rank 0 has "world size 2")");
  check(
      2, [](auto& launch) { launch.num_nodes = launch.rank + 1; },
      R"(rank 1 has "nodes: several", rank 0 has "nodes: one")");
}

TEST_CASE("texts are compared by all ranks alike, and anew each time", "[settings]") {
  std::atomic<int> here = 0;
  run_ranks(4, [&](ProcessGroup& group) {
    std::this_thread::sleep_for(std::chrono::milliseconds(group.rank() * 50));
    ++here;
    group.barrier();
    TORCH_CHECK(here == 4, "the barrier let ", here.load(), " ranks pass");
    for (const std::string text : {"first", "second"}) {
      if (group.rank() == 1 && text == "second") {
        // The other ranks come first, when the store has only the earlier text of this rank.
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
      }
      group.board().same("model", text);
      TORCH_CHECK(group.board().from_rank_0("outcome", text) == text, "shared another text");
    }
    const auto gpu_of = [&](const std::vector<std::string>& uuids) {
      group.board().check("devices", uuids[static_cast<size_t>(group.rank())], ddp::shared_device);
    };
    gpu_of({"", "b", "", "c"});
    const auto refusal = message_of<ddp::UsageError>([&] { gpu_of({"a", "b", "c", "b"}); });
    TORCH_CHECK(contains(refusal, "ranks 1 and 3 have one CUDA device, UUID b"), refusal);
  });
}

TEST_CASE("a rank that ends before its text was compared is named by all others", "[settings]") {
  struct Case {
    int lost;
    Kind kind;
    std::string says;
    bool verifies = true;
  };
  const std::vector<Case> cases = {
      {1, Kind::kTcp, "within 8 s the comparison of model lacks rank 1 of world size 4"},
      {3, Kind::kFile, "within 8 s the comparison of model lacks rank 3 of world size 4"},
      {0, Kind::kAgentTcp, "within 8 s rank 0 did not tell the other ranks about model"},
      {0, Kind::kTcp, "the store went away during the comparison of model"},
      {0, Kind::kTcp, "the store went away during destroy_process_group", false}};
  const auto body = [](const Case& one, const ProcessGroup& group, const auto&) {
    group.barrier();  // until then ranks read one another's addresses in the store
    if (group.rank() == one.lost) {
      throw std::runtime_error("ended");
    }
    if (one.verifies) {
      group.board().same("model", "the same");
    }
  };
  meet_at_once(cases, {"gloo"}, 8, 4, body, [](const Case& one, const auto& messages) {
    for (int rank = 0; rank < 4; ++rank) {
      const std::string& message = messages[static_cast<size_t>(rank)];
      INFO(message);
      CHECK(message.starts_with(rank == one.lost ? "other: ended" : "75: " + one.says));
    }
  });
}

TEST_CASE("how ranks fail to meet: exit code and one line", "[rendezvous][stage]") {
  struct Case {
    std::vector<std::string> ranks;  // arguments by rank; "": the rank is not started
    enum { kFree, kSilent, kAgent } port;
    int exit_code;
    std::string says;
  };
  const std::string work = "2 1 --timeout 3";
  const std::vector<Case> cases = {
      {{work}, Case::kFree, 75, "within 3 s rendezvous lacks rank 1 of world size 2"},
      {{work}, Case::kSilent, 75, "cannot listen on port {}"},
      {{"", work}, Case::kFree, 75, "no store at 127.0.0.1:{} within 3 s, expected"},
      {{"", work}, Case::kSilent, 75, "another program may have the port"},
      {{"", work}, Case::kAgent, 75, "nobody serves the store at 127.0.0.1:{}"},
      {{work, work + " --seed 7"}, Case::kFree, 2, "rank 1 has \"--seed 7\", rank 0 has \"--seed"},
      {{work + " --interface nope"}, Case::kFree, 2, "nope"},
  };
  std::vector<RanksByHand> of_cases(cases.size());  // at once, because they wait
  for (size_t i = 0; i < cases.size(); ++i) {
    if (cases[i].port != Case::kFree) {
      of_cases[i].port.listen();
    }
    for (size_t rank = 0; rank < cases[i].ranks.size(); ++rank) {
      if (!cases[i].ranks[rank].empty()) {
        of_cases[i].start(static_cast<int>(rank), kStage + cases[i].ranks[rank],
                          cases[i].port == Case::kAgent ? "TORCHELASTIC_USE_AGENT_STORE=True" : "");
      }
    }
    if (cases[i].port == Case::kAgent) {
      of_cases[i].port.end_after_connection();
    }
  }
  for (size_t i = 0; i < cases.size(); ++i) {
    const Case& one = cases[i];
    const std::string says = fmt::format(fmt::runtime(one.says), of_cases[i].port.number());
    for (const auto& program : of_cases[i].started) {
      const RunResult result = program->wait();
      CHECK(result.out.empty());
      check_one_line(result, one.exit_code, {"04_ddp_launcher: error: [rank ", says});
    }
  }
}

TEST_CASE("rank 0 refuses an address that is not its own before the others give up",
          "[rendezvous][stage]") {
  RanksByHand ranks;
  const std::string nobodys = "MASTER_ADDR=255.255.255.255 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1";
  auto& other = ranks.start(1, kStage + "2 1 --timeout 9", nobodys + " MASTER_PORT=1");
  const auto result = ranks.start(0, kStage + "2 1 --timeout 11", nobodys).wait();
  CHECK(result.exit_code == 2);
  CHECK(contains(result.err, "MASTER_ADDR: got 255.255.255.255, which does not lead to this host"));
  CHECK_FALSE(other.child().poll());
}

TEST_CASE("for a single node the store listens at loopback alone, whatever its address is",
          "[rendezvous][stage]") {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  for (const std::string& address : {std::string("localhost"), std::string("::1"),
                                     host.data() + std::string(" LOCAL_WORLD_SIZE=2")}) {
    RanksByHand ranks;
    ranks.start(0, kStage + "2 1 --quiet", "MASTER_ADDR=" + address);
    std::vector<std::string> listening;
    const int port = std::stoi(ranks.port.number());
    wait_until(30, [&] { return !(listening = listening_at(port)).empty(); });
    CHECK(listening == std::vector<std::string>{"0100007F"});
    ranks.start(1, kStage + "2 1 --quiet", "MASTER_ADDR=" + address);
    INFO(address);
    ranks.check_ends(0);
  }
}

TEST_CASE("HTCondor's file: no link, nobody else's, none of an earlier start, and gone at the end",
          "[rendezvous][stage]") {
  const HeldPort silent;
  silent.listen();
  const HeldPort free;
  const std::vector<std::string> kinds = {"link", "pipe", "another user's", "left over"};
  std::vector<RanksByHand> of_kinds(kinds.size());
  for (size_t i = 0; i < kinds.size(); ++i) {
    const std::string& planted = kinds[i];
    const std::string& folder = of_kinds[i].folder.path();
    const std::string file = fmt::format("{}/ddp-store-{}-7", folder, geteuid());
    std::ofstream(folder + "/mine")
        << (planted == "left over" ? free : silent).number() << " 127.0.0.1\n";
    if (planted == "link") {
      std::filesystem::create_symlink("mine", file);
    } else if (planted == "pipe") {
      REQUIRE(mkfifo(file.c_str(), 0600) == 0);
    } else {
      std::filesystem::copy(folder + "/mine", file);
      if (planted != "left over" && chown(file.c_str(), 65534, 65534) != 0) {
        std::filesystem::remove(file);
        WARN("not root: nothing is another user's");
      }
    }
  }
  for (const std::string rank : {"1", "0"}) {
    for (auto& ranks : of_kinds) {
      ranks.start(0, kStage + "2 1 --quiet --timeout 20",
                  "RANK MASTER_ADDR MASTER_PORT _CONDOR_NPROCS=2 DDP_JOB_ID=7 _CONDOR_JOB_IWD=" +
                      ranks.folder.path() + " _CONDOR_PROCNO=" + rank);
    }
    std::this_thread::sleep_for(std::chrono::seconds(rank == "1" ? 2 : 0));  // finds the planted
  }
  for (size_t i = 0; i < kinds.size(); ++i) {
    INFO(kinds[i]);
    of_kinds[i].check_ends(0);
    for (const auto& left : std::filesystem::directory_iterator(of_kinds[i].folder.path())) {
      CHECK_FALSE(contains(left.path().filename(), "ddp-store"));
    }
  }
}

TEST_CASE("a rank that is there twice is refused, the run goes on", "[rendezvous][stage]") {
  RanksByHand ranks;
  for (const int rank : {1, 1, 0}) {
    // Runs until it is stopped, so that each rank finds the run.
    ranks.start(rank, kStage + "1000000 1000000 --quiet");
  }
  const auto has_ended = [](const auto& rank) { return rank->child().poll().has_value(); };
  REQUIRE(wait_until(50, [&] { return std::ranges::any_of(ranks.started, has_ended); }));
  const auto refused = std::ranges::find_if(ranks.started, has_ended);
  REQUIRE(refused < ranks.started.begin() + 2);
  const auto result = (*refused)->wait();
  INFO(result.err);
  CHECK(result.exit_code == 75);
  CHECK(contains(result.err, "[rank 1] rank 1 was here before"));
  ranks.started.erase(refused);
  for (const auto& rank : ranks.started) {
    kill(rank->pid(), SIGUSR1);
  }
  ranks.check_ends(85);
}

TEST_CASE("a connection that breaks under a message is noticed at once, not after --timeout",
          "[lost][stage]") {
  int forgotten = 0;  // messages that Gloo forgets; else it reports the broken connection itself
  std::array<RanksByHand, 4> pairs;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const std::string work = kStage + "1000000 1000000 --backend gloo --timeout 120";
    pairs[i].start(0, work);
    pairs[i].start(1, work, fmt::format("LD_PRELOAD={} DDP_CUT_AT={}", DDP_FAULTY_CALLS, 501 + i));
  }
  for (const auto& pair : pairs) {
    const RunResult result = pair.started[1]->wait();
    INFO(result.seconds << " s\n" << result.err);
    CHECK(result.exit_code == 1);
    CHECK(std::ranges::count(result.err, '\n') == 1);
    CHECK(pair.started[0]->wait().exit_code == 1);
    CHECK(result.seconds < 60);
    forgotten += contains(result.err, "a connection to another rank broke") ? 1 : 0;
  }
  CHECK(forgotten > 0);
}

TEST_CASE("a rank that stands still and serves the store is named", "[timeout][stage]") {
  RanksByHand ranks;
  ranks.start_both(kStage + "1000000 1 --backend gloo --timeout 8");
  const std::string snapshot = ranks.folder.path() + "/04_ddp_launcher.safetensors";
  REQUIRE(wait_until(60, [&] { return std::filesystem::exists(snapshot); }));
  ranks.started[0]->child().signal(SIGSTOP);
  const RunResult result = ranks.started[1]->wait();  // it may not wait for the store
  INFO(result.err);
  CHECK(contains(result.err, "[rank 1] rank 0 did not arrive within 8 s"));
}

TEST_CASE("a late rank is named, with the collective and the line that called it", "[timeout]") {
  struct Case {
    std::string says;
    int line;
    std::function<void(const ProcessGroup&)> call;
    Kind kind = Kind::kFile;
  };
  const std::vector<Case> cases = {
      {"all_reduce", __LINE__ + 1,
       [](const ProcessGroup& group) { group.all_reduce(torch::ones({6})); }},
      {"broadcast", __LINE__ + 1,
       [](const ProcessGroup& group) { group.broadcast(torch::ones({6}), 1); }},
      {"all_gather", __LINE__ + 1,
       [](const ProcessGroup& group) { group.all_gather(torch::ones({6})); }},
      {"called by expect_same_weights at", __LINE__ + 1,
       [](const ProcessGroup&) { ddp::expect_same_weights(*torch::nn::Linear(2, 1)); }},
      {"called by stop_requested at", __LINE__ + 1,
       [](const ProcessGroup&) { ddp::stop_requested(); }},
      {"called by backward of a collective at", __LINE__ + 2,
       [](const ProcessGroup& group) {
         const auto sum = ddp::nn::all_reduce(torch::ones({1}, torch::requires_grad()), group);
         if (group.rank() != 1) {
           sum.backward();
         }
       }},
      {"bucket 0 of gradients", __LINE__ + 3,
       [](const ProcessGroup& group) {
         torch::nn::Linear model(5, 1);
         ddp::DistributedDataParallel parallel_model(model, group);
         if (group.rank() != 1) {
           parallel_model.forward(torch::ones({2, 5})).sum().backward();
         }
       }},
  };
  const auto body = [](const Case& one, const ProcessGroup& group, const auto& failed) {
    group.barrier();
    const bool is_late = group.rank() == 1;
    if (!is_late || contains(one.says, " of ")) {  // late within the call
      one.call(group);
    }
    wait_until(30, [&] { return !is_late || failed >= 2; });
    throw std::runtime_error("comes too late");
  };
  meet_at_once(cases, {"gloo", "shm"}, 6, 3, body, [](const Case& one, const auto& messages) {
    CHECK(messages[1] == "other: comes too late");
    for (const std::string& message : {messages[0], messages[2]}) {
      INFO(one.says << ": " << message);
      CHECK(message.starts_with("1: "));
      CHECK(contains(message, "rank 1 "));
      CHECK(contains(message, "did not arrive within 6 s, expected all 3 ranks"));
      CHECK(contains(message, one.says));
      CHECK(
          contains(message, fmt::format("at tests/parallel/process_group_test.cpp:{}", one.line)));
    }
  });
}

TEST_CASE("collectives of any type, stride and operation, and without waiting", "[collectives]") {
  on_any_ranks([](ProcessGroup& group) {
    const int world_size = group.world_size();
    const int rank = group.rank();
    const auto equal = [](const torch::Tensor& got, const torch::Tensor& expected) {
      TORCH_CHECK(torch::equal(got, expected), "Expected ", expected, ", got ", got);
    };
    for (const auto dtype : {torch::kFloat32, torch::kInt64, torch::kInt16, torch::kBool,
                             torch::kComplexFloat, torch::kBFloat16, torch::kUInt16}) {
      const auto of_rank = [&](int r) {
        return (torch::arange(24) % (r + 2)).view({2, 3, 4}).to(dtype);
      };
      const torch::Tensor memory = torch::ones({2, 3, 8}, dtype);
      const torch::Tensor tensor = memory.slice(2, 0, 8, 2);  // has gaps
      tensor.copy_(of_rank(rank));
      const torch::Tensor rows = group.all_gather(tensor);
      TORCH_CHECK(rows.sizes() == torch::IntArrayRef({world_size, 2, 3, 4}));
      for (int r = 0; r < world_size; ++r) {
        tensor.copy_(of_rank(rank));
        group.broadcast(tensor, r);
        equal(tensor, of_rank(r));
        equal(rows[r], of_rank(r));
      }
      equal(memory.slice(2, 1, 8, 2), torch::ones({2, 3, 4}, dtype));
    }
    // Lazily conjugated and negated.
    const torch::Tensor plain_one = torch::complex(torch::ones({3}), torch::full({3}, 2.0));
    for (const torch::Tensor& lazy :
         {plain_one.conj(), torch::imag(plain_one.conj()), torch::_neg_view(torch::ones({3}))}) {
      const torch::Tensor expected = lazy.clone();
      equal(group.all_gather(lazy)[world_size - 1], expected);
      group.broadcast(lazy);
      equal(lazy.clone(), expected);
      group.all_reduce(lazy);
      equal(lazy.clone(), expected * world_size);
      lazy.copy_(expected);
    }
    for (const auto dtype : {torch::kFloat32, torch::kComplexDouble}) {
      const torch::Tensor pairs = torch::full({4, 2}, rank * 2.0, dtype);
      group.all_reduce(pairs.select(1, 0), c10d::ReduceOp::AVG);
      equal(pairs.select(1, 0), torch::full({4}, world_size - 1.0, dtype));
      equal(pairs.select(1, 1), torch::full({4}, rank * 2.0, dtype));
    }
    group.broadcast(torch::ones({0}));
    const torch::Tensor number = torch::tensor(rank);
    group.all_reduce(number, c10d::ReduceOp::MAX);
    equal(number, torch::tensor(world_size - 1));
    const torch::Tensor parts =  // with gaps
        torch::arange(world_size * 24).view({world_size, 2, 3, 4}).transpose(2, 3);
    const torch::Tensor given = parts + rank;
    const torch::Tensor kept = given.clone();
    const torch::Tensor sum = group.reduce_scatter(given);
    equal(given, kept);
    equal(sum, parts[rank] * world_size + world_size * (world_size - 1) / 2);
    TORCH_CHECK(sum.storage_offset() == 0);
    const torch::Tensor sent = torch::full({5}, rank);
    const torch::Tensor gathered = torch::empty({world_size, 5}, torch::kLong);
    const torch::Tensor scattered = torch::arange(world_size * 2).view({world_size, 2});
    const auto first = group.start_all_gather(gathered, sent);
    const auto second = group.start_reduce_scatter(scattered);
    const torch::Tensor copied = torch::full({3}, rank);
    const auto third = group.start_broadcast(copied, world_size - 1);
    for (const auto& work : {first, second, third}) {
      group.wait(work);
    }
    equal(gathered, torch::arange(world_size).view({world_size, 1}).expand({-1, 5}));
    equal(scattered[rank], torch::tensor({rank * 2, rank * 2 + 1}) * world_size);
    equal(copied, torch::full({3}, world_size - 1));
    const torch::Tensor ranks = torch::arange(world_size).view({1, world_size});
    const torch::Tensor input = torch::cat({ranks, ranks}).t() + 10 * rank;  // has gaps
    equal(group.all_to_all(input.to(torch::kInt16)),  // Gloo does not have it
          (10 * torch::cat({ranks, ranks}).t() + rank).to(torch::kInt16));
  });
}

TEST_CASE("gradients flow through collectives as in one process, second ones too", "[nn]") {
  // A contrastive loss: each rank's rows against all rows.
  const auto loss_of = [](const torch::Tensor& own, const torch::Tensor& all,
                          const torch::Tensor& sum) {
    return own.mm(all.t()).logsumexp(1).sum() + sum.pow(3).sum();
  };
  const auto slope_of = [](const torch::Tensor& loss, const torch::Tensor& leaf) {
    return torch::autograd::grad({loss}, {leaf}, {}, std::nullopt, /*create_graph=*/true)[0];
  };
  on_any_ranks([&](ProcessGroup& group) {
    const int world_size = group.world_size();
    const torch::Tensor rows = torch::arange(6, torch::kFloat64).view({1, 2, 3});
    const torch::Tensor of_ranks =  // (ranks, 2, 3)
        torch::sin(rows + torch::arange(world_size).view({-1, 1, 1})).requires_grad_();
    torch::Tensor loss = torch::zeros({}, torch::kFloat64);
    for (const torch::Tensor& own : of_ranks.unbind()) {
      loss = loss + loss_of(own, of_ranks.flatten(0, 1), of_ranks.sum(0));
    }
    const torch::Tensor slopes = slope_of(loss, of_ranks);
    const torch::Tensor expected = slope_of(slopes.pow(2).sum(), of_ranks)[group.rank()];
    const torch::Tensor own = of_ranks.detach()[group.rank()].requires_grad_();
    const torch::Tensor all = ddp::nn::all_gather(own, group).flatten(0, 1);
    const torch::Tensor slope = slope_of(loss_of(own, all, ddp::nn::all_reduce(own, group)), own);
    TORCH_CHECK(torch::allclose(slope, slopes[group.rank()]), "got ", slope);
    const torch::Tensor second = slope_of(slope.pow(2).sum(), own);
    TORCH_CHECK(torch::allclose(second, expected), "got ", second);
    const torch::Tensor parts =
        ddp::nn::reduce_scatter(own.unsqueeze(0).expand({world_size, -1, -1}), group);
    TORCH_CHECK(torch::allclose(parts, of_ranks.sum(0)), "got ", parts);
  });
}

TEST_CASE("tensors with gaps or too few rows are refused; a message from rank to rank over Gloo",
          "[collectives]") {
  on_any_ranks([](ProcessGroup& group) {
    const int world_size = group.world_size();
    std::vector<torch::Tensor> gaps{torch::zeros({4, 2}).t()};
    std::vector<torch::Tensor> integers{torch::ones({2}, torch::kLong)};
    const torch::Tensor seven = torch::ones({7, 2});
    const torch::Tensor two = torch::ones({2});
    const torch::Tensor table = torch::ones({world_size, 2});
    const torch::Tensor wide = torch::ones({2, world_size + 1}).t().narrow(0, 0, world_size);
    const std::vector<std::pair<std::string, std::function<void()>>> refusals = {
        {"all_reduce of a contiguous tensor, got strides [1, 2]",
         [&] { group.start_all_reduce(gaps); }},
        {"AVG of floating-point numbers, got long",
         [&] { group.start_all_reduce(integers, c10d::ReduceOp::AVG); }},
        {"broadcast of a contiguous", [&] { group.start_broadcast(gaps[0]); }},
        {"all_gather of a contiguous", [&] { group.start_all_gather(table, gaps[0]); }},
        {"all_gather into a contiguous", [&] { group.start_all_gather(wide, two); }},
        {"one for each rank, got a tensor of [7, 2]", [&] { group.start_all_gather(seven, two); }},
        {"into rows of 3 float", [&] { group.start_all_gather(table, torch::ones({3})); }},
        {"into rows of 2 long", [&] { group.start_all_gather(table, integers[0]); }},
        {"reduce_scatter of ", [&] { group.reduce_scatter(seven); }},
        {"all_to_all of ", [&] { group.all_to_all(seven); }}};
    for (const auto& [text, call] : refusals) {
      TORCH_CHECK(contains(message_of(call), text), "got ", message_of(call));
    }
    const torch::Tensor expected = torch::arange(15.0).view({3, 5}).t();
    const torch::Tensor message = torch::full({3, 5}, -1.0).t();
    if (group.backend_name() == "shm") {
      TORCH_CHECK(contains(message_of([&] { group.send(message, 0); }), "Backend shm does not"));
    } else if (group.rank() == 0 && world_size > 1) {
      group.send(expected, world_size - 1);
    } else if (group.rank() == world_size - 1 && world_size > 1) {
      group.recv(message, 0);
      TORCH_CHECK(torch::equal(message, expected), message);
    }
  });
}

TEST_CASE("groups of some ranks, two at once, and what their wraps average", "[groups]") {
  const auto on_rank = [](ProcessGroup& group) {
    const std::vector<std::vector<int>> members = {{0, 2}, {3, 1}, {2, 1, 0}};
    std::vector<std::unique_ptr<ProcessGroup>> groups;
    for (const auto& ranks : members) {
      groups.push_back(group.subgroup(ranks));
    }
    for (size_t g = 0; g < members.size(); ++g) {
      const auto own = std::ranges::find(members[g], group.rank());
      TORCH_CHECK((groups[g] == nullptr) == (own == members[g].end()));
      if (groups[g] == nullptr) {
        continue;
      }
      TORCH_CHECK(groups[g]->rank() == own - members[g].begin() &&
                  groups[g]->world_size() == std::ssize(members[g]));
      const torch::Tensor from_first = torch::tensor(group.rank());
      groups[g]->broadcast(from_first);
      TORCH_CHECK(from_first.item<int>() == members[g].front());
      torch::nn::Linear model(1, 1);
      ddp::DistributedDataParallel wrap(model, *groups[g]);
      wrap(torch::full({1, 1}, static_cast<float>(group.rank()))).sum().backward();
      const double mean = torch::tensor(members[g], torch::kFloat64).mean().item<double>();
      TORCH_CHECK(model->weight.grad().item<double>() == mean, "Expected ", mean, ", got ",
                  model->weight.grad());
    }
    for (const std::vector<int>& ranks : {std::vector<int>{1, 4}, {1, 1}, {-1}}) {
      TORCH_CHECK(contains(message_of([&] { group.subgroup(ranks); }),
                           "expected each of 0 to 3 at most once"));
    }
    TORCH_CHECK(contains(message_of([&] { group.subgroup({group.rank()}); }),
                         R"(rank 1 has "1", rank 0 has "0", expected the same)"));
  };
  run_ranks(4, on_rank, GENERATE("gloo", "shm"));
}

TEST_CASE("a group can be made again after one was destroyed", "[groups]") {
  const Kind kind = GENERATE(Kind::kFile, Kind::kTcp, Kind::kAgentTcp);
  std::atomic<int> sums = 0;
  const auto on_rank = [&](const ProcessGroup& first) {
    ddp::LaunchEnvironment launch = first.launch();
    for (const std::string backend : {"shm", "gloo"}) {
      ddp::destroy_process_group();
      launch.store.file += kind == Kind::kFile && backend == "gloo" ? "2" : "";  // another store
      ddp::init_process_group(launch, torch::kCPU, {.backend = backend});
      TORCH_CHECK(kind != Kind::kFile || std::filesystem::exists(launch.store.file));
      const torch::Tensor sum = torch::tensor(launch.rank + 1);
      ddp::all_reduce(sum);
      sums += sum.item<int>();
      // A second group beside the default group, which knows who serves the store.
      const auto all = ddp::new_group({1, 2, 0});
      TORCH_CHECK(all->launch().store.server == (kind == Kind::kTcp ? 2 : -1));
      all->all_reduce(sum);
      sums += sum.item<int>();
    }
  };
  CHECK(meet(std::vector(3, plain()), on_rank, kind) == std::vector<std::string>(3));
  CHECK(sums == 2 * 3 * (6 + 18));
}

TEST_CASE("the default group is every thread's, whichever made it, and ends with the process",
          "[default_group]") {
  CHECK_THROWS_WITH(ddp::default_process_group(),
                    ContainsSubstring("Expected init_process_group()"));
  CHECK(&ddp::world() == &ddp::world());
  const auto in_thread = [](const auto& body) { std::thread(body).join(); };
  const auto uses = [] {
    ddp::SyncBatchNorm model(1);
    const torch::Tensor output = model->forward(torch::tensor({{0.0}, {2.0}}));
    ddp::all_reduce(torch::ones({1}));
    return std::abs(output[1].item<double>() - 1) < 1e-4;
  };
  const auto make = [] { ddp::init_process_group({}, torch::kCPU, {.backend = "shm"}); };
  bool right = false;
  in_thread(make);
  CHECK(uses());
  CHECK(&ddp::world() == &ddp::default_process_group());
  make();  // a second one in another thread
  in_thread([&] { right = uses(); });
  CHECK(right);
  in_thread([] { ddp::destroy_process_group(); });
  CHECK_THROWS_AS(ddp::default_process_group(), c10::Error);
  // Ranks that are threads: a further thread belongs to none.
  CHECK(meet(std::vector(2, plain()), [&](const ProcessGroup& group) {
          std::string refusal;
          in_thread([&] { refusal = message_of([] { ddp::default_process_group(); }); });
          TORCH_CHECK(!refusal.empty());
          TORCH_CHECK(&ddp::default_process_group() == &group);
        }) == std::vector<std::string>(2));
}

TEST_CASE("a world without init_process_group() is this rank alone", "[default_group]") {
  setenv("SLURM_JOB_ID", "1", 1);
  setenv("SLURM_RESTART_COUNT", "3", 1);
  std::thread([] {
    ddp::thread_is_a_rank = true;
    const ProcessGroup& group = ddp::world();
    CHECK((group.rank() == 0 && group.world_size() == 1 && group.backend_name().empty()));
    CHECK((group.launch().restart_count == 3 && group.launch().local_world_size == 1));
    CHECK(group.board().from_rank_0("text", "mine") == "mine");
    CHECK(group.board().gather("text", "") == std::vector<std::string>{""});
    group.board().same("text", "mine");
    group.barrier();
    // Meta tensors have no memory: nothing is copied to the host.
    for (const auto& device : {torch::Device(torch::kCPU), torch::Device(torch::kMeta)}) {
      const torch::Tensor tensor = torch::arange(6.0, device).view({2, 3}).t();
      const torch::Tensor before = tensor.clone();
      group.all_reduce(tensor, c10d::ReduceOp::AVG);
      group.broadcast(tensor);
      const torch::Tensor rows = before.unsqueeze(0);
      for (const torch::Tensor& got :
           {tensor.unsqueeze(0), group.all_gather(tensor), group.all_to_all(rows),
            group.reduce_scatter(rows).unsqueeze(0)}) {
        CHECK((got.device() == device && got.sizes() == rows.sizes()));
        CHECK((device.is_meta() || torch::equal(got, rows)));
      }
    }
    CHECK(group.subgroup({0})->world_size() == 1);
  }).join();
  unsetenv("SLURM_JOB_ID");
  unsetenv("SLURM_RESTART_COUNT");
}

TEST_CASE("a rank that ends or goes on alone is named at once, with the call that waits for it",
          "[stops]") {
  const auto ends = [](const ProcessGroup& group) {
    if (group.rank() != 1) {
      group.all_reduce(torch::ones({6}));
    }
  };
  // Rank 1 catches the exception of its own backward, as an out-of-memory error, and goes on.
  const auto skips = [](const ProcessGroup& group) {
    torch::nn::Linear model(5, 1);
    ddp::DistributedDataParallel wrap(model, group);
    for (int step = 0; step < 3; ++step) {
      torch::Tensor input = torch::ones({2, 5}).requires_grad_();
      if (step == 1 && group.rank() == 1) {
        input.register_hook([](const torch::Tensor&) { throw std::domain_error("as told"); });
      }
      message_of<std::domain_error>([&] { wrap.forward(input).sum().backward(); });
    }
  };
  struct Case {
    std::function<void(const ProcessGroup&)> run;
    std::string others;
    std::string own;
    Kind kind = Kind::kFile;
  };
  const std::vector<Case> cases = {
      {ends, "has ended its training, this rank calls all_reduce",
       "destroy_process_group (called at"},
      {skips, "goes on after a backward that failed there, this rank calls ",
       "the last backward failed on this rank, and not on all: "}};
  std::atomic<int> late = 0;  // ranks that were not told before --timeout
  const auto body = [&](const Case& one, const ProcessGroup& group, const auto&) {
    const auto begin = std::chrono::steady_clock::now();
    const std::shared_ptr<void> at_end(nullptr, [&](void*) {
      late += group.rank() != 1 && ddp::seconds_since(begin) > 6 ? 1 : 0;
    });
    one.run(group);
  };
  meet_at_once(cases, {"gloo", "shm"}, 8, 3, body, [](const Case& one, const auto& messages) {
    for (size_t rank = 0; rank < messages.size(); ++rank) {
      INFO("rank " << rank << ": " << messages[rank]);
      if (rank == 1) {
        CHECK(contains(messages[rank], one.own));
        CHECK(contains(messages[rank], "lacks rank 0"));
      } else {
        CHECK(messages[rank].starts_with("1: "));
        CHECK(contains(messages[rank], "rank 1 "));
        CHECK(contains(messages[rank], one.others));
        CHECK(contains(messages[rank], "called at tests/parallel/process_group_test.cpp:"));
      }
    }
  });
  CHECK(late == 0);
}

TEST_CASE("a backward that failed on all ranks is over: a rank that is late later is waited for",
          "[stops]") {
  CHECK(meet(std::vector(2, plain()), [](const ProcessGroup& group) {
          torch::nn::Linear model(5, 1);
          ddp::DistributedDataParallel wrap(model, group);
          for (int step = 0; step < 2; ++step) {
            torch::Tensor input = torch::ones({2, 5}).requires_grad_();
            input.register_hook([](const torch::Tensor&) { throw std::domain_error("as told"); });
            message_of<std::domain_error>([&] { wrap.forward(input).sum().backward(); });
          }
          wrap.forward(torch::ones({2, 5})).sum().backward();
          std::this_thread::sleep_for(std::chrono::seconds(group.rank() == 1 ? 3 : 0));
          group.barrier();
        }) == std::vector<std::string>(2));
}

TEST_CASE("a recv over Gloo ends after --timeout", "[timeout]") {
  std::atomic<bool> ended = false;
  const auto messages = meet(std::vector(2, plain(4)), [&](const ProcessGroup& group) {
    const torch::Tensor message = torch::ones({1});
    if (group.rank() == 1) {
      const std::shared_ptr<void> at_end(nullptr, [&](void*) { ended = true; });
      group.recv(message, 0);
      group.recv(message, 0);  // which never comes
    }
    group.send(message, 1);
    wait_until(30, [&] { return ended.load(); });
  });
  INFO(messages[1]);
  CHECK(messages[1].starts_with("1: it did not end within 4 s: recv of 1 float32, rank 0, called"));
}

TEST_CASE("a large broadcast over Gloo goes in pieces, each with the limit --timeout") {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  run_threads(2, [&](int rank) {
    const auto log = std::make_shared<ddp::CollectiveLog>();
    const auto connect = [](const auto& its_store, int its_rank, int world_size) {
      return ddp::make_backend(
          "gloo", its_store,
          {its_rank, world_size, torch::kCPU, std::chrono::seconds(30), "127.0.0.1"});
    };
    const torch::Tensor large = torch::arange(3 << 20, torch::kFloat32) + rank;
    ProcessGroup(rank_of(rank, 2), store, torch::kCPU, connect, true, log).broadcast(large, 1);
    TORCH_CHECK(log->count() == 3, log->count());
    TORCH_CHECK(torch::equal(large, torch::arange(3 << 20, torch::kFloat32) + 1));
  });
  SUCCEED("no rank threw");
}

TEST_CASE("every round of a topic has its own texts, and empty ones are texts") {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto talk = [&store](int rank) {
    ddp::Board board(store, rank, 2, std::chrono::seconds(30));
    const std::string own = rank == 0 ? "" : "two\nlines\n";
    std::vector<std::vector<std::string>> rounds;
    rounds.push_back(board.gather("topic", own));
    rounds.push_back({board.from_rank_0("topic", own + "first")});
    rounds.push_back(board.gather("topic", own + "again"));
    return rounds;
  };
  auto other = std::async(std::launch::async, talk, 1);
  const std::vector<std::vector<std::string>> expected = {
      {"", "two\nlines\n"}, {"first"}, {"again", "two\nlines\nagain"}};
  CHECK(talk(0) == expected);
  CHECK(other.get() == expected);
}

TEST_CASE("a rank leaves when the others know that all are there") {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto board_of = [&store](int rank) {
    return ddp::Board(store, rank, 2, std::chrono::seconds(30));
  };
  const auto depart = [&](int rank) {
    ddp::Board board = board_of(rank);
    ddp::depart(board, "test");
  };
  const auto first = std::async(std::launch::async, depart, 0);
  store->set("departure/0/1", std::vector<uint8_t>{'\n'});  // it has not read the key of rank 0 yet
  CHECK(first.wait_for(std::chrono::seconds(1)) == std::future_status::timeout);
  depart(1);
  // A connection that breaks blames nobody, unless a rank had a time-out.
  CHECK(ddp::late_ranks(store, rank_of(0, 2), /*timed_out=*/false).empty());
  CHECK(ddp::late_ranks(store, rank_of(0, 2), true) == std::vector<int>{1});
  // So does the rank that serves the store, unless a reader was killed.
  auto server = std::async(std::launch::async, [&] { board_of(0).wait_for_readers("settings"); });
  CHECK(server.wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout);
  board_of(1).wait_for_readers("settings");
  server.get();
  ddp::Board(store, 0, 2, std::chrono::milliseconds(50)).wait_for_readers("other");
  ddp::Board many(store, 0, 40, std::chrono::milliseconds(50));
  CHECK_THROWS_WITH(many.gather("shm", "here"), ContainsSubstring("15, 16, ... of world size 40"));
  // The rank that serves a store which does not answer is late, but does not blame itself.
  struct Silent : c10d::HashStore {
    void set(const std::string&, const std::vector<uint8_t>&) override {
      std::this_thread::sleep_for(std::chrono::seconds(4));
    }
  };
  for (const int rank : {0, 1}) {
    ddp::LaunchEnvironment launch = rank_of(rank, 2);
    launch.store.server = 0;
    CHECK(ddp::late_ranks(c10::make_intrusive<Silent>(), launch, true) ==
          (rank == 0 ? std::vector<int>() : std::vector<int>{0}));
  }
}

TEST_CASE("a rank of the next test", "[.][sizes_of_ranks]") {
  std::_Exit(ddp::run_rank([](const ddp::LaunchEnvironment& launch) {
    ddp::init_process_group(launch, torch::kCPU, {.backend = "gloo", .timeout_seconds = 8});
    ddp::all_reduce(torch::ones({launch.rank == 0 ? 4 : 8}));
  }));
}

TEST_CASE("sizes that differ over Gloo are told with the collective and its line", "[call_site]") {
  RanksByHand ranks;
  ranks.start_both(own_cases("[sizes_of_ranks]"));
  std::string all;
  for (const auto& rank : ranks.started) {
    const RunResult result = rank->wait();
    CHECK(result.exit_code == 1);
    CHECK(contains(result.err, "called at tests/parallel/process_group_test.cpp:"));
    all += result.err;
  }
  INFO(all);
  CHECK(contains(all, "Gloo got a message of another size than this rank expects: "));
  CHECK(contains(all, "; called last: all_reduce of "));
}

TEST_CASE("ranks that end while a message is under way do not stop those that wait for it",
          "[stops]") {
  CHECK(meet(std::vector(4, plain()), [](const ProcessGroup& group) {
          if (group.rank() == 2) {  // which passes the message on to rank 3
            std::this_thread::sleep_for(std::chrono::seconds(1));
          }
          group.broadcast(torch::ones({6}));
        }) == std::vector<std::string>(4));
}

TEST_CASE("weights that differ in one bit are found, and with --no-communication not looked for",
          "[weights]") {
  const auto [communicates, differ] =
      GENERATE(std::pair(true, false), std::pair(true, true), std::pair(false, true));
  Options options = plain();
  options.no_communication = !communicates;
  const auto train = [communicates = communicates, differ = differ](const ProcessGroup& group) {
    const torch::Tensor own = torch::full({2}, group.rank());
    group.all_reduce(own);
    TORCH_CHECK(own[1].item<int>() == (communicates ? 3 : group.rank()), "got ", own);
    const torch::Tensor of_some = torch::full({2}, group.rank());
    group.subgroup({0, 1, 2})->all_reduce(of_some);
    TORCH_CHECK(of_some.equal(own), "got ", of_some);
    torch::nn::Linear model(3, 2);
    group.broadcast(model->weight.detach());
    model->bias.detach().fill_(1 + (differ && group.rank() == 1 ? 0x1p-23 : 0));
    const bool is_lazy = group.rank() == 2;  // equal values, in other bits
    const torch::Tensor phase = torch::complex(own.to(torch::kFloat32), own.to(torch::kFloat32));
    model->register_parameter("conj", is_lazy ? phase.conj() : phase.conj().resolve_conj());
    model->register_parameter("neg", is_lazy ? torch::_neg_view(-phase.abs()) : phase.abs());
    ddp::expect_same_weights(*model);
    ddp::DistributedDataParallel wrap(torch::nn::Linear(1, 1), group);
    wrap.forward(own.slice(0, 0, 1).to(torch::kFloat32)).sum().backward();
    TORCH_CHECK(wrap->bias.grad().item<double>() == 1,
                "Expected the rank's own, or the mean of 1s");
  };
  const std::string expected =
      communicates && differ ? "1: the weights differ: rank 1 has digest " : "";
  for (const std::string& message : meet(std::vector(3, options), train)) {
    INFO(message);
    CHECK(message.starts_with(expected));
    CHECK(message.empty() == expected.empty());
  }
}

TEST_CASE("a collective is told by kind, size, number and the line that called it", "[call_site]") {
  ddp::CollectiveLog log;
  CHECK(log.last().empty());
  const auto early = c10::make_intrusive<c10d::Work>();
  const auto late = c10::make_intrusive<c10d::Work>();
  for (int i = 1; i <= 70; ++i) {
    log.begin("broadcast", torch::zeros({i, 2}, torch::kHalf), {.file = "mine.cpp", .line = 7});
    log.started(i == 1 ? early.get() : i == 60 ? late.get() : nullptr);
  }
  CHECK(log.of(*late) == "broadcast of 120 float16 (collective 60), called at mine.cpp:7");
  CHECK(contains(log.of(*early), "(collective 70)"));  // unknown: the last collective
  CHECK(log.last_call() == "collective 70, called at mine.cpp:7");
  log.started(late.get());  // in memory that is in use again
  CHECK(contains(log.of(*late), "(collective 70)"));
}

TEST_CASE("an accelerator's reduce_mean() leaves its argument, its end finds other weights",
          "[weights]") {
  const ddp::ScratchFolder folder("ddp-process-group");
  const ddp::StoreLocation store{
      .kind = Kind::kFile, .host = "", .file = folder.path() + "/store", .prefix = ""};
  Options options = plain();
  options.device = "cpu";
  ddp::resolve_options(options, 3);
  run_threads(3, [&](int rank) {
    const ddp::Accelerator accelerator(options, rank_of(rank, 3, store));
    const torch::Tensor own = torch::tensor({1.0 * rank, 10.0 * rank}).set_requires_grad(true);
    TORCH_CHECK(accelerator.reduce_mean(own).equal(torch::tensor({1.0, 10.0})));
    TORCH_CHECK(own[1].item<double>() == 10.0 * rank);
    TORCH_CHECK(accelerator.is_main_process() == (rank == 0));
    torch::nn::Linear model(2, 1);
    torch::nn::init::constant_(model->weight, rank == 2 ? 1 : 0);
    torch::nn::init::constant_(model->bias, 0);
    const auto message = message_of<ddp::Error>([&] { accelerator.end_training(*model); });
    TORCH_CHECK(contains(message, "rank 2 has digest"), message);
  });
}
