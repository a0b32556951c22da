#include "bench/report/terminal_report.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "bench/report/conclusions.hpp"
#include "bench/report/format.hpp"
#include "bench/report/text_table.hpp"

namespace ddp::bench {
namespace {

constexpr std::size_t kWidth = 100;

const std::vector<Column>& columns() {
  static const std::vector<Column> result = {
      {"stage", true},       {"launcher", true},     {"backend", true},    {"ranks", false},
      {"step ms", false},    {"[p10 .. p90]", true}, {"samples/s", false}, {"step vs 01", false},
      {"efficiency", false}, {"parity", true},
  };
  return result;
}

std::string dash_for_none(const std::string& text) {
  return text == "none" ? "-" : text;
}

std::string format_efficiency(std::optional<double> efficiency) {
  return efficiency && *efficiency < 0.01 ? "<0.01" : format_fixed(efficiency, 2);
}

std::vector<std::string> cells(const Result& result, const Report& report) {
  const Configuration& configuration = result.configuration;
  const Distribution step_ms = result.step_ms();
  const Comparison* const comparison = report.comparison_of(result);
  std::optional<double> ratio = comparison == nullptr ? std::nullopt : comparison->ratio_median;
  if (report.baseline_of(result) == &result) {
    ratio = 1.0;
  }
  const std::string spread = step_ms.p10 ? "[" + format_significant(step_ms.p10) + " .. " +
                                               format_significant(step_ms.p90) + "]"
                                         : "";
  const bool judged = result.parity.moved || result.parity.reference_moved;
  return {
      configuration.title(),
      dash_for_none(configuration.launcher),
      dash_for_none(configuration.backend),
      std::to_string(configuration.world_size),
      format_significant(step_ms.median),
      spread,
      format_count(result.samples_per_second()),
      ratio ? format_significant(ratio) + "x" : "-",
      format_efficiency(report.efficiency(result)),
      result.parity.ok ? "ok"
      : judged         ? "FAILED"
                       : "-",
  };
}

void print_table(std::ostream& out, const std::vector<const Result*>& results,
                 const Report& report) {
  std::vector<std::vector<std::string>> rows;
  rows.reserve(results.size());
  for (const Result* result : results) {
    rows.push_back(cells(*result, report));
  }
  const std::vector<std::string> lines = format_table(columns(), rows);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    out << lines[i] << '\n';
    if (i > 0 && !results[i - 1]->error.empty()) {
      out << "      error: " << results[i - 1]->error << '\n';
    }
  }
}

const std::vector<Column>& limit_columns() {
  static const std::vector<Column> result = {
      {"what", true},       {"launcher", true},  {"backend", true},  {"ranks", false},
      {"step ms", false},   {"no comm", false},  {"exposed", false}, {"alone", false},
      {"predicted", false}, {"residual", false}, {"floor", false},   {"step/floor", false},
  };
  return result;
}

/// What a step is made of and what it could be, of the runs that say so.
void print_limits(std::ostream& out, const std::vector<const Result*>& results) {
  std::vector<std::vector<std::string>> rows;
  for (const Result* result : results) {
    const Configuration& configuration = result->configuration;
    if (!result->has_speed() ||
        (!result->floor && !result->prediction && !result->no_comm_step_ms)) {
      continue;
    }
    const std::optional<double> step_ms = result->step_ms().median;
    const std::optional<double> residual = result->residual();
    std::string signed_residual = "-";
    if (residual) {
      signed_residual = (*residual < 0 ? "-" : "+") + format_percent(std::abs(*residual));
    }
    const auto floor_ms = result->floor ? std::optional(result->floor->total_ms()) : std::nullopt;
    rows.push_back({
        configuration.title(),
        dash_for_none(configuration.launcher),
        dash_for_none(configuration.backend),
        std::to_string(configuration.world_size),
        format_significant(step_ms),
        format_significant(result->no_comm_step_ms),
        format_significant(result->exposed_by_difference_ms()),
        format_significant(result->alone_ms),
        format_significant(result->prediction ? std::optional(result->prediction->step_ms())
                                              : std::nullopt),
        signed_residual,
        format_significant(floor_ms),
        floor_ms && *floor_ms > 0 ? format_significant(*step_ms / *floor_ms) + "x" : "-",
    });
  }
  if (rows.empty()) {
    return;
  }
  out << "\n  in ms: without communication, the difference, communication alone; predicted from "
         "these;\n  the least this machine's measured limits allow\n";
  for (const std::string& line : format_table(limit_columns(), rows)) {
    out << line << '\n';
  }
}

/// "- " and the sentence, broken between words.
void print_item(std::ostream& out, const std::string& sentence) {
  std::string line = "- ";
  for (std::size_t at = 0; at < sentence.size();) {
    const std::size_t space = std::min(sentence.find(' ', at), sentence.size());
    const std::string word = sentence.substr(at, space - at);
    if (line.size() > 2 && line.size() + word.size() > kWidth) {
      line.erase(line.find_last_not_of(' ') + 1);
      out << line << '\n';
      line = "  ";
    }
    line += word + " ";
    at = space + 1;
  }
  line.erase(line.find_last_not_of(' ') + 1);
  out << line << '\n';
}

std::string batch_rule(const Configuration& configuration) {
  return configuration.scaling == "weak"
             ? std::to_string(configuration.workload.batch) + " samples per rank (weak scaling)"
             : std::to_string(configuration.parity_batch) +
                   " samples over all ranks (strong scaling)";
}

}  // namespace

void print_terminal_report(std::ostream& out, const Plan& plan, const Report& report,
                           const nlohmann::ordered_json& machine) {
  std::vector<std::vector<const Result*>> groups;
  for (const Result& result : report.results) {
    const Role role = result.configuration.role;
    if (role == Role::kControl || role == Role::kNoCommunication) {
      continue;  // they speak through other runs
    }
    const auto same_group = [&](const std::vector<const Result*>& group) {
      const Configuration& other = group.front()->configuration;
      return other.workload.name == result.configuration.workload.name &&
             other.scaling == result.configuration.scaling;
    };
    const auto group = std::find_if(groups.begin(), groups.end(), same_group);
    if (group == groups.end()) {
      groups.push_back({&result});
    } else {
      group->push_back(&result);
    }
  }
  for (const std::vector<const Result*>& group : groups) {
    const Configuration& first = group.front()->configuration;
    out << '\n'
        << first.workload.name << ": " << first.workload.description << ", " << batch_rule(first)
        << '\n';
    print_table(out, group, report);
    print_limits(out, group);
  }
  out << "\nWhat to conclude\n";
  for (const std::vector<const Result*>& group : groups) {
    const Configuration& first = group.front()->configuration;
    out << first.workload.name << ", " << first.scaling << " scaling\n";
    for (const std::string& sentence : conclude(report, group)) {
      print_item(out, sentence);
    }
  }
  const std::vector<std::string> overall = conclude_overall(plan, report, machine);
  if (!overall.empty()) {
    out << "All of it\n";
  }
  for (const std::string& sentence : overall) {
    print_item(out, sentence);
  }
  out << std::flush;
}

}  // namespace ddp::bench
