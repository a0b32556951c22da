// simulator/simulate.cpp - main() of a simulated program: command line, drawing, verdict.
#include <fmt/format.h>

#include <charconv>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "common/base/command_line.hpp"
#include "common/base/refuse.hpp"
#include "common/launch/run_main.hpp"
#include "simulator/drawing.hpp"
#include "simulator/simulator.hpp"

namespace ddp::sim {
namespace {

constexpr int kMaxNprocs = 1024;
constexpr int kMaxColumns = 1000;
constexpr double kMaxNumber = 1e15;

struct SimulatorOptions {
  std::string program;
  int nprocs = 2;
  double alpha_us = 10;
  double beta_us_per_mib = 100;
  std::string algorithm = "ring";
  std::string network;
  std::string backend;
  std::vector<std::pair<std::string, double>> parameters;
  std::vector<Target> targets;
  int columns = 72;
  std::string svg;
  std::string json;
};

/// @throws UsageError unless `text` is a number from 0 to kMaxNumber
double parse_amount(const std::string& name, const std::string& text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || !(value >= 0 && value <= kMaxNumber)) {
    refuse("{}: got {}, expected a number from 0 to {:g}", name, quote(text), kMaxNumber);
  }
  return value;
}

SimulatorOptions parse(int argc, char** argv, int nprocs, std::initializer_list<Target> targets) {
  SimulatorOptions options;
  options.program = program_name(argc > 0 ? argv[0] : nullptr);
  options.nprocs = nprocs;
  options.targets = targets;
  CommandLine line(options.program, "Runs a schedule on simulated ranks: docs/simulator.md.",
                   options.program + " " DDP_VERSION,
                   "Exit codes: 0 every target is met, 1 one is not or a rank failed, 2 usage.",
                   36);
  OptionGroup run = line.group("Run");
  run.integer<int, int>("--nprocs", options.nprocs, 1, kMaxNprocs, std::to_string(nprocs), "ranks");
  run.value("--set", "NAME=NUMBER", "", "one of the program's own parameters",
            [&](const auto& option, const auto& text) {
              const std::size_t equals = text.find('=');
              if (equals == 0 || equals == std::string::npos) {
                refuse("{}: got {}, expected NAME=NUMBER", option, quote(text));
              }
              options.parameters.emplace_back(text.substr(0, equals),
                                              parse_amount(option, text.substr(equals + 1)));
            })
      .repeatable();
  OptionGroup network = line.group("Network");
  const auto cost = [&](const char* name, const char* unit, double& target, const char* help) {
    return network.value(
        name, unit, fmt::format("{:g}", target), help,
        [&target](const auto& option, const auto& text) { target = parse_amount(option, text); });
  };
  Option alpha = cost("--alpha-us", "US", options.alpha_us, "of a message before its first byte");
  Option beta = cost("--beta-us-per-mib", "US", options.beta_us_per_mib, "of its bytes");
  Option algorithm =
      network.choice("--algorithm", options.algorithm, {"ring", "tree"}, "of collectives");
  Option file = network.text("--network", "FILE", options.network, "",
                             "alpha and beta fitted to a sweep: bench_micro's --benchmark_out");
  file.excludes(alpha);
  file.excludes(beta);
  file.excludes(algorithm);
  network.text("--backend", "NAME", options.backend, "", "whose sweep, if the file has several");
  OptionGroup output = line.group("Output");
  output.integer<int, int>("--columns", options.columns, 10, kMaxColumns, "72",
                           "width of the lanes on the terminal");
  output.text("--svg", "FILE", options.svg, "", "writes the lanes as a picture");
  output.text("--json", "FILE", options.json, "", "writes what each rank did");
  line.parse_strictly(argc, argv);
  if (!options.backend.empty() && options.network.empty()) {
    refuse("--backend: got {}, expected --network with it", quote(options.backend));
  }
  return options;
}

void write_file(const std::string& option, const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text << std::flush;
  if (!file) {
    refuse("{}: got {}, expected a file that can be written", option, quote(path));
  }
}

std::string as_json(const Simulation& simulation, const Network& network) {
  nlohmann::ordered_json document = {{"network", network.text()},
                                     {"step_us", step_us.of(simulation)},
                                     {"waited_us", waited_us.of(simulation)}};
  const auto spans = [](const std::vector<Span>& list) {
    nlohmann::ordered_json array = nlohmann::ordered_json::array();
    for (const Span& span : list) {
      array.push_back({{"name", span.name}, {"begin_us", span.begin_us}, {"end_us", span.end_us}});
    }
    return array;
  };
  for (const RankRecord& rank : simulation.ranks) {
    document["ranks"].push_back({{"end_us", rank.end_us},
                                 {"waited_us", rank.waited_us()},
                                 {"peak_bytes", rank.peak_bytes},
                                 {"messages", rank.messages},
                                 {"sent_bytes", rank.sent_bytes},
                                 {"compute", spans(rank.compute)},
                                 {"waiting", spans(rank.waiting)},
                                 {"communication", spans(rank.communication)}});
  }
  return document.dump(1) + "\n";
}

std::string table(const Simulation& simulation) {
  std::string text = "rank      end us   waited us  messages        sent  memory at most\n";
  for (std::size_t index = 0; index < simulation.ranks.size(); ++index) {
    const RankRecord& rank = simulation.ranks[index];
    text += fmt::format("{:<4}  {:>10.1f}  {:>10.1f}  {:>8}  {:>10}  {:>14}\n", index, rank.end_us,
                        rank.waited_us(), rank.messages, bytes_text(rank.sent_bytes),
                        bytes_text(static_cast<double>(rank.peak_bytes)));
  }
  return text;
}

int run(const SimulatorOptions& options, const std::function<void()>& rank) {
  const Network network =
      options.network.empty()
          ? Network(options.alpha_us, options.beta_us_per_mib,
                    options.algorithm == "ring" ? bench::AllReduceAlgorithm::kRing
                                                : bench::AllReduceAlgorithm::kTree)
          : read_network(options.network, options.backend);
  const Simulation simulation = run_ranks(rank, options.nprocs, network, options.parameters);
  std::cout << fmt::format("{}: {} rank{}, {}\n\n{}\n{}", options.program, options.nprocs,
                           options.nprocs == 1 ? "" : "s", network.text(),
                           draw_text(simulation, options.columns), table(simulation));
  if (!options.svg.empty()) {
    write_file("--svg", options.svg,
               draw_svg(simulation, fmt::format("{}, {} ranks, {}", options.program, options.nprocs,
                                                network.text())));
  }
  if (!options.json.empty()) {
    write_file("--json", options.json, as_json(simulation, network));
  }
  bool all_met = simulation.complaints.empty();
  for (const Target& target : options.targets) {
    const bool is_met = target.is_met(simulation);
    all_met = all_met && is_met;
    std::cout << fmt::format("target {}: {}, {:.12g}\n", target.text(), is_met ? "met" : "missed",
                             target.quantity.of(simulation));
  }
  for (const std::string& complaint : simulation.complaints) {
    std::cout << complaint << "\n";
  }
  std::cout << std::flush;
  return all_met ? static_cast<int>(ExitCode::kDone) : static_cast<int>(ExitCode::kTrainingFailed);
}

}  // namespace

int simulate(int argc, char** argv, const std::function<void()>& rank,
             std::initializer_list<Target> targets, int nprocs) {
  return internal::guarded(
      argc, argv, [&](std::string&) { return run(parse(argc, argv, nprocs, targets), rank); });
}

}  // namespace ddp::sim
