#include "bench/report/record.hpp"

#include <algorithm>

#include "bench/report/catalog.hpp"
#include "bench/report/field_json.hpp"
#include "bench/report/verdict.hpp"

namespace ddp::bench {

const char* to_string(AllReduceAlgorithm algorithm) {
  return algorithm == AllReduceAlgorithm::kRing ? "ring" : "tree";
}

bool AllReduceSample::is_unstable() const {
  constexpr double kSteady = 1.5;
  return pass_spread && *pass_spread > kSteady;
}

bool Run::is_baseline() const {
  return kind == "stage" && stage == kBaseline && threads == 1;
}

bool Run::has_replicas() const {
  return launcher == "none" && stage != kBaseline;
}

std::string Run::title() const {
  std::string text = stage;
  text += is_peer() ? " " + variant : variant == "main" ? "" : "_" + variant;
  text += speedup == "none" ? "" : " " + speedup;
  text += threads == 1 ? "" : " " + std::to_string(threads) + " threads";
  std::string more = Gradients{bucket_mib, gradient_compression, shard_optimizer}.suffix();
  std::ranges::replace(more, '/', ' ');
  return text + more;
}

std::vector<double> Run::known_medians_ms() const {
  std::vector<double> known;
  for (const std::optional<Repetition>& repetition : repetitions) {
    if (!error && repetition && repetition->median_ms) {
      known.push_back(*repetition->median_ms);
    }
  }
  return known;
}

std::optional<double> Run::typical_step_ms() const {
  const std::vector<double> medians_ms = known_medians_ms();
  return error ? std::nullopt : medians_ms.empty() ? step_ms.median : median(medians_ms);
}

bool same_work(const Run& a, const Run& b) {
  return a.model == b.model && a.scaling == b.scaling && a.device == b.device;
}

const Run* Report::baseline_of(const Run& run) const {
  return find_first(runs, [&](const Run& candidate) {
    return candidate.is_baseline() && same_work(candidate, run) &&
           candidate.speedup == run.speedup && candidate.has_speed();
  });
}

const Run* Report::find(const std::string& name) const {
  return find_first(runs, [&](const Run& run) { return run.name == name; });
}

const Comparison* Report::comparison_of(const Run& run) const {
  return find_first(comparisons, [&](const Comparison& comparison) {
    return comparison.kind == "baseline" && comparison.a == run.name;
  });
}

bool Report::is_swept(const Run& run) const {
  return std::ranges::any_of(crossover, [&](const Crossover& sweep) {
    return std::ranges::any_of(sweep.values, [&](const CrossoverValue& value) {
      const Run* const point = find(value.run);
      return point != nullptr && same_work(*point, run);
    });
  });
}

std::vector<std::vector<const Run*>> Report::workloads() const {
  std::vector<std::vector<const Run*>> groups;
  for (const Run& run : runs) {
    if (run.is_control() || is_swept(run)) {
      continue;  // they speak through other runs, or as a curve
    }
    const auto found = std::ranges::find_if(
        groups, [&](const auto& group) { return same_work(*group.front(), run); });
    if (found == groups.end()) {
      groups.push_back({&run});
    } else {
      found->push_back(&run);
    }
  }
  return groups;
}

nlohmann::ordered_json to_json(const Report& report) {
  return as_json(report);
}

void drop_samples(Report& report) {
  for (Run& run : report.runs) {
    for (std::optional<Repetition>& repetition : run.repetitions) {
      if (repetition) {
        repetition->samples_ms.clear();
        repetition->rank_samples_ms.clear();
      }
    }
  }
}

}  // namespace ddp::bench
