#include "bench/record.hpp"

#include <tuple>

namespace ddp::bench {

const Run* Report::find(const std::string& name) const {
  const auto found = std::ranges::find(runs, name, &Run::name);
  return found == runs.end() ? nullptr : &*found;
}

std::string Run::program() const {
  return kind == "peer" ? stage + " " + variant : variant == "main" ? stage : stage + "_" + variant;
}

bool same_unit(const Run& a, const Run& b) {
  return a.timed == b.timed && a.global_batch.has_value() == b.global_batch.has_value();
}

bool same_work(const Run& a, const Run& b) {
  return std::tie(a.model, a.scaling, a.device) == std::tie(b.model, b.scaling, b.device);
}

const Run* Report::baseline_of(const Run& run) const {
  const auto found = std::ranges::find_if(
      runs, [&](const Run& other) { return other.is_baseline() && same_work(other, run); });
  return found == runs.end() || !found->has_speed() ? nullptr : &*found;
}

}  // namespace ddp::bench
