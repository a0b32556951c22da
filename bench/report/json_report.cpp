#include "bench/report/json_report.hpp"

#include <algorithm>
#include <utility>

#include "bench/report/analysis.hpp"
#include "bench/report/output_file.hpp"
#include "bench/run/child_process.hpp"

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

const char* name_of(Role role) {
  switch (role) {
    case Role::kPeer:
      return "peer";
    case Role::kControl:
      return "control";
    case Role::kStage:
    case Role::kNoCommunication:
      break;
  }
  return "stage";
}

const char* name_of(Comparison::Kind kind) {
  switch (kind) {
    case Comparison::Kind::kControl:
      return "control";
    case Comparison::Kind::kPeer:
      return "peer";
    case Comparison::Kind::kBaseline:
      break;
  }
  return "baseline";
}

const char* name_of(AllReduceAlgorithm algorithm) {
  return algorithm == AllReduceAlgorithm::kTree ? "tree" : "ring";
}

ordered_json repetition_medians(const Result& result) {
  ordered_json medians = ordered_json::array();
  for (const std::optional<Repetition>& repetition : result.repetitions) {
    const bool known = result.has_speed() && repetition;
    medians.push_back(known ? ordered_json(repetition->median_ms) : ordered_json(nullptr));
  }
  return medians;
}

ordered_json communication_to_json(const Result& result) {
  return {
      {"alone_ms", or_null(result.alone_ms)},
      {"hidden_share", or_null(result.hidden_share())},
      {"bytes_per_step", or_null(result.bytes_per_step())},
      {"bus_bandwidth_gbps", or_null(result.bus_bandwidth_gbps())},
      {"exposed_by_difference_ms", or_null(result.exposed_by_difference_ms())},
      {"bucket_bytes", result.bucket_bytes},
  };
}

ordered_json floor_to_json(const std::optional<Floor>& floor) {
  if (!floor) {
    return {{"compute_ms", nullptr}, {"memory_ms", nullptr}, {"comm_ms", nullptr}};
  }
  return {{"compute_ms", floor->compute_ms},
          {"memory_ms", floor->memory_ms},
          {"comm_ms", floor->comm_ms}};
}

ordered_json prediction_to_json(const Result& result) {
  const std::optional<Prediction>& prediction = result.prediction;
  ordered_json json = {
      {"algorithm", nullptr},    {"compute_ms", nullptr},   {"comm_ms", nullptr},
      {"ring_step_ms", nullptr}, {"tree_step_ms", nullptr}, {"residual", nullptr},
  };
  if (prediction) {
    json["algorithm"] = name_of(prediction->algorithm);
    json["compute_ms"] = prediction->compute_ms;
    json["comm_ms"] = prediction->comm_ms;
    json["ring_step_ms"] = or_null(prediction->ring_step_ms);
    json["tree_step_ms"] = or_null(prediction->tree_step_ms);
    json["residual"] = or_null(result.residual());
  }
  return json;
}

ordered_json gpu_to_json(const std::optional<GpuUsage>& gpu) {
  if (!gpu) {
    return nullptr;
  }
  return {{"utilisation_percent", gpu->utilisation_percent},
          {"power_w", gpu->power_w},
          {"memory_mib", gpu->memory_mib}};
}

ordered_json slowest_rank_to_json(const std::optional<SlowestRank>& slowest) {
  if (!slowest) {
    return nullptr;
  }
  return {{"rank", slowest->rank},
          {"share_of_steps", slowest->share_of_steps},
          {"median_excess", slowest->median_excess}};
}

ordered_json run_to_json(const Result& result, const Report& report) {
  const Configuration& configuration = result.configuration;
  ordered_json run;
  run["name"] = configuration.name();
  run["kind"] = name_of(configuration.role);
  run["stage"] = configuration.program.stage;
  run["variant"] = configuration.program.variant;
  run["launcher"] = configuration.launcher;
  run["backend"] = configuration.backend;
  run["speedup"] = configuration.speedup;
  run["bucket_mib"] = configuration.gradients.bucket_mib;
  run["gradient_compression"] = configuration.gradients.compression;
  run["shard_optimizer"] = configuration.gradients.shard_optimizer;
  run["device"] = configuration.device;
  run["model"] = configuration.workload.name;
  run["scaling"] = configuration.scaling;
  run["nodes"] = configuration.nodes;
  run["world_size"] = configuration.world_size;
  run["global_batch"] = configuration.global_batch;
  run["steps"] = result.has_speed() ? ordered_json(result.steps) : ordered_json(nullptr);
  run["samples_ms"] = result.samples_ms();
  run["repetition_medians_ms"] = repetition_medians(result);
  run["step_ms"] = to_json(result.step_ms());
  run["no_comm_step_ms"] = or_null(result.no_comm_step_ms);
  run["samples_per_second"] = or_null(result.samples_per_second());
  run["relative_speedup"] = or_null(report.relative_speedup(result));
  run["efficiency"] = or_null(report.efficiency(result));
  const auto phases_ms = result.phases_ms();
  for (std::size_t phase = 0; phase < kPhases; ++phase) {
    run["phases_ms"][kPhaseNames[phase]] = or_null(phases_ms[phase]);
  }
  run["comm"] = communication_to_json(result);
  run["predicted_step_ms"] =
      result.prediction ? ordered_json(result.prediction->step_ms()) : ordered_json(nullptr);
  run["prediction"] = prediction_to_json(result);
  run["floor_ms"] = result.floor ? ordered_json(result.floor->total_ms()) : ordered_json(nullptr);
  run["floor"] = floor_to_json(result.floor);
  run["peak_rss_mib"] = or_null(result.peak_rss_mib());
  run["job_peak_rss_mib"] = or_null(result.job_peak_rss_mib());
  run["cpu_utilisation"] = or_null(result.cpu_utilisation());
  run["gpu"] = gpu_to_json(result.gpu());
  run["startup_ms"] = or_null(result.startup_ms());
  run["slowest_rank"] = slowest_rank_to_json(result.slowest_rank());
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
      {"kind", name_of(comparison.kind)},
      {"a", comparison.a},
      {"b", comparison.b},
      {"ratio_median", or_null(comparison.ratio_median)},
      {"ci95", ci95},
      {"pairs", comparison.pairs},
      {"verdict", or_null(comparison.verdict)},
  };
}

ordered_json limits_to_json(const std::vector<Limit>& limits) {
  ordered_json list = ordered_json::array();
  for (const Limit& limit : limits) {
    list.push_back({
        {"device", limit.device},
        {"world_size", limit.world_size},
        {"fp32_gflops", or_null(limit.fp32_gflops)},
        {"memory_bandwidth_gbps", or_null(limit.memory_bandwidth_gbps)},
    });
  }
  return list;
}

ordered_json all_reduces_to_json(const std::vector<AllReduceSample>& samples) {
  ordered_json list = ordered_json::array();
  for (const AllReduceSample& sample : samples) {
    ordered_json algorithm_gbps = nullptr;
    ordered_json bus_gbps = nullptr;
    if (sample.time_us.median && *sample.time_us.median > 0) {
      const double gbps = static_cast<double>(sample.bytes) / (*sample.time_us.median * 1e3);
      algorithm_gbps = gbps;
      bus_gbps = gbps * 2 * (sample.world_size - 1) / sample.world_size;
    }
    list.push_back({
        {"backend", sample.backend},
        {"device", sample.device},
        {"world_size", sample.world_size},
        {"bytes", sample.bytes},
        {"time_us", to_json(sample.time_us)},
        {"algorithm_bandwidth_gbps", algorithm_gbps},
        {"bus_bandwidth_gbps", bus_gbps},
    });
  }
  return list;
}

ordered_json models_to_json(const std::vector<CommunicationModel>& models) {
  ordered_json list = ordered_json::array();
  for (const CommunicationModel& model : models) {
    ordered_json regimes = ordered_json::array();
    for (const AlphaBetaRegime& regime : model.regimes) {
      regimes.push_back({{"from_bytes", regime.from_bytes},
                         {"alpha_us", regime.alpha_us},
                         {"beta_us_per_mib", regime.beta_us_per_mib}});
    }
    list.push_back({
        {"backend", model.backend},
        {"device", model.device},
        {"algorithm", name_of(model.algorithm)},
        {"world_sizes", model.world_sizes},
        {"regimes", regimes},
        {"median_relative_error", model.median_relative_error},
        {"points", model.points},
    });
  }
  return list;
}

ordered_json extrapolations_to_json(const std::vector<Extrapolation>& extrapolations) {
  ordered_json list = ordered_json::array();
  for (const Extrapolation& extrapolation : extrapolations) {
    list.push_back({
        {"from", extrapolation.from},
        {"algorithm", name_of(extrapolation.algorithm)},
        {"world_size", extrapolation.world_size},
        {"predicted_step_ms", extrapolation.step_ms},
        {"efficiency", or_null(extrapolation.efficiency)},
    });
  }
  return list;
}

ordered_json pieces_to_json(const std::vector<PieceResult>& pieces) {
  ordered_json list = ordered_json::array();
  for (const PieceResult& piece : pieces) {
    list.push_back({
        {"name", piece.name},
        {"time_us", to_json(piece.time_us)},
        {"bytes", or_null(piece.bytes)},
        {"bandwidth_gbps", or_null(piece.bandwidth_gbps)},
    });
  }
  return list;
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
  scaling["limits"] = limits_to_json(input.report.micro.limits);
  scaling["all_reduce"] = all_reduces_to_json(input.report.micro.all_reduce);
  scaling["communication_models"] = models_to_json(input.report.communication_models);
  scaling["runs"] = ordered_json::array();
  for (const Result& result : input.report.results) {
    if (result.configuration.role != Role::kNoCommunication) {
      scaling["runs"].push_back(run_to_json(result, input.report));
    }
  }
  scaling["comparisons"] = ordered_json::array();
  for (const Comparison& comparison : input.report.comparisons) {
    scaling["comparisons"].push_back(comparison_to_json(comparison));
  }
  scaling["extrapolations"] = extrapolations_to_json(input.report.extrapolations);
  scaling["assumptions"] = assumptions(input.report);
  scaling["micro"] = pieces_to_json(input.report.micro.pieces);
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
  write_output_file(file, [&](std::ostream& out) { write_json(out, document); });
}

}  // namespace ddp::bench
