#include "bench/record.hpp"

#include <algorithm>
#include <tuple>

using Json = nlohmann::ordered_json;

namespace nlohmann {

/// Writes null for no value. For numbers that are not finite, dump() does.
template <typename T>
struct adl_serializer<std::optional<T>> {
  static void to_json(Json& json, const std::optional<T>& value) {
    json = value ? Json(*value) : Json(nullptr);
  }
};

}  // namespace nlohmann

namespace ddp::bench {

// Writer part of NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE for ordered_json, which 3.11 lacks.
#define DDP_JSON_FIELDS(Type, ...)                                           \
  static void to_json(Json& nlohmann_json_j, const Type& nlohmann_json_t) {  \
    NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(NLOHMANN_JSON_TO, __VA_ARGS__)) \
  }

static void to_json(Json& json, const Interval& interval) {
  json = {interval.low, interval.high};
}

DDP_JSON_FIELDS(Distribution, median, p10, p90, n)
DDP_JSON_FIELDS(Repetition, block, started, samples_ms, median_ms, no_comm_median_ms, startup_ms)
DDP_JSON_FIELDS(Parity, moved, reference_moved, ok)
DDP_JSON_FIELDS(Pieces, data, forward, backward, update, all_reduce)
DDP_JSON_FIELDS(GpuUsage, utilisation_percent, memory_mib)
DDP_JSON_FIELDS(Run, name, kind, stage, variant, launcher, backend, device, model, layers,
                parameters, scaling, nodes, world_size, threads, global_batch, repetitions, step_ms,
                samples_per_second, speedup, speedup_ci95, efficiency, pieces_ms, exposed_comm_ms,
                exposed_comm_ci95_ms, limit_ms, peak_rss_mib, startup_ms, lines_of_code, gpu,
                parity, error)
DDP_JSON_FIELDS(Comparison, kind, a, b, ratio, ci95, pairs, significant)
DDP_JSON_FIELDS(Sentence, code, runs, text)
DDP_JSON_FIELDS(NotRun, what, reason)
DDP_JSON_FIELDS(Report, schema_version, machine, software, settings, runs, comparisons, sentences,
                not_run, partial)

const Run* Report::find(const std::string& name) const {
  const auto found = std::ranges::find(runs, name, &Run::name);
  return found == runs.end() ? nullptr : &*found;
}

std::string Run::program() const {
  return kind == "peer" ? stage + " " + variant : variant == "main" ? stage : stage + "_" + variant;
}

bool same_work(const Run& a, const Run& b) {
  return std::tie(a.model, a.scaling, a.device) == std::tie(b.model, b.scaling, b.device);
}

const Run* Report::baseline_of(const Run& run) const {
  const auto found = std::ranges::find_if(runs, [&](const Run& other) {
    return other.is_baseline() && same_work(other, run) && other.has_speed();
  });
  return found == runs.end() ? nullptr : &*found;
}

Json to_json(const Report& report, bool samples) {
  Json document = report;
  if (!samples) {
    for (Json& run : document["runs"]) {
      for (Json& repetition : run["repetitions"]) {
        repetition["samples_ms"] = Json::array();
      }
    }
  }
  return document;
}

}  // namespace ddp::bench
