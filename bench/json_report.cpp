#include "bench/json_report.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "bench/child_process.hpp"
#include "common/exit_codes.hpp"

namespace ddp::bench {
namespace {

using nlohmann::ordered_json;

template <typename T>
ordered_json or_null(const std::optional<T>& value) {
  return value ? ordered_json(*value) : ordered_json(nullptr);
}

ordered_json to_json(const Distribution& distribution) {
  return {
      {"median", or_null(distribution.median)},
      {"p10", or_null(distribution.p10)},
      {"p90", or_null(distribution.p90)},
      {"p95", or_null(distribution.p95)},
      {"n", distribution.n},
  };
}

ordered_json run_to_json(const Result& result, const Report& report) {
  const Configuration& configuration = result.configuration;
  const bool has_speed = result.has_speed();
  ordered_json run;
  run["name"] = configuration.name();
  run["stage"] = configuration.program.stage;
  run["variant"] = configuration.program.variant;
  run["launcher"] = configuration.launcher;
  run["backend"] = configuration.backend;
  run["speedup"] = configuration.speedup;
  run["device"] = configuration.device;
  run["model"] = configuration.workload.name;
  run["scaling"] = configuration.scaling;
  run["nodes"] = 1;
  run["world_size"] = configuration.world_size;
  run["global_batch"] = configuration.global_batch;
  run["steps"] = has_speed ? ordered_json(result.steps) : ordered_json(nullptr);
  run["samples_ms"] = result.samples_ms();
  run["step_ms"] = to_json(result.step_ms());
  run["samples_per_second"] = or_null(result.samples_per_second());
  run["relative_speedup"] = or_null(report.relative_speedup(result));
  run["efficiency"] = or_null(report.efficiency(result));
  const auto phases_ms = result.phases_ms();
  for (std::size_t phase = 0; phase < kPhases; ++phase) {
    run["phases_ms"][kPhaseNames[phase]] = or_null(phases_ms[phase]);
  }
  run["comm"] = {
      {"alone_ms", nullptr},
      {"hidden_share", nullptr},
      {"bytes_per_step", or_null(result.bytes_per_step)},
      {"bus_bandwidth_gbps", nullptr},
  };
  run["predicted_step_ms"] = nullptr;
  run["floor_ms"] = nullptr;
  run["peak_rss_mib"] = or_null(result.peak_rss_mib());
  run["startup_ms"] = or_null(result.startup_ms());
  run["parity"] = {
      {"moved", or_null(result.parity.moved)},
      {"reference_moved", or_null(result.parity.reference_moved)},
      {"ok", result.parity.ok},
  };
  run["error"] = result.error.empty() ? ordered_json(nullptr) : ordered_json(result.error);
  return run;
}

ordered_json comparison_to_json(const Comparison& comparison) {
  ordered_json ci95 = nullptr;
  if (comparison.ci95) {
    ci95 = {comparison.ci95->low, comparison.ci95->high};
  }
  return {
      {"a", comparison.a},
      {"b", comparison.b},
      {"ratio_median", or_null(comparison.ratio_median)},
      {"ci95", ci95},
      {"pairs", comparison.pairs},
  };
}

ordered_json settings_to_json(const Settings& settings) {
  std::vector<std::string> command = {"bench"};
  command.insert(command.end(), settings.arguments.begin(), settings.arguments.end());
  return {
      {"command", shell_quote(command)},        {"repetitions", settings.repetitions},
      {"steps_asked", or_null(settings.steps)}, {"budget_s", settings.budget_s},
      {"timeout_s", settings.timeout_s},        {"seed", settings.seed},
      {"parity_tolerance", kParityTolerance},
  };
}

bool is_flat(const ordered_json& value) {
  return value.is_primitive() ||
         (value.is_array() && std::all_of(value.begin(), value.end(),
                                          [](const ordered_json& e) { return e.is_primitive(); }));
}

std::string dump(const ordered_json& value) {
  // A host or path name need not be UTF-8; the document must be.
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

void write_value(std::ostream& out, const ordered_json& value, const std::string& indent) {
  if (is_flat(value) || value.empty()) {
    out << dump(value);
    return;
  }
  const std::string inner = indent + "  ";
  const char* separator = "\n";
  out << (value.is_object() ? '{' : '[');
  for (const auto& [key, element] : value.items()) {
    out << separator << inner;
    if (value.is_object()) {
      out << dump(key) << ": ";
    }
    write_value(out, element, inner);
    separator = ",\n";
  }
  out << '\n' << indent << (value.is_object() ? '}' : ']');
}

}  // namespace

ordered_json make_json_report(JsonReportInput input) {
  ordered_json scaling;
  scaling["schema_version"] = 1;
  scaling["machine"] = std::move(input.machine);
  scaling["software"] = std::move(input.software);
  scaling["settings"] = settings_to_json(input.settings);
  scaling["runs"] = ordered_json::array();
  for (const Result& result : input.report.results) {
    scaling["runs"].push_back(run_to_json(result, input.report));
  }
  scaling["comparisons"] = ordered_json::array();
  for (const Comparison& comparison : input.report.comparisons) {
    scaling["comparisons"].push_back(comparison_to_json(comparison));
  }
  scaling["not_run"] = ordered_json::array();
  for (const NotRun& not_run : input.plan.not_run) {
    scaling["not_run"].push_back({{"what", not_run.what}, {"reason", not_run.reason}});
  }
  scaling["partial"] = input.report.partial;
  input.benchmark["ddp_scaling"] = std::move(scaling);
  return std::move(input.benchmark);
}

void write_json(std::ostream& out, const ordered_json& document) {
  write_value(out, document, "");
  out << '\n';
}

void write_json_file(const std::string& file, const ordered_json& document) {
  namespace fs = std::filesystem;
  // Only a regular file can be replaced; a pipe or /dev/null is written to.
  const bool replace = !fs::exists(file) || fs::is_regular_file(file);
  const std::string written = replace ? file + ".new" : file;
  std::ofstream out(written, std::ios::binary);
  write_json(out, document);
  out.close();
  if (!out) {
    throw Error(ExitCode::kTrainingFailed, "cannot write " + written);
  }
  std::error_code error;
  if (replace) {
    fs::rename(written, file, error);
  }
  if (error) {
    throw Error(ExitCode::kTrainingFailed, "cannot write " + file + ": " + error.message());
  }
}

}  // namespace ddp::bench
