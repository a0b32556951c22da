// The printed lines and --metrics of the real programs are right.
#include "common/training/log.hpp"

#include <malloc.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <regex>
#include <tuple>

#include "common/base/files.hpp"
#include "common/data/dataset.hpp"
#include "common/training/step_clock.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/run_program.hpp"

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Folder in which programs run and leave their files.
class Folder {
 public:
  Program start(const std::string& line) const {
    return Program({"/bin/sh", "-c", "exec " DDP_BIN_DIR "/" + line},
                   {.cwd = folder_.path(), .timeout_seconds = 120});
  }
  RunResult run(const std::string& line, int exit_code = 0) const {
    RunResult result = start(line).wait();
    INFO(line << "\n" << result.out << result.err);
    REQUIRE(result.exit_code == exit_code);
    return result;
  }
  std::string file(const std::string& name) const { return fs::path(folder_.path()) / name; }

 private:
  ddp::ScratchFolder folder_{"ddp-log"};
};

struct Metrics {
  std::vector<json> rows;
  json summary;  // null if there is none
};

/// Fails the test unless every line is whole, epochs ascend, each rank has each step once, and
/// nothing comes after the summary.
Metrics read_metrics(const std::string& path, int64_t ranks) {
  Metrics metrics;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    INFO(path << ": " << line);
    REQUIRE((!in.eof() && metrics.summary.is_null()));
    const json parsed = json::parse(line);
    if (parsed.contains("summary")) {
      metrics.summary = parsed["summary"];
      continue;
    }
    const auto count = static_cast<int64_t>(metrics.rows.size());
    CHECK(parsed["rank"] == count % ranks);
    CHECK(parsed["step"] == count / ranks);
    CHECK((count == 0 || parsed["epoch"] >= metrics.rows.back()["epoch"]));
    metrics.rows.push_back(parsed);
  }
  CHECK(metrics.rows.size() % static_cast<size_t>(ranks) == 0);
  return metrics;
}

}  // namespace

TEST_CASE("each rank prints each epoch, and rank 0 the last line") {
  struct Case {
    const char* line;
    int ranks;
    const char* sizes;
    const char* accuracy;
  };
  for (const auto& [line, ranks, sizes, accuracy] :
       {Case{"01_single_gpu 3 9 --dataset-size 100", 1, R"(Batchsize: 32 \| Steps: 4)", ""},
        Case{"02_data_parallel 3 9 --nprocs 2 --dataset digits --batch-size 64", 1,
             R"(Batchsize: 64 \| Steps: 23)", R"(accuracy [01]\.\d{4} \| )"},
        Case{"03_ddp_spawn 3 9 --nprocs 2 --global-batch 40 --dataset-size 100", 2,
             R"(Batchsize: 20 \| Steps: 3)", ""}}) {
    const RunResult result = Folder().run(line);
    INFO(line << "\n" << result.out);
    std::string rest = result.out;
    for (int i = 0; i < 3 * ranks; ++i) {  // ranks print in any order
      const std::regex epoch(fmt::format(R"(\[CPU{}\] Epoch {} \| {} \| Loss: \d+\.\d{{4}}\n)",
                                         i % ranks, i / ranks, sizes));
      std::smatch match;
      REQUIRE(std::regex_search(rest, match, epoch));
      rest.erase(static_cast<size_t>(match.position()), static_cast<size_t>(match.length()));
    }
    const std::regex last(
        fmt::format(R"(moved \d+\.\d+ \| loss \d+\.\d{{4}} \| {}digest [0-9a-f]{{16}} \| )"
                    R"(step \d+\.\d{{3}} ms \| \d+ samples/s\n)",
                    accuracy));
    CHECK(std::regex_match(rest, last));
    CHECK(result.err.empty());
  }
}

TEST_CASE("--verbose: what each rank reads, the shape it sees, and how busy it was") {
  const RunResult result = Folder().run("03_ddp_spawn 2 9 --nprocs 2 --dataset-size 80 --verbose");
  INFO(result.out << result.err);
  for (const std::string rank : {"0", "1"}) {
    const std::regex reads("\\[CPU" + rank + R"(\] epoch 0 reads (\d+, ){8}\.\.\.\n)");
    CHECK(std::regex_search(result.out, reads));
    const std::regex busy("\\[CPU" + rank + R"(\] busy [01]\.\d{2} of 1 core\n)");
    CHECK(std::regex_search(result.err, busy));
  }
  for (const char* const size : {"32", "8"}) {  // in both epochs, the last batch is smaller
    const std::regex in_model(fmt::format(R"(In model: input \[{}, 20\] on cpu\n)", size));
    CHECK(std::distance(std::sregex_iterator(result.out.begin(), result.out.end(), in_model), {}) ==
          2);  // once on each rank
  }
}

TEST_CASE("the printed loss is the mean over the ranks") {
  const Folder folder;
  const RunResult result = folder.run("03_ddp_spawn 3 9 --nprocs 2 --layers 20,16,4 --metrics m");
  const Metrics metrics = read_metrics(folder.file("m"), 2);
  double most_apart = 0;
  for (size_t epoch = 0; epoch < 3; ++epoch) {
    double sums[2] = {0, 0};
    for (const json& row : metrics.rows) {
      sums[row["rank"].get<int>()] += row["epoch"] == epoch ? row["loss"].get<double>() : 0;
    }
    most_apart = std::max(most_apart, std::abs(sums[0] - sums[1]) / 32);
    const double mean = (sums[0] + sums[1]) / 64;  // 32 steps of equal sizes
    for (const char rank : {'0', '1'}) {
      std::smatch match;
      REQUIRE(std::regex_search(
          result.out, match,
          std::regex(fmt::format(R"(\[CPU{}\] Epoch {} \|.* Loss: (\S+)\n)", rank, epoch))));
      INFO("epoch " << epoch << ", mean " << mean << ": " << match[0]);
      CHECK(std::abs(std::stod(match[1]) - mean) <= 0.5001e-4);
    }
  }
  CHECK(most_apart > 6e-4);  // so a rank's own loss is not taken for the mean
}

TEST_CASE("the printed step is the slowest rank's median without warm-up") {
  const Folder folder;
  // Without communication the ranks do not wait for each other, and their steps differ.
  const RunResult result = folder.run(
      "03_ddp_spawn 1 9 --nprocs 2 --global-batch 2 --lr 0.001 --dataset-size 2560 "
      "--no-communication --quiet --metrics m");
  const Metrics metrics = read_metrics(folder.file("m"), 2);
  REQUIRE(metrics.rows.size() == 2 * 1280);  // more than one gather
  const torch::Tensor step_ms = torch::full({1280, 2}, NAN, torch::kFloat64);
  for (const json& row : metrics.rows) {
    step_ms[row["step"].get<int64_t>()][row["rank"].get<int64_t>()] = row["step_ms"].get<double>();
  }
  const auto slowest = step_ms.slice(0, 20).quantile(0.5, /*dim=*/0).max().item<double>();
  CHECK(metrics.summary["step_ms"].get<double>() == Approx(slowest).epsilon(1e-5));
  CHECK(metrics.summary["warmup_steps"] == 20);
  CHECK(metrics.summary["communicates"] == false);
  CHECK(contains(result.out, fmt::format("| step {:.3f} ms | {:.0f} samples/s",
                                         metrics.summary["step_ms"].get<double>(),
                                         metrics.summary["samples_per_second"].get<double>())));
  CHECK(metrics.summary["samples_per_second"].get<double>() == Approx(2e3 / slowest).epsilon(1e-5));
}

TEST_CASE("the summary says how the run was made, and of each rank what is of a rank") {
  const Folder folder;
  const RunResult result = folder.run(
      "03_ddp_spawn 3 9 --nprocs 2 --backend gloo --dataset digits --global-batch 2000 "
      "--optimizer momentum --metrics m");
  const json summary = read_metrics(folder.file("m"), 2).summary;
  INFO(summary.dump(1));
  // The global batch is all samples of an epoch.
  const json expected = json::parse(R"({
      "program": "03_ddp_spawn", "launcher": "spawn", "backend": "gloo", "device": "cpu",
      "world_size": 2, "nodes": 1, "threads": 1, "dataset": "digits", "parameters": 26122,
      "batch_size": 1000, "global_batch": 1437, "optimizer": "momentum", "learning_rate": 0.02,
      "epochs": 3, "steps": 3, "communicates": true, "peak_device_mib": []})");
  for (const auto& [name, value] : expected.items()) {
    CHECK(summary[name] == value);
  }
  CHECK(contains(
      result.out,
      fmt::format("moved {:#.6g} | loss {:.4f} | accuracy {:.4f} | digest {} ",
                  summary["moved"].get<double>(), summary["loss"].get<double>(),
                  summary["accuracy"].get<double>(), summary["digest"].get<std::string>())));
  for (const char* const name : {"peak_rss_mib", "startup_ms"}) {
    REQUIRE(summary[name].size() == 2);
    CHECK(summary[name][1].get<double>() > 0);
    CHECK(summary[name][1].get<double>() < 60'000);  // not since the machine's start
  }
}

TEST_CASE("--metrics of a resumed run is one run's, whatever stood after the snapshot") {
  const Folder folder;
  Program first = folder.start("03_ddp_spawn 1000000 1000000 --nprocs 2 --metrics m --snapshot s");
  REQUIRE(first.wait_for_output("Epoch 3 "));
  kill(first.pid(), SIGTERM);
  REQUIRE(first.wait().exit_code == 85);
  const Metrics before = read_metrics(folder.file("m"), 2);
  REQUIRE(!before.rows.empty());
  CHECK(before.summary.is_null());
  // As if it had made another step and then been killed while it wrote.
  json later = before.rows.back();
  const int64_t epochs_done = later["epoch"].get<int64_t>() + 1;
  later["epoch"] = epochs_done;
  std::ofstream(folder.file("m"), std::ios::app) << later.dump() << "\n{\"rank\":0,\"ep";
  for (const int64_t more : {2, 2, 0}) {  // from the same snapshot; the last run only evaluates
    folder.run(
        fmt::format("03_ddp_spawn {} 1000000 --nprocs 2 --metrics m --snapshot s --quiet "
                    "--resume auto",
                    epochs_done + more));
    const Metrics all = read_metrics(folder.file("m"), 2);
    CHECK(all.rows.size() == before.rows.size() + static_cast<size_t>(more * 2 * 32));
    CHECK(std::equal(before.rows.begin(), before.rows.end(), all.rows.begin()));
    CHECK(all.summary["steps"] == all.rows.size() / 2);
  }
}

TEST_CASE("a run that diverges says so, leaves the snapshot before, and keeps its steps") {
  const Folder folder;
  folder.run("03_ddp_spawn 1 1 --nprocs 2 --snapshot s");
  const std::string good(ddp::MappedFile(folder.file("s")).bytes());
  const RunResult result =
      folder.run("03_ddp_spawn 3 1 --nprocs 2 --lr 5 --metrics m --snapshot s --resume never", 1);
  CHECK(contains(result.err, "diverged in epoch 0"));
  CHECK_FALSE(contains(result.out, "moved"));
  CHECK(ddp::MappedFile(folder.file("s")).bytes() == good);
  const Metrics metrics = read_metrics(folder.file("m"), 2);
  CHECK((metrics.rows.size() == 2 * 32 && metrics.summary.is_null()));
}

TEST_CASE("a long run does not grow with its steps") {
  ddp::StepClock clock(torch::kCPU);
  const torch::Tensor loss = torch::zeros({}, torch::kFloat64);
  const auto run = [&] {
    for (int64_t step = 0; step < ddp::StepClock::kKept; ++step) {
      clock.end_step(loss);
      if (step % 1024 == 0) {
        clock.begin_epoch();
      }
    }
    return static_cast<int64_t>(mallinfo2().uordblks);
  };
  const int64_t before = run();
  CHECK(run() < before + 65536);
  CHECK(clock.steps() == 2 * ddp::StepClock::kKept);
  CHECK(clock.median_ms() > 0);
}

TEST_CASE("a loss or a weight that is not finite ends the run") {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  ddp::Options options;
  options.quiet = true;
  options.dataset_size = 64;
  const ddp::Dataset dataset = ddp::load_dataset(options);
  ddp::RandomSampler sampler(dataset.train.size(), 1);
  const ddp::DataLoader loader(dataset.train, sampler, 32);
  for (const auto& [loss, weight, ends] :
       {std::tuple(1.0, 1.0, false), std::tuple(kNaN, 1.0, true), std::tuple(1.0, kNaN, true),
        std::tuple(1.0, 3e38, false), std::tuple(1.0, -kInfinity, true),
        std::tuple(kInfinity, 1.0, true)}) {
    const ddp::Mlp model(dataset.layers);
    ddp::Log log(options, *model);
    log.step(torch::ones({}));
    model->parameters().front().detach().fill_(weight);
    const torch::Tensor epoch_loss = torch::full({}, loss, torch::kFloat64);
    const auto said = message_of([&] { log.epoch(0, loader, epoch_loss); });
    INFO("loss " << loss << ", weight " << weight << ": " << said);
    CHECK(contains(said, "diverged in epoch 0") == ends);
    CHECK(said.empty() != ends);
    CHECK(contains(message_of([&] { log.report({.loss = kNaN}); }), "test samples"));
  }
}
