// The shared-memory backend as c10d, our DDP and the stages see it.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <fstream>
#include <regex>
#include <sstream>
#include <thread>

#include "common/base/exit_codes.hpp"
#include "common/base/scratch_folder.hpp"
#include "common/model/flat_parameters.hpp"
#include "common/parallel/distributed_data_parallel.hpp"
#include "tests/catch.hpp"
#include "tests/support/collective_checks.hpp"
#include "tests/support/held_port.hpp"
#include "tests/support/run_program.hpp"
#include "tests/support/shm_ranks.hpp"
#include "tests/support/threads_as_ranks.hpp"

namespace {

using ddp::ProcessGroup;
using ddp::test::contains;
using ddp::test::Program;
using ddp::test::run_program;
using ddp::test::run_ranks;
using ddp::test::RunOptions;
using ddp::test::RunResult;
using Argv = std::vector<std::string>;

const std::string kBin = std::string(DDP_BIN_DIR) + "/";

c10d::Backend& backend_of(const ProcessGroup& process_group) {
  return *process_group.c10d_group()->getDefaultBackend();
}

bool same_bits(const torch::Tensor& a, const torch::Tensor& b) {
  return a.dtype() == b.dtype() && a.sizes() == b.sizes() &&
         std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

/// What every rank has after all-reduces over `backend_name`: [rank][i] from inputs[rank][i].
std::vector<std::vector<torch::Tensor>> all_reduced(
    const std::string& backend_name, const std::vector<std::vector<torch::Tensor>>& inputs) {
  std::vector<std::vector<torch::Tensor>> results(inputs.size());
  const auto reduce = [&](ProcessGroup& process_group) {
    const auto rank = static_cast<size_t>(process_group.rank());
    for (const torch::Tensor& input : inputs[rank]) {
      results[rank].push_back(input.clone());
      process_group.all_reduce(results[rank].back());
    }
  };
  run_ranks(static_cast<int>(inputs.size()), reduce, backend_name);
  return results;
}

bool mapped_as_shared(const torch::Tensor& tensor) {
  const auto at = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    char dash = 0;
    std::istringstream(line) >> std::hex >> begin >> dash >> end;
    if (at >= begin && at < end) {
      return line.find("memfd:ddp-cpp") != std::string::npos;
    }
  }
  return false;
}

/// Whether a program ended with `exit_code` and one line on stderr in which `part` stands.
bool refused(const RunResult& result, int exit_code, const std::string& part) {
  return result.exit_code == exit_code && contains(result.err, part) &&
         std::count(result.err.begin(), result.err.end(), '\n') == 1;
}

/// Programs in a folder of their own, as no launcher has started them.
class Runs {
 public:
  RunResult run(const Argv& argv) const { return run_program(argv, options()); }

  /// Starts two ranks of stage 04. @param wrappers what starts each
  void start_pair(const Argv& arguments, const std::array<Argv, 2>& wrappers = {}, int nodes = 1) {
    for (const int rank : {0, 1}) {
      Argv argv = wrappers[static_cast<size_t>(rank)];
      argv.push_back(kBin + "04_ddp_launcher");
      argv.insert(argv.end(), arguments.begin(), arguments.end());
      RunOptions mine = options();
      mine.environment["RANK"] = std::to_string(rank);
      mine.environment["WORLD_SIZE"] = "2";
      mine.environment["LOCAL_RANK"] = std::to_string(nodes == 1 ? rank : 0);
      mine.environment["LOCAL_WORLD_SIZE"] = nodes == 1 ? "2" : "1";
      mine.environment["GROUP_RANK"] = std::to_string(nodes == 1 ? 0 : rank);
      mine.environment["GROUP_WORLD_SIZE"] = std::to_string(nodes);
      mine.environment["MASTER_ADDR"] = "127.0.0.1";
      mine.environment["MASTER_PORT"] = port_.number();
      programs_.push_back(std::make_unique<Program>(argv, mine));
    }
  }
  Program& program(size_t rank) const { return *programs_[rank]; }
  std::vector<RunResult> wait() const { return {programs_[0]->wait(), programs_[1]->wait()}; }

  /// What the summary in m.jsonl says.
  std::string backend_used() const {
    std::ifstream file(folder_.path() + "/m.jsonl");
    const std::string text(std::istreambuf_iterator<char>(file), {});
    std::smatch match;
    return std::regex_search(text, match, std::regex(R"re("backend":"(\w+)")re")) ? match[1].str()
                                                                                  : "none";
  }

 private:
  RunOptions options() const {
    RunOptions options;
    options.cwd = folder_.path();
    for (const char* const name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RUN_ID"}) {
      options.environment[name] = std::nullopt;
    }
    return options;
  }

  ddp::ScratchFolder folder_{"ddp-shm"};
  ddp::test::HeldPort port_;
  std::vector<std::unique_ptr<Program>> programs_;
};

}  // namespace

TEST_CASE("every collective of every type is right") {
  at::set_num_threads(1);
  for (const int world_size : {1, 2, 3}) {
    const auto check = [](ProcessGroup& process_group) {
      TORCH_CHECK(ddp::test::check_collectives(backend_of(process_group)) >= 200);
    };
    CHECK_NOTHROW(run_ranks(world_size, check, "shm"));
  }
}

TEST_CASE("two ranks: the same bits as Gloo, for every type that both sum") {
  at::set_num_threads(1);
  std::vector<std::vector<torch::Tensor>> inputs(2);
  for (const torch::ScalarType dtype :
       {torch::kFloat32, torch::kFloat64, torch::kFloat16, torch::kBFloat16, torch::kInt32,
        torch::kInt64, torch::kInt8, torch::kUInt8}) {
    for (const int64_t count : {1, 15, 16, 17, 4095, 4096, 4097, 100003}) {
      for (auto& tensors : inputs) {
        tensors.push_back((torch::randn({count}, torch::kFloat64) * 10).to(dtype));
      }
    }
  }
  const auto shm = all_reduced("shm", inputs);
  const auto gloo = all_reduced("gloo", inputs);
  for (size_t i = 0; i < inputs[0].size(); ++i) {
    INFO(inputs[0][i].dtype() << ", " << inputs[0][i].numel());
    CHECK(same_bits(shm[0][i], inputs[0][i] + inputs[1][i]));
    CHECK(same_bits(shm[1][i], shm[0][i]));
    CHECK(same_bits(gloo[0][i], shm[0][i]));
  }
}

TEST_CASE("what it cannot do is refused in one line") {
  const auto backend =
      ddp::make_backend("shm", c10::make_intrusive<c10d::HashStore>(),
                        {0, 1, torch::kCPU, std::chrono::seconds(30), "127.0.0.1"});
  const auto reduce = [&](const torch::Tensor& tensor,
                          c10d::ReduceOp op = c10d::ReduceOp::SUM) -> std::function<void()> {
    return [&backend, tensor, op] {
      std::vector<torch::Tensor> tensors{tensor};
      c10d::AllreduceOptions options;
      options.reduceOp = op;
      backend->allreduce(tensors, options);
    };
  };
  std::vector<torch::Tensor> none;
  std::vector<torch::Tensor> one{torch::ones({2})};
  const std::vector<std::pair<std::function<void()>, std::string>> cases = {
      {reduce(torch::ones({2}, torch::kInt32), c10d::ReduceOp::BXOR),
       "Expected all_reduce with SUM, AVG, PRODUCT, MIN or MAX, got"},
      {reduce(torch::ones({2}, torch::kInt32), c10d::ReduceOp::AVG),
       "Expected all_reduce average of floating point, got int32"},
      {reduce(torch::ones({2}, torch::kInt16)),
       "Expected all_reduce of float, double, half, bfloat16, int32, int64, int8, uint8 or bool, "
       "got "
       "short"},
      {reduce(torch::ones({2}).to_sparse()),
       "Expected all_reduce of a dense CPU tensor, got SparseCPUFloatType on cpu"},
      // Has a device and a shape, and no memory: as near to a GPU's as there is without one.
      {reduce(torch::ones({2}, torch::kMeta)), "Expected all_reduce of a dense CPU tensor, got"},
      {[&] { backend->allreduce(none, {}); }, "Expected all_reduce of 1 tensor, got 0"},
      {[&] { backend->broadcast(one, {.rootRank = 3}); },
       "Expected broadcast from rank 0 to 0, got 3"},
      {[&] {
         backend->shutdown();
         backend->allreduce(one, {});
       },
       "Expected a call before the process group was destroyed, got one after"}};
  for (const auto& [call, expected] : cases) {
    std::string message;
    try {
      call();
    } catch (const c10::Error& error) {
      message = error.what_without_backtrace();
    }
    INFO(message);
    CHECK(contains(message, "--backend shm: " + expected));
    CHECK_FALSE(contains(message, "\n"));
  }
}

TEST_CASE("a rank that never comes is named") {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  CHECK_THROWS_WITH(
      ddp::make_backend("shm", store,
                        {0, 3, torch::kCPU, std::chrono::milliseconds(300), "127.0.0.1"}),
      "within 0.3 s the start of --backend shm lacks rank 1, 2 of world size 3, expected all of "
      "them");
}

TEST_CASE("a barrier waits for the other ranks, while all-reduces are paused too") {
  std::atomic<bool> has_come = false;
  std::atomic<bool> came_before = false;
  run_ranks(
      2,
      [&](ProcessGroup& process_group) {
        process_group.pause_all_reduce(true);
        if (process_group.rank() == 0) {
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
          has_come = true;
        }
        process_group.barrier();
        if (process_group.rank() == 1) {
          came_before = has_come.load();
        }
      },
      "shm");
  CHECK(came_before);
}

TEST_CASE("gradients of a DDP model live in shared memory, also after zero_grad") {
  const auto check = [](ProcessGroup& process_group) {
    const torch::Tensor input = torch::full({1, 100}, process_group.rank() + 1.0);
    torch::nn::Linear model(100, 100);
    ddp::DistributedDataParallel parallel_model(model, process_group);
    for (int step = 0; step < 2; ++step) {
      TORCH_CHECK(step > 0 || mapped_as_shared(model->weight.grad()));
      for (torch::Tensor& parameter : model->parameters()) {
        parameter.mutable_grad().reset();
      }
      parallel_model.forward(input).sum().backward();
      TORCH_CHECK(mapped_as_shared(model->weight.grad()));
      TORCH_CHECK(torch::equal(model->weight.grad(), torch::full({100, 100}, 1.5)));
    }
    // What was flat before stays where it is, and is reduced through the mailboxes.
    torch::nn::Linear flat_before(100, 100);
    ddp::flatten_parameters(*flat_before);
    ddp::DistributedDataParallel other(flat_before, process_group);
    TORCH_CHECK(!mapped_as_shared(flat_before->weight.grad()));
    other.forward(input).sum().backward();
    TORCH_CHECK(torch::equal(flat_before->weight.grad(), torch::full({100, 100}, 1.5)));
  };
  CHECK_NOTHROW(run_ranks(2, check, "shm"));
}

TEST_CASE("allocate: ordinary memory where the ranks' sizes differ or the backend has none") {
  const auto with_shm = [](ProcessGroup& process_group) {
    const torch::Tensor same = process_group.allocate(1000, torch::kFloat64);
    TORCH_CHECK(same.numel() == 1000 && same.dtype() == torch::kFloat64);
    TORCH_CHECK(mapped_as_shared(same));
    const torch::Tensor different =
        process_group.allocate(1000 + process_group.rank(), torch::kFloat32);
    TORCH_CHECK(different.numel() == 1000 + process_group.rank());
    TORCH_CHECK(!mapped_as_shared(different));
    process_group.all_reduce(different.narrow(0, 0, 1000).fill_(1));
    TORCH_CHECK(different[999].item<float>() == 2);
  };
  CHECK_NOTHROW(run_ranks(2, with_shm, "shm"));
  const auto with_gloo = [](ProcessGroup& process_group) {
    const torch::Tensor tensor = process_group.allocate(1000, torch::kFloat32);
    TORCH_CHECK(tensor.numel() == 1000 && !mapped_as_shared(tensor));
  };
  CHECK_NOTHROW(run_ranks(2, with_gloo, "gloo"));
}

TEST_CASE("stage 03 uses shared memory by default", "[stage]") {
  for (const auto& [backend, used] :
       std::map<std::string, std::string>{{"auto", "shm"}, {"shm", "shm"}, {"gloo", "gloo"}}) {
    const Runs runs;
    const RunResult result = runs.run({kBin + "03_ddp_spawn", "2", "2", "--nprocs", "2", "--device",
                                       "cpu", "--metrics", "m.jsonl", "--backend", backend});
    INFO(result.err);
    CHECK(result.exit_code == 0);
    CHECK(result.err.empty());
    CHECK(runs.backend_used() == used);
  }
}

TEST_CASE("kill -9 of a rank of stage 04: the other names it, at once", "[stage]") {
  for (const size_t dead : {0U, 1U}) {  // with rank 0 the store goes, too
    Runs runs;
    runs.start_pair({"1000000", "1000000", "--device", "cpu", "--backend", "shm"});
    for (const size_t rank : {0U, 1U}) {
      REQUIRE(runs.program(rank).wait_for_output("Epoch 3 "));
    }
    // In an all-reduce of gradients, or an all-gather of times.
    const std::string expected = "error: [rank " + std::to_string(1 - dead) + "] rank " +
                                 std::to_string(dead) + " (pid " +
                                 std::to_string(runs.program(dead).pid()) + ") died during all_";
    kill(runs.program(dead).pid(), SIGKILL);
    const std::vector<RunResult> results = runs.wait();
    INFO(results[1 - dead].err);
    CHECK(results[dead].signal == SIGKILL);
    CHECK((refused(results[1 - dead], 1, expected + "reduce") ||
           refused(results[1 - dead], 1, expected + "gather")));
  }
}

TEST_CASE("two nodes, as the launcher has it, on one host: shared memory", "[stage]") {
  Runs runs;
  runs.start_pair({"1", "1", "--device", "cpu", "--metrics", "m.jsonl"}, {}, /*nodes=*/2);
  for (const RunResult& result : runs.wait()) {
    INFO(result.err);
    CHECK(result.exit_code == 0);
    CHECK(result.err.empty());
  }
  CHECK(runs.backend_used() == "shm");
}

TEST_CASE("a host of another name: shm is refused by both ranks", "[stage]") {
  const Argv elsewhere = {"unshare", "--uts", "sh", "-c",
                          "hostname elsewhere && exec \"$0\" \"$@\""};
  Runs runs;
  runs.start_pair({"1", "1", "--device", "cpu", "--backend", "shm"}, {Argv{}, elsewhere});
  for (const RunResult& result : runs.wait()) {
    INFO(result.err);
    CHECK(refused(result, 2, "--backend shm: rank 1 has host name elsewhere, rank 0 "));
    CHECK(contains(result.err, "expected all ranks on one host; use --backend gloo"));
  }
}

TEST_CASE("no shared memory: shm is an error, auto goes on with Gloo and says so", "[stage]") {
  const Runs runs;
  const auto run = [&](const std::string& backend) {
    // Every file is limited to a megabyte, which a snapshot does not need and shared memory does.
    return runs.run({"prlimit", "--fsize=1048576", kBin + "03_ddp_spawn", "1", "1", "--nprocs", "2",
                     "--device", "cpu", "--backend", backend});
  };
  const std::string reason =
      "rank 0 cannot make 8.0 MiB of shared memory: the limit of a file's size (ulimit -f) is 1.0 "
      "MiB";
  const RunResult shm = run("shm");
  INFO(shm.err);
  CHECK(shm.exit_code == 2);
  CHECK(contains(shm.err, "--backend shm: " + reason));
  CHECK(contains(shm.err, "; use --backend gloo\n"));
  CHECK(shm.out.empty());

  const RunResult automatic = run("auto");
  INFO(automatic.err);
  CHECK(refused(automatic, 0,
                "note: --backend auto uses gloo, because shm cannot be used: " + reason));
  CHECK(contains(automatic.out, "digest"));
}

TEST_CASE("a /dev/shm of 1 MiB does not matter, unless ranks cannot see one another", "[stage]") {
  ddp::test::own_shared_memory("size=1m");
  const auto run = [](const std::string& backend, const Argv& wrapper) {
    Runs runs;
    runs.start_pair({"1", "1", "--device", "cpu", "--backend", backend, "--timeout", "30"},
                    {wrapper, wrapper});
    return runs.wait();
  };
  for (const RunResult& result : run("shm", {})) {
    INFO(result.err);
    CHECK(result.exit_code == 0);
  }
  // In pid namespaces of their own they must use a name, for which there is no room.
  const Argv own_pids = {"unshare", "--pid", "--fork", "--mount-proc"};
  for (const RunResult& result : run("shm", own_pids)) {
    INFO(result.err);
    CHECK(refused(result, 2,
                  "; rank 0 cannot reserve 4.0 MiB of shared memory (No space left on device); "
                  "/dev/shm has "));
  }
  const std::vector<RunResult> automatic = run("auto", own_pids);
  INFO(automatic[0].err << automatic[1].err);
  CHECK(refused(automatic[0], 0, "note: --backend auto uses gloo, because shm cannot be used: "));
  CHECK(automatic[1].exit_code == 0);
  CHECK(automatic[1].err.empty());
}
