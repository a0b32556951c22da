// The shared-memory backend as c10d, our DDP and the stages see it.
#include "common/backends/shm.hpp"

#include <netinet/in.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "common/base/exit_codes.hpp"
#include "common/model/flat_parameters.hpp"
#include "common/parallel/distributed_data_parallel.hpp"
#include "tests/catch.hpp"
#include "tests/support/run_program.hpp"
#include "tests/support/threads_as_ranks.hpp"

namespace {

namespace fs = std::filesystem;
using ddp::ProcessGroup;
using ddp::test::Program;
using ddp::test::run_program;
using ddp::test::run_ranks;
using ddp::test::RunOptions;
using ddp::test::RunResult;

const std::string kBin = std::string(DDP_BIN_DIR) + "/";

void run_shm_ranks(int world_size, const std::function<void(ProcessGroup&)>& body) {
  run_ranks(world_size, body, "shm");
}

c10d::Backend& backend_of(const ProcessGroup& process_group) {
  return *process_group.c10d_group()->getDefaultBackend();
}

/// @return the message of what `body` throws, or "nothing was thrown"
template <typename Body>
std::string message_of(const Body& body) {
  try {
    body();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

torch::Tensor random_tensor(at::IntArrayRef sizes, torch::ScalarType dtype, int rank) {
  at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(rank) + 7);
  const torch::Tensor numbers = torch::randn(sizes, generator, torch::kFloat64) * 10;
  return dtype == torch::kBool ? numbers.gt(0) : numbers.to(dtype);
}

bool same_bits(const torch::Tensor& a, const torch::Tensor& b) {
  return a.dtype() == b.dtype() && a.sizes() == b.sizes() &&
         std::memcmp(a.contiguous().const_data_ptr(), b.contiguous().const_data_ptr(),
                     a.nbytes()) == 0;
}

/// What every rank has after all-reduces over `backend_name`: [rank][i] from inputs[rank][i].
std::vector<std::vector<torch::Tensor>> all_reduced(
    const std::string& backend_name, const std::vector<std::vector<torch::Tensor>>& inputs,
    c10d::ReduceOp op = c10d::ReduceOp::SUM) {
  std::vector<std::vector<torch::Tensor>> results(inputs.size());
  run_ranks(
      static_cast<int>(inputs.size()),
      [&](ProcessGroup& process_group) {
        const auto rank = static_cast<size_t>(process_group.rank());
        for (const torch::Tensor& input : inputs[rank]) {
          std::vector<torch::Tensor> tensors{
              torch::empty_strided(input.sizes(), input.strides(), input.options())};
          tensors[0].copy_(input);
          c10d::AllreduceOptions options;
          options.reduceOp = op;
          backend_of(process_group).allreduce(tensors, options)->wait();
          results[rank].push_back(tensors[0]);
        }
      },
      backend_name);
  return results;
}

/// Ranks' random tensors of one size.
std::vector<std::vector<torch::Tensor>> random_inputs(int world_size, torch::ScalarType dtype,
                                                      at::IntArrayRef sizes) {
  std::vector<std::vector<torch::Tensor>> inputs;
  for (int rank = 0; rank < world_size; ++rank) {
    inputs.push_back({random_tensor(sizes, dtype, rank)});
  }
  return inputs;
}

bool mapped_as_shared(const void* address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    char dash = 0;
    std::istringstream(line) >> std::hex >> begin >> dash >> end;
    const auto at = reinterpret_cast<uintptr_t>(address);
    if (at >= begin && at < end) {
      return line.find("memfd:ddp-cpp") != std::string::npos;
    }
  }
  return false;
}

std::set<std::string> shared_memory_names() {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator("/dev/shm")) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

/// A folder for the snapshot, and the environment of a program that no launcher started.
class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "ddp-shm-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  RunOptions options() const {
    RunOptions options;
    options.cwd = path_;
    for (const char* const name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RUN_ID"}) {
      options.environment[name] = std::nullopt;
    }
    return options;
  }
  RunResult run(const std::vector<std::string>& argv) const { return run_program(argv, options()); }
  std::string read(const std::string& name) const {
    std::ifstream file(path_ / name);
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  fs::path path_;
};

std::string free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  bind(fd, reinterpret_cast<sockaddr*>(&address), length);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  close(fd);
  return std::to_string(ntohs(address.sin_port));
}

/// Two ranks of stage 04, the second of which `wrapper` starts.
std::vector<RunResult> run_pair(const std::string& backend,
                                const std::vector<std::string>& wrapper) {
  const Folder folder;
  const std::string port = free_port();
  std::vector<std::unique_ptr<Program>> programs;
  for (const std::string rank : {"0", "1"}) {
    std::vector<std::string> argv = rank == "0" ? std::vector<std::string>{} : wrapper;
    argv.insert(argv.end(), {kBin + "04_ddp_launcher",
                             "1",
                             "1",
                             "--device",
                             "cpu",
                             "--rank",
                             rank,
                             "--world-size",
                             "2",
                             "--local-rank",
                             rank,
                             "--local-world-size",
                             "2",
                             "--master-addr",
                             "127.0.0.1",
                             "--master-port",
                             port,
                             "--backend",
                             backend,
                             "--timeout",
                             "20"});
    programs.push_back(std::make_unique<Program>(argv, folder.options()));
  }
  std::vector<RunResult> results;
  for (const auto& program : programs) {
    results.push_back(program->wait());
  }
  return results;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

size_t lines(const std::string& text) {
  return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
}

}  // namespace

TEST_CASE("two ranks: the same bits as Gloo, for every type that both sum") {
  at::set_num_threads(1);
  std::vector<std::vector<torch::Tensor>> inputs(2);
  for (const int rank : {0, 1}) {
    for (const torch::ScalarType dtype :
         {torch::kFloat32, torch::kFloat64, torch::kFloat16, torch::kBFloat16, torch::kInt32,
          torch::kInt64, torch::kInt8, torch::kUInt8}) {
      for (const int64_t count : {1, 15, 16, 17, 4095, 4096, 4097, 100003}) {
        inputs[static_cast<size_t>(rank)].push_back(random_tensor({count}, dtype, rank));
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
  CHECK(all_reduced("shm", random_inputs(2, torch::kFloat32, {0}))[0][0].numel() == 0);
}

TEST_CASE("operations, and types of truth values") {
  const auto inputs = random_inputs(3, torch::kFloat32, {3000});
  const torch::Tensor& a = inputs[0][0];
  const torch::Tensor& b = inputs[1][0];
  const torch::Tensor& c = inputs[2][0];
  const torch::Tensor all = torch::stack({a, b, c});
  const auto result = [&](c10d::ReduceOp op) { return all_reduced("shm", inputs, op)[1][0]; };
  CHECK(same_bits(result(c10d::ReduceOp::MIN), std::get<0>(all.min(0))));
  CHECK(same_bits(result(c10d::ReduceOp::MAX), std::get<0>(all.max(0))));
  CHECK(same_bits(result(c10d::ReduceOp::PRODUCT), a * b * c));
  CHECK(same_bits(result(c10d::ReduceOp::AVG), (a + b + c) / 3));
  const auto truth = random_inputs(2, torch::kBool, {3000});
  CHECK(same_bits(all_reduced("shm", truth)[0][0], truth[0][0].logical_or(truth[1][0])));
  CHECK(same_bits(all_reduced("shm", truth, c10d::ReduceOp::PRODUCT)[0][0],
                  truth[0][0].logical_and(truth[1][0])));
}

TEST_CASE("tensors that are not contiguous, or views, are reduced where they are") {
  auto inputs = random_inputs(2, torch::kFloat32, {60, 50});
  for (auto& tensors : inputs) {
    tensors[0] = tensors[0].t();
  }
  const torch::Tensor result = all_reduced("shm", inputs)[0][0];
  CHECK_FALSE(result.is_contiguous());
  CHECK(same_bits(result, inputs[0][0] + inputs[1][0]));
  run_shm_ranks(2, [&](ProcessGroup& process_group) {
    const torch::Tensor whole = torch::zeros({100, 3});
    process_group.all_reduce(whole.select(1, 1).fill_(process_group.rank() + 1.0));
    TORCH_CHECK(torch::equal(whole.sum(0), torch::tensor({0.0F, 300.0F, 0.0F})), "Got ", whole);
    const torch::Tensor broadcast = torch::full({4, 5}, process_group.rank() + 1.0).t();
    process_group.broadcast(broadcast);
    TORCH_CHECK(torch::equal(broadcast, torch::ones({5, 4})), "Got ", broadcast);
  });
}

TEST_CASE("broadcast, gather and scatter of any type") {
  run_shm_ranks(3, [](ProcessGroup& process_group) {
    const int rank = process_group.rank();
    c10d::Backend& backend = backend_of(process_group);
    const auto of = [](int r) {
      return torch::complex(torch::full({4, 5}, double(r)), torch::arange(20).view({4, 5}) * 1.0);
    };
    std::vector<torch::Tensor> tensors{of(rank)};
    backend.broadcast(tensors, {.rootRank = 2})->wait();
    TORCH_CHECK(torch::equal(tensors[0], of(2)), "Got ", tensors[0]);

    const torch::Tensor rows = process_group.all_gather(of(rank));
    TORCH_CHECK(torch::equal(rows, torch::stack({of(0), of(1), of(2)})), "Got ", rows);

    torch::Tensor input = torch::full({2, 3}, rank);
    torch::Tensor output = torch::empty({6, 3}, torch::kInt64);
    backend._allgather_base(output, input, {})->wait();
    TORCH_CHECK(torch::equal(output.select(1, 0), torch::tensor({0, 0, 1, 1, 2, 2})), output);

    std::vector<torch::Tensor> inputs{input};
    std::vector<std::vector<torch::Tensor>> outputs;
    if (rank == 1) {
      outputs.push_back({torch::empty_like(input), torch::empty_like(input),
                         torch::empty({3, 2}, torch::kInt64).t()});
    }
    backend.gather(outputs, inputs, {.rootRank = 1})->wait();
    TORCH_CHECK(rank != 1 || torch::equal(outputs[0][2], torch::full({2, 3}, 2)), outputs);

    torch::Tensor part = torch::empty({2});
    torch::Tensor all = torch::arange(6) * 1.0F + rank;
    backend._reduce_scatter_base(part, all, {})->wait();
    TORCH_CHECK(
        torch::equal(part, torch::tensor({6.0 * rank + 3, 6.0 * rank + 6}, torch::kFloat32)), part);
    std::vector<torch::Tensor> parts{torch::empty({2})};
    std::vector<std::vector<torch::Tensor>> lists{
        {torch::ones({2}), torch::ones({2}) * 2, torch::ones({2}) * 3}};
    backend.reduce_scatter(parts, lists, {})->wait();
    TORCH_CHECK(torch::equal(parts[0], torch::full({2}, 3.0 * (rank + 1))), parts[0]);
    backend.barrier({})->wait();
  });
}

TEST_CASE("the work is complete when it is returned, and has a future for the Reducer") {
  run_shm_ranks(2, [](ProcessGroup& process_group) {
    std::vector<torch::Tensor> tensors{torch::ones({5})};
    const auto work = backend_of(process_group).allreduce(tensors, {});
    TORCH_CHECK(work->isCompleted() && work->isSuccess() && work->wait());
    TORCH_CHECK(work->getFuture()->completed());
    const auto value = work->getFuture()->value().toTensorVector();
    TORCH_CHECK(value.size() == 1 && value[0].is_same(tensors[0]));
    TORCH_CHECK(torch::equal(work->result().at(0), torch::full({5}, 2.0)));
  });
}

TEST_CASE("what it cannot do is refused in one line") {
  std::vector<std::string> messages;
  run_shm_ranks(1, [&](ProcessGroup& process_group) {
    c10d::Backend& backend = backend_of(process_group);
    const auto reduce = [&](const torch::Tensor& tensor, c10d::ReduceOp op) {
      std::vector<torch::Tensor> tensors{tensor};
      c10d::AllreduceOptions options;
      options.reduceOp = op;
      messages.push_back(message_of([&] { backend.allreduce(tensors, options); }));
    };
    reduce(torch::ones({2}, torch::kInt32), c10d::ReduceOp::BXOR);
    reduce(torch::ones({2}, torch::kInt32), c10d::ReduceOp::AVG);
    reduce(torch::ones({2}, torch::kInt16), c10d::ReduceOp::SUM);
    reduce(torch::ones({2}, torch::kFloat32).to_sparse(), c10d::ReduceOp::SUM);
    // Has a device and a shape, and no memory: as near to a GPU's as there is without one.
    reduce(torch::ones({2}, torch::kMeta), c10d::ReduceOp::SUM);
    std::vector<torch::Tensor> none;
    messages.push_back(message_of([&] { backend.allreduce(none, {}); }));
    std::vector<torch::Tensor> one{torch::ones({2})};
    messages.push_back(message_of([&] { backend.broadcast(one, {.rootRank = 3}); }));
    process_group.barrier();
  });
  const std::vector<std::string> expected = {
      "Expected all_reduce with SUM, AVG, PRODUCT, MIN or MAX, got",
      "Expected all_reduce average of floating point, got int32",
      "got short",
      "Expected all_reduce of a dense CPU tensor, got SparseCPUFloatType on cpu",
      "Expected all_reduce of a dense CPU tensor, got",
      "Expected all_reduce of 1 tensor, got 0",
      "Expected broadcast from rank 0 to 0, got 3"};
  REQUIRE(messages.size() == expected.size());
  for (size_t i = 0; i < messages.size(); ++i) {
    INFO(messages[i]);
    CHECK(contains(messages[i], "--backend shm: "));
    CHECK(contains(messages[i], expected[i]));
    CHECK(lines(messages[i]) == 0);
  }
}

TEST_CASE("calls that differ are refused on both ranks; after shutdown every call is") {
  std::vector<std::string> messages(2);
  std::vector<std::string> after(2);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> threads;
  for (const int rank : {0, 1}) {
    threads.emplace_back([&, rank] {
      const auto backend = ddp::make_shm_backend(
          store, {rank, 2, torch::kCPU, std::chrono::seconds(30), "127.0.0.1"});
      std::vector<torch::Tensor> tensors{torch::ones({rank == 0 ? 10 : 20})};
      messages[static_cast<size_t>(rank)] =
          message_of([&] { backend->allreduce(tensors, c10d::AllreduceOptions()); });
      backend->shutdown();
      after[static_cast<size_t>(rank)] =
          message_of([&] { backend->allreduce(tensors, c10d::AllreduceOptions()); });
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const std::string& message : messages) {
    INFO(message);
    CHECK(contains(message,
                   "rank 0 calls all_reduce sum of 10 float32 as collective 2, rank 1 "
                   "calls all_reduce sum of 20 float32"));
  }
  CHECK(contains(after[0], "before the process group was destroyed"));
}

TEST_CASE("ranks on two hosts: refused with both, and auto means Gloo") {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::string> messages(2);
  std::vector<std::thread> threads;
  for (const int rank : {0, 1}) {
    threads.emplace_back([&, rank] {
      ddp::shm::HostIdentity identity = ddp::shm::read_host_identity();
      identity.host_name = rank == 0 ? "here" : "there";
      messages[static_cast<size_t>(rank)] = message_of([&] {
        ddp::make_shm_backend(store, {rank, 2, torch::kCPU, std::chrono::seconds(30), "127.0.0.1"},
                              identity);
      });
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const std::string& message : messages) {
    CHECK(message == "rank 1 has host name there, rank 0 here, expected all ranks on one host");
  }
}

TEST_CASE("a rank that never comes is named") {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  try {
    ddp::make_shm_backend(store, {0, 3, torch::kCPU, std::chrono::milliseconds(300), "127.0.0.1"});
    FAIL("nothing was thrown");
  } catch (const ddp::TransientError& error) {
    CHECK(contains(error.what(), "lacks rank 1, 2 of world size 3"));
  }
}

TEST_CASE("gradients of a DDP model live in shared memory, also after zero_grad") {
  run_shm_ranks(2, [](ProcessGroup& process_group) {
    torch::nn::Linear model(100, 100);
    ddp::DistributedDataParallel parallel_model(model, process_group);
    for (int step = 0; step < 2; ++step) {
      TORCH_CHECK(step > 0 || mapped_as_shared(model->weight.grad().const_data_ptr()));
      for (torch::Tensor& parameter : model->parameters()) {
        parameter.mutable_grad().reset();
      }
      parallel_model.forward(torch::full({1, 100}, process_group.rank() + 1.0)).sum().backward();
      TORCH_CHECK(mapped_as_shared(model->weight.grad().const_data_ptr()));
      TORCH_CHECK(torch::equal(model->weight.grad(), torch::full({100, 100}, 1.5)));
    }
    // What was flat before stays where it is, and is reduced through the mailboxes.
    torch::nn::Linear flat_before(100, 100);
    ddp::flatten_parameters(*flat_before);
    ddp::DistributedDataParallel other(flat_before, process_group);
    TORCH_CHECK(!mapped_as_shared(flat_before->weight.grad().const_data_ptr()));
    other.forward(torch::full({1, 100}, process_group.rank() + 1.0)).sum().backward();
    TORCH_CHECK(torch::equal(flat_before->weight.grad(), torch::full({100, 100}, 1.5)));
  });
}

TEST_CASE("allocate: ordinary memory where the ranks' sizes differ or the backend has none") {
  run_shm_ranks(2, [](ProcessGroup& process_group) {
    const torch::Tensor same = process_group.allocate(1000, torch::kFloat64);
    TORCH_CHECK(same.numel() == 1000 && same.dtype() == torch::kFloat64);
    TORCH_CHECK(mapped_as_shared(same.const_data_ptr()));
    const torch::Tensor different =
        process_group.allocate(1000 + process_group.rank(), torch::kFloat32);
    TORCH_CHECK(different.numel() == 1000 + process_group.rank());
    TORCH_CHECK(!mapped_as_shared(different.const_data_ptr()));
    process_group.all_reduce(different.narrow(0, 0, 1000).fill_(1));
    TORCH_CHECK(different[999].item<float>() == 2);
  });
  run_ranks(2, [](ProcessGroup& process_group) {
    const torch::Tensor tensor = process_group.allocate(1000, torch::kFloat32);
    TORCH_CHECK(tensor.numel() == 1000 && !mapped_as_shared(tensor.const_data_ptr()));
  });
}

TEST_CASE("stage 03 uses shared memory by default, and nothing is left of it", "[stage]") {
  const std::set<std::string> names = shared_memory_names();
  const Folder folder;
  const auto backend_in = [&](const std::vector<std::string>& more) {
    std::vector<std::string> argv = {
        kBin + "03_ddp_spawn", "2",      "2", "--nprocs", "2", "--device", "cpu",
        "--metrics",           "m.jsonl"};
    argv.insert(argv.end(), more.begin(), more.end());
    const RunResult result = folder.run(argv);
    INFO(result.err);
    CHECK(result.exit_code == 0);
    CHECK(result.err.empty());
    std::ifstream metrics(fs::path(folder.options().cwd) / "m.jsonl");
    const std::string text((std::istreambuf_iterator<char>(metrics)), {});
    std::smatch match;
    return std::regex_search(text, match, std::regex(R"re("backend":"(\w+)")re")) ? match[1].str()
                                                                                  : "none";
  };
  CHECK(backend_in({}) == "shm");
  CHECK(backend_in({"--backend", "shm"}) == "shm");
  CHECK(backend_in({"--backend", "gloo"}) == "gloo");
  CHECK(shared_memory_names() == names);
}

TEST_CASE("kill -9 of a rank of stage 04: the other names it, at once", "[stage]") {
  const std::set<std::string> names = shared_memory_names();
  for (int repetition = 0; repetition < 6; ++repetition) {
    const Folder folder;
    const std::string port = free_port();
    std::vector<std::unique_ptr<Program>> programs;
    for (const std::string rank : {"0", "1"}) {
      programs.push_back(std::make_unique<Program>(
          std::vector<std::string>{kBin + "04_ddp_launcher", "1000000", "1000000", "--device",
                                   "cpu", "--rank", rank, "--world-size", "2", "--local-rank", rank,
                                   "--local-world-size", "2", "--master-addr", "127.0.0.1",
                                   "--master-port", port, "--backend", "shm"},
          folder.options()));
    }
    for (const auto& program : programs) {
      REQUIRE(program->wait_for_output("Epoch 3 "));
    }
    // With rank 0 the store goes, too.
    const size_t dead = static_cast<size_t>(repetition % 2);
    const size_t left = 1 - dead;
    const std::string victim =
        "rank " + std::to_string(dead) + " (pid " + std::to_string(programs[dead]->pid()) + ")";
    kill(programs[dead]->pid(), SIGKILL);
    CHECK(programs[dead]->wait().signal == SIGKILL);
    const RunResult result = programs[left]->wait();
    INFO(result.err);
    CHECK(result.exit_code == 1);
    CHECK(contains(result.err, "error: [rank " + std::to_string(left) + "] " + victim +
                                   " died during all_reduce"));
    CHECK(lines(result.err) == 1);
  }
  CHECK(shared_memory_names() == names);
}

TEST_CASE("two nodes, as the launcher has it, on one host: shared memory", "[stage]") {
  const Folder folder;
  const std::string port = free_port();
  std::vector<std::unique_ptr<Program>> programs;
  for (const std::string node : {"0", "1"}) {
    RunOptions options = folder.options();
    options.environment["RANK"] = node;
    options.environment["WORLD_SIZE"] = "2";
    options.environment["LOCAL_RANK"] = "0";
    options.environment["LOCAL_WORLD_SIZE"] = "1";
    options.environment["GROUP_RANK"] = node;
    options.environment["GROUP_WORLD_SIZE"] = "2";
    options.environment["MASTER_ADDR"] = "127.0.0.1";
    options.environment["MASTER_PORT"] = port;
    programs.push_back(
        std::make_unique<Program>(std::vector<std::string>{kBin + "04_ddp_launcher", "1", "1",
                                                           "--device", "cpu", "--metrics", "m"},
                                  options));
  }
  for (const auto& program : programs) {
    const RunResult result = program->wait();
    INFO(result.err);
    CHECK(result.exit_code == 0);
    CHECK(result.err.empty());
  }
  CHECK(contains(folder.read("m"), "\"backend\":\"shm\""));
}

TEST_CASE("a host of another name: shm is refused by both ranks", "[stage]") {
  const std::vector<std::string> elsewhere = {"unshare", "--uts", "sh", "-c",
                                              "hostname elsewhere && exec \"$0\" \"$@\""};
  for (const RunResult& result : run_pair("shm", elsewhere)) {
    INFO(result.err);
    CHECK(result.exit_code == 2);
    CHECK(contains(result.err, "--backend shm: rank 1 has host name elsewhere, rank 0 "));
    CHECK(contains(result.err, "expected all ranks on one host; use --backend gloo"));
    CHECK(lines(result.err) == 1);
  }
}

TEST_CASE("no shared memory: shm is an error, auto goes on with Gloo and says so", "[stage]") {
  const Folder folder;
  // Every file is limited to a megabyte, which a snapshot does not need and shared memory does.
  const std::vector<std::string> argv = {
      "prlimit", "--fsize=1048576", kBin + "03_ddp_spawn", "1", "1", "--nprocs", "2", "--device",
      "cpu",     "--backend"};
  const std::string reason =
      "rank 0 cannot make 8.0 MiB of shared memory: the limit of a file's size (ulimit -f) is 1.0 "
      "MiB";
  std::vector<std::string> explicit_shm = argv;
  explicit_shm.push_back("shm");
  const RunResult refused = folder.run(explicit_shm);
  INFO(refused.err);
  CHECK(refused.exit_code == 2);
  CHECK(contains(refused.err, "--backend shm: " + reason));
  CHECK(contains(refused.err, "; use --backend gloo\n"));
  CHECK(refused.out.empty());

  std::vector<std::string> automatic = argv;
  automatic.push_back("auto");
  const RunResult result = folder.run(automatic);
  INFO(result.err);
  CHECK(result.exit_code == 0);
  CHECK(contains(result.err,
                 "note: --backend auto uses gloo, because shm cannot be used: " + reason));
  CHECK(lines(result.err) == 1);
  CHECK(contains(result.out, "digest"));
}

TEST_CASE("a /dev/shm of 1 MiB does not matter, unless ranks cannot see one another", "[stage]") {
  // In a mount namespace whose /dev/shm is small, ranks in pid namespaces of their own: they must
  // use a name, for which there is no room.
  const std::string script =
      "mount -t tmpfs -o size=1m none /dev/shm || exit 70; port=$1; backend=$2; program=$3; shift "
      "3;"
      "for rank in 0 1; do $ISOLATE $program 1 1 --device cpu --rank $rank --world-size 2 "
      "--local-rank $rank --local-world-size 2 --master-addr 127.0.0.1 --master-port $port "
      "--backend $backend --timeout 20 & pids=\"$pids $!\"; done; "
      "code=0; for pid in $pids; do wait $pid || code=$?; done; exit $code";
  const auto run = [&](const std::string& backend, const std::string& isolate) {
    const Folder folder;
    RunOptions options = folder.options();
    options.environment["ISOLATE"] = isolate;
    return run_program({"unshare", "--mount", "sh", "-c", script, "sh", free_port(), backend,
                        kBin + "04_ddp_launcher"},
                       options);
  };
  const std::string own_pids = "unshare --pid --fork --mount-proc";
  const RunResult nameless = run("shm", "");
  INFO(nameless.err);
  CHECK(nameless.exit_code == 0);

  const RunResult refused = run("shm", own_pids);
  INFO(refused.err);
  CHECK(refused.exit_code == 2);
  CHECK(contains(refused.err,
                 "; rank 0 cannot reserve 4.0 MiB of shared memory (No space left on "
                 "device); /dev/shm has "));
  CHECK(lines(refused.err) == 2);  // one each

  const RunResult automatic = run("auto", own_pids);
  INFO(automatic.err);
  CHECK(automatic.exit_code == 0);
  CHECK(contains(automatic.err, "note: --backend auto uses gloo, because shm cannot be used: "));
  CHECK(lines(automatic.err) == 1);
}
