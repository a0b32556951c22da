// simulator/simulate.cpp - main() of a simulated program: command line, drawing, verdict.
#include <fmt/ranges.h>

#include <cctype>
#include <cmath>
#include <iostream>
#include <ranges>
#include <set>

#include "common/base/command_line.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/parse.hpp"
#include "common/launch/run_main.hpp"
#include "simulator/simulator.hpp"

namespace ddp::sim {
namespace {

constexpr int kColumns = 72;  ///< width of a lane

struct SimulatorOptions {
  int nprocs = 2;
  Network network;
  std::map<std::string, double> parameters;
  std::optional<double> width_us;  ///< time of a whole lane; else the time of the step
  std::string html;  ///< file for the page, or empty
  bool explores = false;  ///< other numbers than the program's own, for which its targets hold
};

SimulatorOptions parse(int argc, char** argv, int nprocs) {
  SimulatorOptions options{nprocs, {}, {}, {}, {}, {}};
  CommandLine line(program_name(), "Simulates a schedule of ranks: docs/learn/simulator.md.",
                   program_name() + " " DDP_VERSION,
                   "Exit codes: 0 targets met, 1 target missed or rank failed, 2 usage.", 36);
  OptionGroup group = line.group("Options");
  const auto set = [&](const std::string& option, const std::string& text) {
    const std::size_t equals = text.find('=');
    if (equals == 0 || equals == std::string::npos) {
      refuse("{}: got {}, expected NAME=NUMBER", option, quote(text));
    }
    options.parameters[text.substr(0, equals)] =
        parse_positive(option, text.substr(equals + 1), 1e9);
  };
  group.add("--nprocs", takes::integer(options.nprocs, 1, 1024), "number of ranks");
  group.add("--set", {"NAME=NUMBER", "", "", set, OptionValue::kLastCounts},
            "set a parameter of the program");
  group.add("--alpha-us", takes::positive(options.network.alpha_us, "US", 1e9),
            "fixed time of a message");
  group.add("--beta-us-per-mib", takes::positive(options.network.beta_us_per_mib, "US", 1e9),
            "time of a MiB");
  group.add("--width-us", takes::positive(options.width_us, "US", 1e9).initially("the step"),
            "time that a whole lane stands for");
  group.add("--html", takes::path(options.html, "FILE"), "write the lanes as a page with sliders");
  line.parse(argc, argv);
  check_output_file("--html", options.html);
  if (!options.html.empty() && options.nprocs > 64) {
    refuse("--html: got --nprocs {}, expected at most 64", options.nprocs);
  }
  options.explores =
      options.nprocs != nprocs || options.network != Network() || !options.parameters.empty();
  return options;
}

/// Draws a lane: for each equal part of the time, the letter of the rank's work in the middle of
/// that part. Small letters are computing. A capital begins a communication, and dashes go on.
std::string draw_lane(const std::vector<Span>& spans, int (*to_case)(int), double width_us,
                      std::set<std::string>& legend) {
  std::string lane(static_cast<std::size_t>(kColumns), ' ');
  for (const Span& span : spans) {
    const char letter = static_cast<char>(to_case(span.name[0]));
    char next = letter;
    for (int column = 0; column < kColumns; ++column) {
      const double middle_us = width_us * (column + 0.5) / kColumns;
      if (span.begin_us <= middle_us && middle_us < span.end_us) {
        lane[static_cast<std::size_t>(column)] = next;
        next = std::isupper(letter) ? '-' : letter;
      }
    }
    const std::string kind = span.name.substr(0, span.name.find(' '));  // "message" to a rank
    legend.insert(letter == '.' ? ". waiting" : fmt::format("{} {}", letter, kind));
  }
  return lane;
}

void draw(const Simulation& simulation, double width_us) {
  std::set<std::string> legend;
  for (std::size_t index = 0; index < simulation.ranks.size(); ++index) {
    const RankRecord& rank = simulation.ranks[index];
    std::vector<Span> busy = rank.compute;
    for (const Span& span : rank.waiting) {
      busy.push_back({span.begin_us, span.end_us, "."});
    }
    std::cout << fmt::format("rank {:<4} compute       |{}|\n", index,
                             draw_lane(busy, std::tolower, width_us, legend))
              << fmt::format("          communication |{}|\n",
                             draw_lane(rank.communication, std::toupper, width_us, legend));
  }
  std::cout << fmt::format("{:24}0{:>{}}\n{}\n\n", "", fmt::format("{:.1f} us", width_us), kColumns,
                           fmt::join(legend, ", "));
}

int run(const SimulatorOptions& options, const std::function<void()>& rank,
        const std::vector<Target>& targets) {
  const Network& network = options.network;
  const Simulation simulation = run_ranks(rank, options.nprocs, network, options.parameters);
  if (!options.html.empty()) {
    write_page(options.html, rank, network, simulation);
  }
  if (!simulation.deadlock.empty()) {
    throw Error(ExitCode::kTrainingFailed, simulation.deadlock);
  }
  const double end_us = step_us.of(simulation);
  const double width_us = options.width_us.value_or(end_us);
  if (width_us < end_us) {
    refuse("--width-us: got {:.12g}, expected {:.0f} at least, the step's end", width_us,
           std::ceil(end_us));
  }
  std::cout << fmt::format("{}: {} rank{}, alpha {:.6g} us, beta {:.6g} us/MiB", program_name(),
                           options.nprocs, options.nprocs == 1 ? "" : "s", network.alpha_us,
                           network.beta_us_per_mib);
  for (const auto& [name, values] : simulation.parameters) {
    std::cout << fmt::format(", {} {:.6g}", name, values.front());
  }
  std::cout << "\n\n";
  draw(simulation, width_us);
  std::cout << "rank      end us   waited us  messages  sent bytes\n";
  for (std::size_t index = 0; index < simulation.ranks.size(); ++index) {
    const RankRecord& record = simulation.ranks[index];
    std::cout << fmt::format("{:<4}  {:>10.1f}  {:>10.1f}  {:>8}  {:>10.0f}\n", index,
                             record.end_us, record.waited_us, record.sent.messages,
                             record.sent.bytes);
  }
  bool all_met = simulation.complaints.empty();
  for (const Target& target : targets) {
    const bool is_met = target.is_met(simulation);
    all_met = all_met && (is_met || options.explores);
    std::cout << fmt::format("target {} {} {:.12g}: {}, {:.12g}\n", target.quantity.name,
                             target.relation, target.bound,
                             is_met             ? "met"
                             : options.explores ? "not checked"
                                                : "missed",
                             target.quantity.of(simulation));
  }
  for (const std::string& complaint : simulation.complaints) {
    std::cout << complaint << "\n";
  }
  std::cout << std::flush;
  return static_cast<int>(all_met ? ExitCode::kDone : ExitCode::kTrainingFailed);
}

}  // namespace

double Quantity::of(const Simulation& simulation) const {
  return std::ranges::max(simulation.ranks | std::views::transform(of_rank));
}

bool Target::is_met(const Simulation& simulation) const {
  const double value = quantity.of(simulation);
  const double rounding = 1e-12 * std::max(std::abs(value), std::abs(bound));
  return relation == "<="   ? value <= bound + rounding
         : relation == ">=" ? value >= bound - rounding
                            : std::abs(value - bound) <= rounding;
}

int simulate(int argc, char** argv, const std::function<void()>& rank,
             std::initializer_list<Target> targets, int nprocs) {
  return run_program([&](std::string&) { return run(parse(argc, argv, nprocs), rank, targets); });
}

}  // namespace ddp::sim
