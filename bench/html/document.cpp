#include "bench/html/document.hpp"

#include <algorithm>
#include <cmath>

#include "bench/html/text.hpp"

namespace ddp::bench::html {
namespace {

using nlohmann::ordered_json;

constexpr double kMaxWorldSize = 1e7;

/// The elements that are objects.
std::vector<const ordered_json*> objects_at(const ordered_json& object, const char* key) {
  std::vector<const ordered_json*> objects;
  const ordered_json& list = member(object, key);
  if (list.is_array()) {
    for (const ordered_json& element : list) {
      if (element.is_object()) {
        objects.push_back(&element);
      }
    }
  }
  return objects;
}

std::vector<double> numbers_at(const ordered_json& object, const char* key) {
  std::vector<double> numbers;
  const ordered_json& list = member(object, key);
  if (list.is_array()) {
    for (const ordered_json& element : list) {
      if (element.is_number()) {
        numbers.push_back(element.get<double>());
      }
    }
  }
  return numbers;
}

/// A number of processes; 0 if it is none.
int world_size_of(Number value) {
  return value && *value >= 1 && *value <= kMaxWorldSize ? static_cast<int>(*value) : 0;
}

Distribution distribution_at(const ordered_json& object, const char* key) {
  const ordered_json& json = member(object, key);
  Distribution distribution;
  distribution.median = number_at(json, "median");
  distribution.p10 = number_at(json, "p10");
  distribution.p90 = number_at(json, "p90");
  distribution.p95 = number_at(json, "p95");
  const Number n = number_at(json, "n");
  distribution.n = n && *n >= 0 && *n < 1e15 ? static_cast<std::size_t>(*n) : 0;
  return distribution;
}

void read_costs(const ordered_json& json, Run& run) {
  const ordered_json& phases = member(json, "phases_ms");
  for (std::size_t phase = 0; phase < kPhases; ++phase) {
    run.phases_ms[phase] = number_at(phases, kPhaseNames[phase]);
  }
  run.no_comm_step_ms = number_at(json, "no_comm_step_ms");
  const ordered_json& comm = member(json, "comm");
  run.comm.alone_ms = number_at(comm, "alone_ms");
  run.comm.hidden_share = number_at(comm, "hidden_share");
  run.comm.bytes_per_step = number_at(comm, "bytes_per_step");
  run.comm.bus_bandwidth_gbps = number_at(comm, "bus_bandwidth_gbps");
  run.comm.exposed_by_difference_ms = number_at(comm, "exposed_by_difference_ms");
  run.comm.bucket_bytes = numbers_at(comm, "bucket_bytes");
  run.floor_ms = number_at(json, "floor_ms");
  run.predicted_step_ms = number_at(json, "predicted_step_ms");
  const ordered_json& prediction = member(json, "prediction");
  run.prediction.algorithm = text_at(prediction, "algorithm");
  run.prediction.compute_ms = number_at(prediction, "compute_ms");
  run.prediction.comm_ms = number_at(prediction, "comm_ms");
  run.prediction.ring_step_ms = number_at(prediction, "ring_step_ms");
  run.prediction.tree_step_ms = number_at(prediction, "tree_step_ms");
  run.prediction.residual = number_at(prediction, "residual");
}

void read_resources(const ordered_json& json, Run& run) {
  run.peak_rss_mib = number_at(json, "peak_rss_mib");
  run.job_peak_rss_mib = number_at(json, "job_peak_rss_mib");
  run.startup_ms = number_at(json, "startup_ms");
  run.cpu_utilisation = number_at(json, "cpu_utilisation");
  const ordered_json& gpu = member(json, "gpu");
  run.gpu.utilisation_percent = number_at(gpu, "utilisation_percent");
  run.gpu.power_w = number_at(gpu, "power_w");
  run.gpu.memory_mib = number_at(gpu, "memory_mib");
  const ordered_json& slowest = member(json, "slowest_rank");
  run.slowest_rank.rank = number_at(slowest, "rank");
  run.slowest_rank.share_of_steps = number_at(slowest, "share_of_steps");
  run.slowest_rank.median_excess = number_at(slowest, "median_excess");
}

/// "none", "fused", "bucket 4 MiB", "fused bf16 sharded".
std::string read_speedup(const ordered_json& json) {
  std::string text = text_at(json, "speedup");
  const auto add = [&](const std::string& word) {
    text = text.empty() || text == "none" ? word : text + " " + word;
  };
  constexpr double kUsualBucketMib = 25;
  const Number bucket_mib = number_at(json, "bucket_mib");
  if (bucket_mib && *bucket_mib != kUsualBucketMib) {
    add("bucket " + show(bucket_mib) + " MiB");
  }
  if (const std::string compression = text_at(json, "gradient_compression");
      !compression.empty() && compression != "none") {
    add(compression);
  }
  if (const auto sharded = json.find("shard_optimizer");
      sharded != json.end() && sharded->is_boolean() && sharded->get<bool>()) {
    add("sharded");
  }
  return text;
}

Run read_run(const ordered_json& json) {
  Run run;
  run.name = text_at(json, "name");
  run.kind = text_at(json, "kind");
  if (run.kind.empty()) {
    run.kind = "stage";
  }
  run.variant = text_at(json, "variant");
  run.program = text_at(json, "stage");
  if (run.program.empty()) {
    run.program = run.name.empty() ? "unnamed" : run.name;
  } else if (!run.variant.empty() && run.variant != "main") {
    run.program += "_" + run.variant;
  }
  run.launcher = text_at(json, "launcher");
  run.backend = text_at(json, "backend");
  run.speedup = read_speedup(json);
  run.device = text_at(json, "device");
  run.model = text_at(json, "model");
  run.scaling = text_at(json, "scaling");
  run.nodes = std::max(world_size_of(number_at(json, "nodes")), 1);
  run.world_size = world_size_of(number_at(json, "world_size"));
  run.global_batch = number_at(json, "global_batch");
  run.steps = number_at(json, "steps");
  run.step_ms = distribution_at(json, "step_ms");
  run.samples_per_second = number_at(json, "samples_per_second");
  run.relative_speedup = number_at(json, "relative_speedup");
  run.efficiency = number_at(json, "efficiency");
  read_costs(json, run);
  read_resources(json, run);
  const ordered_json& parity_ok = member(member(json, "parity"), "ok");
  if (parity_ok.is_boolean()) {
    run.parity_ok = parity_ok.get<bool>();
  }
  run.error = text_at(json, "error");
  return run;
}

Comparison read_comparison(const ordered_json& json) {
  Comparison comparison;
  comparison.a = text_at(json, "a");
  comparison.b = text_at(json, "b");
  comparison.kind = text_at(json, "kind");
  if (comparison.kind.empty()) {
    comparison.kind = "baseline";  // documents without kinds held no others
  }
  comparison.verdict = text_at(json, "verdict");
  comparison.ratio = number_at(json, "ratio_median");
  const std::vector<double> ends = numbers_at(json, "ci95");
  if (ends.size() == 2) {
    comparison.ci95 = Interval{std::min(ends[0], ends[1]), std::max(ends[0], ends[1])};
  }
  comparison.pairs = number_at(json, "pairs");
  return comparison;
}

CommunicationModel read_communication_model(const ordered_json& json) {
  CommunicationModel model;
  model.backend = text_at(json, "backend");
  model.device = text_at(json, "device");
  model.algorithm = text_at(json, "algorithm");
  for (const double world_size : numbers_at(json, "world_sizes")) {
    model.world_sizes.push_back(world_size_of(world_size));
  }
  for (const ordered_json* regime : objects_at(json, "regimes")) {
    const Number from = number_at(*regime, "from_bytes");
    const Number alpha = number_at(*regime, "alpha_us");
    const Number beta = number_at(*regime, "beta_us_per_mib");
    if (from && alpha && beta) {
      model.regimes.push_back({*from, *alpha, *beta});
    }
  }
  std::sort(model.regimes.begin(), model.regimes.end(),
            [](const Regime& a, const Regime& b) { return a.from_bytes < b.from_bytes; });
  model.median_relative_error = number_at(json, "median_relative_error");
  model.points = number_at(json, "points");
  return model;
}

void read_communication(const ordered_json& scaling, Document& document) {
  for (const ordered_json* json : objects_at(scaling, "all_reduce")) {
    AllReduce sample;
    sample.backend = text_at(*json, "backend");
    sample.device = text_at(*json, "device");
    sample.world_size = world_size_of(number_at(*json, "world_size"));
    sample.bytes = number_at(*json, "bytes").value_or(0);
    sample.time_us = distribution_at(*json, "time_us");
    sample.algorithm_bandwidth_gbps = number_at(*json, "algorithm_bandwidth_gbps");
    sample.bus_bandwidth_gbps = number_at(*json, "bus_bandwidth_gbps");
    document.all_reduce.push_back(std::move(sample));
  }
  for (const ordered_json* json : objects_at(scaling, "communication_models")) {
    document.communication_models.push_back(read_communication_model(*json));
  }
  for (const ordered_json* json : objects_at(scaling, "extrapolations")) {
    document.extrapolations.push_back({
        .from = text_at(*json, "from"),
        .algorithm = text_at(*json, "algorithm"),
        .world_size = world_size_of(number_at(*json, "world_size")),
        .step_ms = number_at(*json, "predicted_step_ms"),
        .efficiency = number_at(*json, "efficiency"),
    });
  }
  for (const ordered_json* json : objects_at(scaling, "limits")) {
    document.limits.push_back({
        .device = text_at(*json, "device"),
        .world_size = world_size_of(number_at(*json, "world_size")),
        .fp32_gflops = number_at(*json, "fp32_gflops"),
        .memory_bandwidth_gbps = number_at(*json, "memory_bandwidth_gbps"),
    });
  }
  for (const ordered_json* json : objects_at(scaling, "micro")) {
    document.micro.push_back({
        .name = text_at(*json, "name"),
        .time_us = distribution_at(*json, "time_us"),
        .bytes = number_at(*json, "bytes"),
        .bandwidth_gbps = number_at(*json, "bandwidth_gbps"),
    });
  }
}

}  // namespace

const ordered_json& member(const ordered_json& object, const char* key) {
  static const ordered_json null;
  if (!object.is_object()) {
    return null;
  }
  const auto found = object.find(key);
  return found == object.end() ? null : *found;
}

Number number_at(const ordered_json& object, const char* key) {
  const ordered_json& value = member(object, key);
  if (!value.is_number()) {
    return std::nullopt;
  }
  const double number = value.get<double>();
  return std::isfinite(number) ? Number(number) : std::nullopt;
}

std::string text_at(const ordered_json& object, const char* key) {
  const ordered_json& value = member(object, key);
  return value.is_string() ? value.get<std::string>() : "";
}

bool Run::is_baseline() const {
  return kind == "stage" && program.rfind("01", 0) == 0;
}

std::string Group::title() const {
  return (model.empty() ? "Unnamed model" : model) +
         (scaling.empty() ? "" : ", " + scaling + " scaling");
}

const Run* Group::baseline() const {
  const auto found = std::find_if(runs.begin(), runs.end(), [](const Run* run) {
    return run->is_baseline() && run->has_speed();
  });
  return found == runs.end() ? nullptr : *found;
}

const Run* Document::find(const std::string& name) const {
  const auto found =
      std::find_if(runs.begin(), runs.end(), [&](const Run& run) { return run.name == name; });
  return found == runs.end() ? nullptr : &*found;
}

Document read_document(const ordered_json& json) {
  Document document;
  const ordered_json& scaling = member(json, "ddp_scaling");
  document.date = text_at(member(json, "context"), "date");
  document.machine = member(scaling, "machine");
  document.software = member(scaling, "software");
  document.settings = member(scaling, "settings");
  for (const ordered_json* run : objects_at(scaling, "runs")) {
    document.runs.push_back(read_run(*run));
  }
  for (const ordered_json* comparison : objects_at(scaling, "comparisons")) {
    document.comparisons.push_back(read_comparison(*comparison));
  }
  read_communication(scaling, document);
  const ordered_json& assumptions = member(scaling, "assumptions");
  if (assumptions.is_array()) {
    for (const ordered_json& assumption : assumptions) {
      if (assumption.is_string()) {
        document.assumptions.push_back(assumption.get<std::string>());
      }
    }
  }
  for (const ordered_json* not_run : objects_at(scaling, "not_run")) {
    document.not_run.emplace_back(text_at(*not_run, "what"), text_at(*not_run, "reason"));
  }
  for (const ordered_json* merged : objects_at(scaling, "merged_from")) {
    document.merged_from.push_back(*merged);
  }
  const ordered_json& partial = member(scaling, "partial");
  document.partial = partial.is_boolean() && partial.get<bool>();
  return document;
}

std::vector<Group> group_runs(const Document& document) {
  std::vector<Group> groups;
  for (const Run& run : document.runs) {
    if (run.is_control()) {
      continue;
    }
    const auto group = std::find_if(groups.begin(), groups.end(), [&](const Group& other) {
      return other.model == run.model && other.scaling == run.scaling;
    });
    if (group == groups.end()) {
      groups.push_back({run.model, run.scaling, {&run}});
    } else {
      group->runs.push_back(&run);
    }
  }
  return groups;
}

}  // namespace ddp::bench::html
