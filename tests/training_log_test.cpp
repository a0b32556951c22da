// What training prints, measures and writes with --metrics is so; what it takes of memory; and that
// a rank with a fault is named. The real programs, and stage 03 with a fault (faulty_ranks.cpp).
#include "common/training/training_log.hpp"

#include <fmt/format.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "common/base/exit_codes.hpp"
#include "common/base/scratch_folder.hpp"
#include "common/model/flat_parameters.hpp"
#include "common/parallel/distributed_data_parallel.hpp"
#include "common/parallel/distributed_sampler.hpp"
#include "common/training/trace_file.hpp"
#include "common/training/training.hpp"
#include "tests/catch.hpp"
#include "tests/support/run_program.hpp"
#include "tests/support/threads_as_ranks.hpp"

namespace {

namespace fs = std::filesystem;
using ddp::test::contains;
using ddp::test::Program;
using ddp::test::RunOptions;
using ddp::test::RunResult;
using nlohmann::json;

/// A folder in which programs run and leave their files.
class Folder {
 public:
  Program start(const std::string& line, const std::string& fault = "") const {
    RunOptions options;
    options.cwd = folder_.path();
    options.timeout_seconds = 120;
    options.environment = {{"DDP_TEST_FAULT", fault.empty() ? "none 0 0 0" : fault}};
    std::vector<std::string> argv = ddp::test::words(line);
    argv.front() = argv.front() == "faulty_ranks" ? std::string(DDP_FAULTY_RANKS)
                                                  : std::string(DDP_BIN_DIR) + "/" + argv.front();
    return Program(argv, options);
  }
  RunResult run(const std::string& line, const std::string& fault = "") const {
    return start(line, fault).wait();
  }
  std::string file(const std::string& name) const { return fs::path(folder_.path()) / name; }

 private:
  ddp::ScratchFolder folder_{"ddp-log"};
};

struct Metrics {
  std::vector<json> rows;
  json summary;  // null if there is none
};

/// Fails the test unless every line is whole, steps and epochs ascend, each rank has each step
/// once, and there is no second summary, nor anything after the first.
Metrics read_metrics(const std::string& path, int64_t ranks) {
  Metrics metrics;
  std::ifstream in(path);
  int64_t epoch = 0;
  for (std::string line; std::getline(in, line);) {
    INFO(path << ": " << line);
    REQUIRE(!in.eof());  // it ends with a newline
    REQUIRE(metrics.summary.is_null());
    const json parsed = json::parse(line);
    if (parsed.contains("summary")) {
      metrics.summary = parsed["summary"];
      continue;
    }
    const auto count = static_cast<int64_t>(metrics.rows.size());
    CHECK(parsed["rank"] == count % ranks);
    CHECK(parsed["step"] == count / ranks);
    CHECK(parsed["epoch"] >= epoch);
    epoch = parsed["epoch"];
    metrics.rows.push_back(parsed);
  }
  CHECK(metrics.rows.size() % static_cast<size_t>(ranks) == 0);
  return metrics;
}

std::vector<double> column(const Metrics& metrics, int64_t rank, const char* name,
                           int64_t first_step = 0) {
  std::vector<double> values;
  for (const json& row : metrics.rows) {
    if (row["rank"] == rank && row["step"] >= first_step) {
      values.push_back(row[name]);
    }
  }
  return values;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

void check_failed(const RunResult& result, const std::vector<std::string>& parts) {
  INFO("stdout: " << result.out << "\nstderr: " << result.err);
  CHECK(result.exit_code == 1);
  CHECK(std::ranges::count(result.err, '\n') == 1);
  CHECK(!contains(result.out, "moved"));
  for (const std::string& part : parts) {
    INFO("expected " << part);
    CHECK(contains(result.err, part));
  }
}

size_t bytes_in_use() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

}  // namespace

TEST_CASE("the median of many steps is within 0.1 %, that of few is exact", "[log]") {
  std::mt19937_64 random(1);
  const auto check = [&](const char* name, const std::function<double()>& draw) {
    ddp::StepMedian steps;
    std::vector<double> values;
    CHECK(std::isnan(steps.median()));
    for (const int64_t count : {1, 2, 3, 39, 41, 4096, 4097, 100000}) {
      while (steps.steps() < count) {
        values.push_back(draw());
        steps.add(values.back());
      }
      const int64_t warmup = std::min<int64_t>(20, count / 2);
      CHECK(steps.warmup_steps() == warmup);
      const double exact = median({values.begin() + warmup, values.end()});
      INFO(name << ", " << count << " steps: " << steps.median() << ", exactly " << exact);
      const double bound = count <= ddp::StepMedian::kExactSteps ? 0 : 1.0 / 1024;
      CHECK(std::abs(steps.median() - exact) <= bound * exact);
    }
  };
  std::lognormal_distribution<double> usual(std::log(0.137), 0.1);
  std::lognormal_distribution<double> wide(0, 4);
  std::bernoulli_distribution coin(0.5);
  check("usual", [&] { return usual(random); });
  check("wide", [&] { return std::clamp(wide(random), 0x1p-12, 0x1p24); });
  check("two values", [&] { return coin(random) ? 0.003 : 0.3; });
  check("one value", [] { return 77670.0; });
  check("beyond the buckets", [] { return 1e-7; });
}

TEST_CASE("memory does not grow with the number of steps", "[log]") {
  constexpr int64_t kSteps = 1000;  // of an epoch
  ddp::Options options;
  options.quiet = true;
  options.save_every = 1;
  const ddp::Mlp model(std::vector<int64_t>{3, 1});
  ddp::TrainingLog log(options, model, torch::kCPU);
  const torch::Tensor loss = torch::ones({});
  ddp::Batch batch;
  batch.step_samples_per_rank = 32;
  const auto train = [&](int64_t epochs) {
    for (int64_t epoch = 0; epoch < epochs; ++epoch) {
      log.begin_epoch(kSteps);
      for (int64_t step = 0; step < kSteps; ++step) {
        log.add_loss(loss);
        log.end_batch(batch);
      }
      log.end_epoch();
    }
  };
  train(20);
  const size_t before = bytes_in_use();
  train(200);
  // Not a bit for each of 200,000 steps, nor 21 bytes for an epoch.
  CHECK(bytes_in_use() < before + 4096);
}

TEST_CASE("memory of a stage does not grow with the number of steps", "[log][measured]") {
  const Folder folder;
  for (const std::string options : {"", "--speedup fused"}) {
    Program stage = folder.start("01_single_gpu 1000000 1000000 --dataset-size 256 " + options);
    const auto peak_kib_at = [&](const std::string& epoch) {
      REQUIRE(stage.wait_for_output("Epoch " + epoch + " "));
      std::ifstream status("/proc/" + std::to_string(stage.pid()) + "/status");
      for (std::string line; std::getline(status, line);) {
        if (line.starts_with("VmHWM:")) {
          return std::stol(line.substr(line.find(':') + 1));
        }
      }
      FAIL("no VmHWM of process " << stage.pid());
      return 0L;
    };
    const long before_kib = peak_kib_at("1000");
    const long after_kib = peak_kib_at("20000");
    kill(stage.pid(), SIGKILL);
    // A step's time alone would be 8 bytes for each of 152,000 steps.
    INFO(options << ": " << before_kib << " KiB, then " << after_kib);
    CHECK(after_kib - before_kib < 512);
  }
}

TEST_CASE("memory of ranks that wait and save does not grow with the number of steps", "[log]") {
  constexpr int64_t kSteps = 100;  // of an epoch
  constexpr int64_t kEpochs = 1000;
  const Folder folder;
  for (const std::string metrics : {"", "m"}) {  // without, one wait in eight is timed; with, all
    ddp::Options options;
    options.program = "training_log_test";
    options.quiet = true;
    options.snapshot = folder.file("s");
    options.metrics = metrics.empty() ? "" : folder.file(metrics);
    const ddp::Dataset dataset = ddp::load_dataset(options);
    size_t bytes_before = 0;
    size_t bytes_after = 0;
    int64_t keys_before = 0;
    int64_t keys_after = 0;
    const auto train = [&](ddp::ProcessGroup& process_group) {
      ddp::Mlp model(std::vector<int64_t>{3, 1});
      ddp::Optimizer optimizer(*model, options);
      ddp::Snapshot snapshot(options, process_group.environment(), dataset, *model, optimizer);
      ddp::TrainingLog log(options, model, torch::kCPU, &process_group);
      log.begin_training(0);
      const torch::Tensor loss = torch::ones({});
      const torch::Tensor gradient = torch::ones({4});
      ddp::Batch batch;
      batch.step_samples_per_rank = 32;
      const auto train_epochs = [&](int64_t begin, int64_t end) {
        for (int64_t epoch = begin; epoch < end; ++epoch) {
          log.set_epoch(epoch);
          log.begin_epoch(kSteps);
          for (int64_t step = 0; step < kSteps; ++step) {
            log.add_loss(loss);
            process_group.all_reduce(gradient);
            log.end_batch(batch);
          }
          log.end_epoch();
          if (epoch % 10 == 9) {
            if (process_group.rank() == 0) {
              snapshot.save(epoch + 1, &process_group);
            }
            snapshot.finish_save(epoch + 1, process_group);
          }
        }
      };
      // One rank looks, while none does anything.
      const auto look = [&](size_t& bytes, int64_t& keys) {
        process_group.barrier();
        if (process_group.rank() == 0) {
          bytes = bytes_in_use();
          keys = process_group.store()->getNumKeys();
        }
        process_group.barrier();
      };
      train_epochs(0, kEpochs / 10);
      look(bytes_before, keys_before);
      train_epochs(kEpochs / 10, kEpochs / 10 + kEpochs);
      look(bytes_after, keys_after);
    };
    ddp::test::run_ranks(2, train, "shm");
    // Of both ranks together less than a byte for each step, and 66 for each epoch; the allocator
    // itself keeps up to 20,000 for threads that come and go.
    constexpr size_t kBoundBytes = size_t{1} << 16;
    INFO((metrics.empty() ? "without" : "with") << " --metrics");
    CHECK(bytes_after < bytes_before + kBoundBytes);
    CHECK(keys_before > 0);
    CHECK(keys_after == keys_before);
  }
}

TEST_CASE("the pages of --metrics are touched before an epoch's steps, not in them", "[log]") {
  constexpr int64_t kSteps = 1000;
  constexpr int64_t kEpochs = 4;  // in which nothing is written, and memory used again
  ddp::Options options;
  options.quiet = true;
  options.metrics = "m";
  const ddp::Mlp model(std::vector<int64_t>{3, 1});
  ddp::TrainingLog log(options, model, torch::kCPU);
  const torch::Tensor loss = torch::ones({});
  ddp::Batch batch;
  batch.step_samples_per_rank = 32;
  const auto page_faults = [] {
    rusage used{};
    getrusage(RUSAGE_THREAD, &used);
    return used.ru_minflt;
  };
  std::vector<int64_t> in_steps;
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    log.begin_epoch(kSteps);
    const int64_t before = page_faults();
    for (int64_t step = 0; step < kSteps; ++step) {
      log.add_loss(loss);
      log.end_batch(batch);
    }
    in_steps.push_back(page_faults() - before);
    log.end_epoch();
  }
  // The first epoch touches what all steps use, and the kernel may take a page away at any time.
  CHECK(*std::min_element(in_steps.begin() + 1, in_steps.end()) == 0);
}

TEST_CASE("a run with SGD takes three times its weights and 128 MiB, 160 with one large layer",
          "[log][measured]") {
  const Folder folder;
  // Autograd makes each layer's gradient before it adds it to what is there, so a layer that is
  // nearly the whole model takes nearly a third copy, unless fused; LibTorch alone takes 128 MiB.
  for (const auto& [options, more_mib] : std::initializer_list<std::pair<std::string, double>>{
           {"--layers 784,3300,3300,3300,3300,10 --dataset-size 64", 128},
           {"--layers 784,4096,8000,10 --dataset-size 64 --speedup fused", 128},
           {"--layers 784,4096,8000,10 --dataset-size 64", 160}}) {
    const RunResult result = folder.run("01_single_gpu 1 1 --quiet --metrics m " + options);
    INFO(options << "\n" << result.err);
    REQUIRE(result.exit_code == 0);
    const json summary = read_metrics(folder.file("m"), 1).summary;
    const double weights_mib = summary["parameters"].get<double>() * 4 / 1024 / 1024;
    REQUIRE(weights_mib > 130);
    INFO(weights_mib << " MiB of weights, peak " << summary["peak_rss_mib"]);
    CHECK(summary["peak_rss_mib"][0].get<double>() <= 3 * weights_mib + more_mib);
  }
}

TEST_CASE("how far weights moved is exact, whoever drew them", "[log][measured]") {
  for (const bool as_drawn : {true, false}) {
    torch::manual_seed(7);
    const ddp::Mlp model(std::vector<int64_t>{300, 400, 10});
    const torch::NoGradGuard no_grad;
    if (!as_drawn) {
      model->parameters()[2].add_(1e-3);
    }
    const size_t before = bytes_in_use();
    const ddp::InitialWeights initial(*model, 7);
    CHECK((bytes_in_use() < before + 100000) == as_drawn);  // no copy
    CHECK(initial.distance() == 0);
    const torch::Tensor first = ddp::parameter_vector(*model);
    for (torch::Tensor& parameter : model->parameters()) {
      parameter.add_(torch::randn_like(parameter));
    }
    const double expected = (ddp::parameter_vector(*model) - first).norm().item<double>();
    CHECK(std::abs(initial.distance() - expected) <= 1e-12 * expected);
  }
}

TEST_CASE("the printed loss is the mean over the ranks", "[log]") {
  const Folder folder;
  const RunResult result = folder.run("03_ddp_spawn 3 9 --nprocs 2 --layers 20,16,4 --metrics m");
  INFO(result.out << result.err);
  REQUIRE(result.exit_code == 0);
  const Metrics metrics = read_metrics(folder.file("m"), 2);
  std::map<int64_t, std::map<int64_t, double>> loss;  // by epoch and rank
  for (const json& row : metrics.rows) {
    loss[row["epoch"]][row["rank"]] += row["loss"].get<double>() / 32;  // all steps are equal
  }
  bool ranks_differ = false;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    const double mean = (loss[epoch][0] + loss[epoch][1]) / 2;
    ranks_differ = ranks_differ || std::abs(loss[epoch][0] - mean) > 3e-4;
    for (int64_t rank = 0; rank < 2; ++rank) {
      const std::regex line(fmt::format(
          R"(\[CPU{}\] Epoch {} \| Batchsize: 32 \| Steps: 32 \| Loss: (\S+)\n)", rank, epoch));
      std::smatch match;
      REQUIRE(std::regex_search(result.out, match, line));
      INFO("epoch " << epoch << ", mean " << mean << ": " << match[0]);
      CHECK(std::abs(std::stod(match[1]) - mean) <= 0.5001e-4);
    }
  }
  CHECK(ranks_differ);  // else one rank's loss would pass for the mean
}

TEST_CASE("the printed step is the slowest rank's, without the first 20", "[log]") {
  const Folder folder;
  // Without communication no rank waits for another, and their steps differ.
  const RunResult result = folder.run(
      "faulty_ranks 1 9 --nprocs 2 --dataset-size 2560 --no-communication --quiet --metrics m",
      "slow-start 1 0 0");
  INFO(result.out << result.err);
  REQUIRE(result.exit_code == 0);
  std::smatch match;
  REQUIRE(std::regex_search(result.out, match, std::regex(R"(\| step (\S+) ms \|)")));
  const Metrics metrics = read_metrics(folder.file("m"), 2);
  const double slower = median(column(metrics, 1, "step_ms", 20));
  CHECK(match[1] == fmt::format("{:.3f}", slower));
  CHECK(metrics.summary["step_ms"] == slower);
  CHECK(metrics.summary["steps"] == 40);
  CHECK(metrics.summary["warmup_steps"] == 20);
}

TEST_CASE("steps end on a clock that the ranks of a host share", "[log][metrics]") {
  const auto now_ms = [] {
    return std::chrono::duration<double, std::milli>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  };
  const Folder folder;
  const double before_ms = now_ms();
  REQUIRE(folder.run("03_ddp_spawn 3 9 --nprocs 2 --quiet --metrics m").exit_code == 0);
  const double after_ms = now_ms();
  const Metrics metrics = read_metrics(folder.file("m"), 2);
  REQUIRE(metrics.rows.size() == 2 * 3 * 32);
  for (const int64_t rank : {0, 1}) {
    const std::vector<double> ends_ms = column(metrics, rank, "end_ms");
    const std::vector<double> steps_ms = column(metrics, rank, "step_ms");
    CHECK(ends_ms.front() - steps_ms.front() > before_ms);
    CHECK(ends_ms.back() < after_ms);
    for (size_t step = 1; step < ends_ms.size(); ++step) {
      // A step begins where the one before ended, an epoch's first one later.
      const double begin_ms = ends_ms[step] - steps_ms[step];
      CHECK((step % 32 == 0 ? begin_ms > ends_ms[step - 1]
                            : std::abs(begin_ms - ends_ms[step - 1]) < 1e-5));
    }
  }
  for (const char* const counter :
       {"minor_faults", "major_faults", "voluntary_switches", "involuntary_switches"}) {
    CHECK(metrics.summary[counter].size() == 2);
  }
}

TEST_CASE("faults and switches of a process are counted", "[log]") {
  constexpr size_t kBytes = 64 * 4096;
  void* const memory =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  madvise(memory, kBytes, MADV_NOHUGEPAGE);
  const ddp::ProcessTimes before = ddp::process_times();
  for (size_t i = 0; i < kBytes; i += 4096) {
    static_cast<volatile char*>(memory)[i] = 1;
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ddp::ProcessTimes used;
  for (int twice = 0; twice < 2; ++twice) {
    used.add(before, ddp::process_times());
  }
  munmap(memory, kBytes);
  CHECK(used.minor_faults >= 2 * kBytes / 4096);
  CHECK(used.minor_faults < 1e6);
  CHECK(used.voluntary_switches >= 2);
  CHECK(used.wall_ms >= 2);
  CHECK(used.cpu_ms > 0);
}

TEST_CASE("--metrics of a run that is stopped and resumed is that of one run", "[log][metrics]") {
  const Folder folder;
  Program first =
      folder.start("03_ddp_spawn 1000000000 1000000000 --nprocs 2 --metrics m --snapshot s");
  REQUIRE(first.wait_for_output("Epoch 3 "));
  kill(first.pid(), SIGTERM);
  const RunResult stopped = first.wait();
  INFO(stopped.err);
  REQUIRE(stopped.exit_code == 85);
  const Metrics before = read_metrics(folder.file("m"), 2);
  REQUIRE(!before.rows.empty());
  CHECK(before.summary.is_null());
  const int64_t epochs_done = before.rows.back()["epoch"].get<int64_t>() + 1;
  CHECK(contains(stopped.err, "after epoch " + std::to_string(epochs_done - 1)));

  // As if it had gone on for an epoch and then been killed while it wrote.
  json later = before.rows.back();
  later["epoch"] = epochs_done;
  later["step"] = later["step"].get<int64_t>() + 1;
  const std::string half = later.dump();
  std::ofstream(folder.file("m"), std::ios::app) << later.dump() << "\n"
                                                 << half.substr(0, half.size() / 2);
  const std::string resume =
      fmt::format("03_ddp_spawn {} 1000000000 --nprocs 2 --metrics m --snapshot s --resume auto",
                  epochs_done + 2);
  for (int i = 0; i < 2; ++i) {  // the second time from the same snapshot, after a whole run
    const RunResult result = folder.run(resume);
    INFO(result.out << result.err);
    REQUIRE(result.exit_code == 0);
    const Metrics all = read_metrics(folder.file("m"), 2);
    CHECK(all.rows.size() == before.rows.size() + 2 * 2 * 32);
    CHECK(std::equal(before.rows.begin(), before.rows.end(), all.rows.begin()));
    CHECK(all.rows.back()["epoch"] == epochs_done + 1);
    REQUIRE(!all.summary.is_null());
    CHECK(all.summary["steps"] == all.rows.size() / 2);
  }
  // A fresh start begins the file anew.
  REQUIRE(folder.run("03_ddp_spawn 1 9 --nprocs 2 --metrics m --snapshot s --quiet").exit_code ==
          0);
  CHECK(read_metrics(folder.file("m"), 2).rows.size() == 2 * 32);
}

TEST_CASE("--metrics of a run that diverges holds the steps until then", "[log][metrics]") {
  const Folder folder;
  check_failed(folder.run("03_ddp_spawn 3 1 --nprocs 2 --lr 5 --metrics m --quiet"),
               {"diverged in epoch 0"});
  const Metrics metrics = read_metrics(folder.file("m"), 2);
  CHECK(metrics.rows.size() == 2 * 32);
  CHECK(metrics.summary.is_null());
}

TEST_CASE("of a write that fails nothing stays", "[log][metrics]") {
  const Folder folder;
  {
    ddp::MetricsFile file(folder.file("m"), 0);
    file.append_steps(torch::zeros({2, 3, 10}, torch::kFloat64));
    // Room for one more line: the next write is cut off in its second.
    const auto size = static_cast<rlim_t>(fs::file_size(folder.file("m")));
    struct rlimit old {};
    getrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, SIG_IGN);
    const struct rlimit limit { .rlim_cur = size + size / 6 + 10, .rlim_max = old.rlim_max };
    setrlimit(RLIMIT_FSIZE, &limit);
    CHECK_THROWS_WITH(file.append_steps(torch::zeros({2, 1, 10}, torch::kFloat64)),
                      Catch::Contains("--metrics: cannot write " + folder.file("m")));
    setrlimit(RLIMIT_FSIZE, &old);
  }
  CHECK(read_metrics(folder.file("m"), 2).rows.size() == 6);
}

TEST_CASE("a rank's NaN is named in the same step", "[log][faults]") {
  for (const std::string speedup : {"none", "fused"}) {
    const Folder folder;
    const std::string command =
        "faulty_ranks 9 1 --nprocs 2 --layers 20,16,16,1 --check finite --snapshot s --quiet "
        "--speedup " +
        speedup;
    REQUIRE(folder
                .run("faulty_ranks 2 1 --nprocs 2 --layers 20,16,16,1 --snapshot s --quiet "
                     "--speedup " +
                     speedup)
                .exit_code == 0);
    std::ifstream in(folder.file("s"), std::ios::binary);
    const std::string saved((std::istreambuf_iterator<char>(in)), {});
    const std::string resume = command + " --resume auto";
    check_failed(folder.run(resume, "nan-input 1 2 17"),
                 {"epoch 2, step 17: the ",
                  speedup == "none" ? " loss of rank 1 is nan"
                                    : " gradient of parameter layer0.weight of rank 1 is not"});
    check_failed(folder.run(resume, "nan-weight 0 2 5"),
                 {"epoch 2, step 5: parameter layer2.weight of rank 0 is not finite"});
    std::ifstream again(folder.file("s"), std::ios::binary);
    CHECK(std::string((std::istreambuf_iterator<char>(again)), {}) == saved);
  }
}

TEST_CASE("what is not finite in a rank's gradient alone is named in the same step",
          "[log][faults]") {
  const Folder folder;
  for (const std::string speedup : {"none", "fused"}) {
    const std::string command =
        "faulty_ranks 9 9 --layers 20,16,16,1 --check finite --quiet --speedup " + speedup;
    for (const std::string rank : {"0", "1"}) {
      check_failed(folder.run(command + " --nprocs 2", "inf-gradient " + rank + " 2 17"),
                   {"epoch 2, step 17: the gradient of parameter layer0.weight of rank " + rank +
                    " is not "});
    }
    check_failed(folder.run(command + " --nprocs 1", "inf-gradient 0 2 17"),
                 {"epoch 2, step 17: the gradient of parameter layer0.weight of rank 0 is not "});
    check_failed(
        folder.run(command + " --nprocs 2 --gradient-compression fp16", "large-gradient 1 2 17"),
        {"epoch 2, step 17: a gradient of rank 1 is too large for fp16"});
  }
}

TEST_CASE("weights that the last step of an epoch makes infinite end the run, without --check",
          "[log][faults]") {
  const Folder folder;
  check_failed(folder.run("faulty_ranks 9 1 --layers 20,16,16,1 --nprocs 2 --snapshot s --quiet",
                          "inf-gradient 1 2 31"),
               {"diverged in epoch 2: its loss is ", ", and a weight is not finite"});
}

TEST_CASE("ranks whose weights differ are told apart, with --check weights at the next check",
          "[log][faults]") {
  for (const std::string speedup : {"none", "fused"}) {
    const Folder folder;
    const std::string command =
        "faulty_ranks 3 9 --layers 20,16,16,1 --quiet --speedup " + speedup + " --nprocs ";
    check_failed(folder.run(command + "3 --check weights=10", "flip 1 1 3"),
                 {"after 8 steps of epoch 1 the weights differ: rank 1 has digest ",
                  ", expected the other ranks' "});  // step 30 of the run
    check_failed(folder.run(command + "2 --check weights=10", "flip 1 0 12"),
                 {"after 20 steps of epoch 0 the weights differ: rank 0 has digest ",
                  ", rank 1 has digest ", ", expected the same on all ranks"});
    check_failed(folder.run(command + "2", "flip 0 2 31"), {"of epoch 2 the weights differ: "});
  }
}

TEST_CASE("ranks that do not come to a collective of NCCL are named", "[log][faults]") {
  const Folder folder;
  const auto check = [&](const std::string& fault, const std::string& late,
                         const std::string& what) {
    const RunResult result = folder.run(
        "faulty_ranks 1 1 --layers 20,1 --nprocs 4 --timeout 2 --snapshot s --quiet", fault);
    check_failed(
        result,
        {"[rank ", "] rank " + late + " did not arrive within 2 s, expected all 4 ranks: " + what +
                       " did not end within 2 s; called last: all_reduce of 21 float32 (collective "
                       "1), called at tests/faulty_ranks.cpp:"});
    CHECK(result.seconds < 60);
  };
  check("nccl-timeout 2 0 3", "2", "NCCL's ALLREDUCE of 21 elements");
  check("nccl-timeout 0 0 3", "0", "NCCL's ALLREDUCE of 21 elements");
  check("device-stands 3 0 3", "3", "the device's work");
  check("call-stands 1 0 3", "1", "a call to NCCL");
  // Nobody is missing.
  check_failed(folder.run("faulty_ranks 1 1 --layers 20,1 --nprocs 2 --timeout 2 --quiet",
                          "call-stands 7 0 3"),
               {"] a call to NCCL did not end within 2 s; called last: "});
}

TEST_CASE("before a snapshot the weights are compared, too", "[log][faults]") {
  const Folder folder;
  check_failed(folder.run("faulty_ranks 3 1 --layers 20,16,16,1 --nprocs 2 --snapshot s "
                          "--check weights=1000000 --quiet",
                          "flip 0 1 30"),
               {"of epoch 1 the weights differ: "});
  CHECK(fs::exists(folder.file("s")));
  CHECK(!fs::exists(folder.file("s.prev")));  // that of epoch 0 is the only one
}

/// It is on its way, for ever.
class UnendedWork : public c10d::Work {
 public:
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  }
};

TEST_CASE("a collective that nobody waited for is drawn to the end of the trace", "[trace]") {
  using Clock = ddp::StepTrace::Clock;
  const Clock::time_point begin = Clock::now();
  ddp::StepTrace trace;
  trace.begin_step(begin);
  const auto work = c10::make_intrusive<UnendedWork>();
  trace.add_collective("all_reduce", torch::ones({2}), ddp::CallSite::current(), begin, *work);
  trace.end_step(begin + std::chrono::milliseconds(3));
  const json events = json::parse("[" + ddp::trace_events(trace, 0) + "]");
  const auto event =
      std::ranges::find(events, "all_reduce", [](const json& one) { return one["name"]; });
  REQUIRE(event != events.end());
  CHECK(std::abs((*event)["dur"].get<double>() - 3000) < 0.01);
}

TEST_CASE("a flipped bit of one rank's weights is found at the next check, 100 of 100",
          "[log][faults]") {
  ddp::Options options;
  options.program = "training_log_test";
  options.layers = {6, 5, 3};
  options.dataset_size = 96;
  options.batch_per_rank = 4;
  options.total_epochs = 2;
  options.save_every = 4;  // never
  options.quiet = true;
  options.check_weights_every = 5;
  const ddp::Dataset dataset = ddp::load_dataset(options);
  std::mt19937 random(1);
  // Ranks that are threads share a generator. Without a seed each run has other weights, and now
  // and then one so small that the next update rounds the flipped bit away: nothing is left to
  // find.
  std::mutex one_draws;
  int found = 0;
  for (int attempt = 0; attempt < 100; ++attempt) {
    const int world_size = 2 + attempt % 2;
    const auto faulty_rank = static_cast<int>(random() % static_cast<unsigned>(world_size));
    const auto faulty_step = static_cast<int64_t>(random() % 15);
    const auto element = static_cast<int64_t>(random() % 53);
    const auto bit = random() % 32;
    std::string message;
    try {
      ddp::test::run_ranks(
          world_size,
          [&](ddp::ProcessGroup& process_group) {
            const ddp::LaunchEnvironment launch = process_group.environment();
            std::unique_lock lock(one_draws);
            torch::manual_seed(static_cast<uint64_t>(attempt));
            ddp::Mlp model(dataset.layers);
            lock.unlock();
            ddp::DistributedSampler sampler(dataset, process_group, options);
            ddp::DataLoader loader(dataset.train, sampler, options, torch::kCPU);
            ddp::DistributedDataParallel parallel_model(model, process_group);
            ddp::Optimizer optimizer(*model, options, &process_group);
            ddp::Training training(options, launch, dataset, loader, model, optimizer, {},
                                   &process_group);
            int64_t step = 0;
            for (const int64_t epoch : training.epochs()) {
              sampler.set_epoch(epoch);
              for (const ddp::Batch& batch : loader) {
                ddp::loss(parallel_model.forward(batch.input), batch).backward();
                optimizer.step();
                optimizer.zero_grad();
                if (step++ == faulty_step && process_group.rank() == faulty_rank) {
                  int64_t begin = 0;
                  for (const torch::Tensor& parameter : model->parameters()) {
                    if (element >= begin && element < begin + parameter.numel()) {
                      auto* const bits =
                          static_cast<uint32_t*>(parameter.detach().mutable_data_ptr());
                      bits[element - begin] ^= uint32_t{1} << bit;
                    }
                    begin += parameter.numel();
                  }
                }
              }
            }
          },
          "shm");
    } catch (const ddp::Error& error) {
      message = error.what();
    }
    const int64_t check = (faulty_step / 5 + 1) * 5;
    const int64_t per_epoch = (96 + 4 * world_size - 1) / (4 * world_size);
    const std::string where =
        fmt::format("after {} steps of epoch {} ", check - (check - 1) / per_epoch * per_epoch,
                    (check - 1) / per_epoch);
    INFO("attempt " << attempt << ": " << world_size << " ranks, rank " << faulty_rank << ", step "
                    << faulty_step << ", bit " << bit << ": " << message);
    // A weight of 1e38 makes all ranks' gradients, and so their weights, NaN before the check.
    const bool spread = bit == 30 && contains(message, "a weight is not finite on any rank");
    const bool named = contains(message, fmt::format("rank {} has digest", faulty_rank)) &&
                       (world_size == 2 || contains(message, "expected the other ranks'"));
    const bool right = contains(message, where) && (named || spread);
    CHECK(right);
    found += right ? 1 : 0;
  }
  CHECK(found == 100);
}

TEST_CASE("a rank that computes longer than the others is named, equal ones are not",
          "[log][faults]") {
  const Folder folder;
  const std::string command = "faulty_ranks 1 9 --nprocs 2 --dataset-size 57600 --quiet --speedup ";
  for (const std::string speedup : {"none", "fused"}) {
    for (const std::string rank : {"0", "1"}) {
      const RunResult slow = folder.run(command + speedup, "slow " + rank + " 0 0");
      INFO(slow.out << slow.err);
      CHECK(slow.exit_code == 0);
      CHECK(contains(slow.err, "note: rank " + rank + " computes for 1."));
      CHECK(std::ranges::count(slow.err, '\n') == 1);
      CHECK(std::regex_match(slow.out, std::regex(R"(moved .* samples/s\n)")));
    }
    // Where another program keeps one processor busy, equal ranks do not take equal times.
    int silent = 0;
    for (int attempt = 0; attempt < 5; ++attempt) {
      const RunResult even = folder.run(command + speedup);
      CHECK(even.exit_code == 0);
      silent += even.err.empty() ? 1 : 0;
    }
    CHECK(silent >= 3);
  }
}
