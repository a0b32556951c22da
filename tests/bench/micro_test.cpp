// bench_micro: the names of its benchmarks, the slowest rank's time, no time for a wrong sum, the
// bare products against autograd, and mistakes on the command line.

#include <atomic>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/micro/bare_products.hpp"
#include "bench/micro/ranks.hpp"
#include "bench/micro/suites.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/files.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/run_program.hpp"
#include "tests/support/threads_as_ranks.hpp"

namespace {

using ddp::micro::Piece;
using ddp::micro::Ranks;

std::vector<std::string> command(const std::string& text) {
  return words(DDP_BIN_DIR "/bench_micro " + text);
}

/// @return the benchmarks in bench_micro's output
nlohmann::json run_micro(const std::string& text) {
  const ddp::ScratchFolder folder("ddp-micro");
  const std::string out = folder.path() + "/out.json";
  const RunResult result =
      run_program(command(text + " --device cpu --min-seconds 0.01 --benchmark_out=" + out));
  INFO(result.out << result.err);
  REQUIRE(result.exit_code == 0);
  return nlohmann::json::parse(std::ifstream(out)).at("benchmarks");
}

/// Checks the names, the unit, and that all times are above 0.
void check_runs(const nlohmann::json& runs, const std::string& unit,
                const std::vector<std::string>& names) {
  std::vector<std::string> got;
  for (const nlohmann::json& run : runs) {
    const std::string name = run.at("name");
    got.push_back(name.substr(0, name.find("/iterations:")));
    CHECK(run.at("time_unit") == unit);
    CHECK(run.at("real_time").get<double>() > 0);
  }
  CHECK(got == names);
}

constexpr double kMinSeconds = 0.02;

/// Runs `body` on ranks, as threads.
void on_ranks(int count, const std::function<void(const Ranks& ranks)>& body) {
  run_ranks(count, [&](ddp::ProcessGroup& group) { body(Ranks(torch::kCPU, group, kMinSeconds)); });
}

}  // namespace

TEST_CASE("all_reduce: names, times and bandwidths over each backend") {
  for (const std::string backend : {"shm", "gloo"}) {
    const nlohmann::json runs =
        run_micro("--suite all_reduce --nprocs 3 --bytes 4,65536 --backend " + backend);
    check_runs(runs, "us",
               {"all_reduce/" + backend + "/ranks:3/bytes:4",
                "all_reduce/" + backend + "/ranks:3/bytes:65536"});
    for (const nlohmann::json& run : runs) {
      const double seconds = run.at("real_time").get<double>() / 1e6;
      const double bytes = run.at("bytes");
      CHECK(run.at("algorithm_bandwidth").get<double>() == Approx(bytes / seconds));
      CHECK(run.at("bus_bandwidth").get<double>() == Approx(bytes / seconds * 4 / 3));
    }
  }
}

TEST_CASE("pieces: what a step is made of, in milliseconds, and the products' flops") {
  const std::string shape = " --layers 64,128,10 --batch 32";
  for (const int ranks : {1, 2}) {
    std::vector<std::string> names = {"limit", "data", "forward", "backward", "update"};
    const nlohmann::json runs =
        run_micro("--suite pieces --backend shm --nprocs " + std::to_string(ranks) + shape);
    if (ranks == 2) {
      names.push_back("all_reduce");
    }
    check_runs(runs, "ms", names);
    // Two products for the first layer, three for the second layer.
    const nlohmann::json& limit = runs.front();
    const double flops = 2.0 * 32 * (2 * 64 * 128 + 3 * 128 * 10);
    CHECK(limit.at("flops") == flops);
    CHECK(limit.at("flops_per_second").get<double>() ==
          Approx(flops / limit.at("real_time").get<double>() * 1e3));
  }
}

TEST_CASE("the bare products are those of autograd") {
  torch::manual_seed(1);
  const std::vector<int64_t> layers = {7, 5, 6, 3};
  std::vector<torch::Tensor> weights;
  for (size_t i = 1; i < layers.size(); ++i) {
    weights.push_back(torch::randn({layers[i], layers[i - 1]}, torch::requires_grad()));
  }
  const torch::Tensor input = torch::randn({4, layers.front()});
  const torch::Tensor output_gradient = torch::randn({4, layers.back()});
  ddp::micro::BareProducts products({weights[0].detach(), weights[1].detach(), weights[2].detach()},
                                    input, output_gradient);
  products.run();
  torch::Tensor output = input;
  for (const torch::Tensor& weight : weights) {
    output = output.mm(weight.t());
  }
  output.backward(output_gradient);
  for (size_t i = 0; i < weights.size(); ++i) {
    CHECK(torch::allclose(products.weight_gradient(i), weights[i].grad(), 1e-4, 1e-5));
  }
}

TEST_CASE("all ranks begin together and repeat equally often, and the slowest one counts") {
  std::vector<int> runs(3);
  std::vector<double> seconds(3);
  std::atomic<int> prepared{0};
  std::atomic<int> early{0};
  on_ranks(3, [&](const Ranks& ranks) {
    const auto rank = static_cast<size_t>(ranks.rank());
    const auto sleep_on_rank_1 = [rank](int milliseconds) {
      std::this_thread::sleep_for(std::chrono::milliseconds(rank == 1 ? milliseconds : 0));
    };
    const auto prepare = [&] {
      sleep_on_rank_1(50);
      ++prepared;
    };
    const auto run = [&] {
      early += prepared < 3 * ++runs[rank] ? 1 : 0;
      sleep_on_rank_1(3);
    };
    seconds[rank] = ranks.measure({.run = run, .prepare = prepare});
  });
  CHECK(early == 0);
  CHECK(runs[0] >= 2 * 5 + 1 + 10);  // warm-ups, and a tenth of the timed runs before those
  CHECK(runs == std::vector<int>(3, runs[0]));
  CHECK(seconds[0] >= 0.003);
  CHECK(seconds[0] < 0.03);  // without the wait for the rank that prepares
  CHECK(seconds == std::vector<double>(3, seconds[0]));
}

TEST_CASE("no wrong sum is timed, and all ranks end") {
  // Rank 1 spoils its sums from run number `first` on. @return the errors by rank
  const auto errors_of = [](int first) {
    std::vector<std::string> errors(2, "none");
    on_ranks(2, [&](const Ranks& ranks) {
      const Piece right = ddp::micro::all_reduce_piece(ranks.group(), 400);
      int run = 0;
      Piece piece = right;
      piece.run = [&] {
        right.run();
        if (++run >= first && ranks.rank() == 1) {
          right.prepare();
        }
      };
      try {
        ranks.measure(piece);
      } catch (const ddp::Error& error) {
        errors[static_cast<size_t>(ranks.rank())] = error.what();
      }
    });
    return errors;
  };
  CHECK(errors_of(1'000'000) == std::vector<std::string>{"none", "none"});
  for (const int first : {1, 21}) {  // at once, and in a timed run
    CHECK(errors_of(first) ==
          std::vector<std::string>{
              "",
              "all_reduce: got a wrong sum of 400 bytes over gloo, expected the sum of all ranks' "
              "values"});
  }
}

TEST_CASE("--benchmark_list_tests and --benchmark_filter") {
  const RunResult list = run_program(
      command("--suite all_reduce --backend gloo --bytes 4,40,400 --benchmark_list_tests "
              "--benchmark-filter=bytes:40/"));
  CHECK(list.exit_code == 0);
  CHECK(list.out.starts_with("all_reduce/gloo/ranks:2/bytes:40/"));
  CHECK(std::count(list.out.begin(), list.out.end(), '\n') == 1);
  const RunResult none = run_program(command("--suite pieces --nprocs 1 --benchmark_filter=none"));
  CHECK(none.exit_code == 2);
  CHECK(contains(none.err, "bench_micro: error: --benchmark_filter"));
}

TEST_CASE("a mistake on the command line is named in one line") {
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"--suite speed", {"--suite", "speed", "all_reduce", "pieces"}},
      {"--suite pieces --bytes 4", {"--bytes", "all_reduce"}},
      {"--suite pieces --min-seconds nan", {"--min-seconds", "nan"}},
      {"--suite pieces --benchmark_enable_random_interleaving=true", {"interleaving", "order"}},
      {"--suite pieces --benchmark_out=$HOME/x", {"--benchmark_out", "$HOME/x"}},
      {"--suite pieces --benchmark_out=/no/such/x", {"--benchmark_out", "/no/such/x"}},
      {"--suite all_reduce --bytes 4,6", {"--bytes", "6", "multiple of 4"}},
      {"--suite all_reduce --nprocs 1", {"--nprocs", "one rank"}},
      {"--suite pieces --nprocs 1 --benchmark_bogus=1", {"--benchmark_bogus"}},
  };
  for (const auto& [text, named] : cases) {
    CAPTURE(text);
    check_one_line(run_program(command(text)), 2, named);
  }
}
