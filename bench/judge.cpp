#include "bench/report.hpp"

namespace ddp::bench {

std::optional<double> control_factor(const Report& report, const Run& run) {
  std::optional<double> factor;
  for (const Comparison& comparison : report.comparisons) {
    const Run* const control = comparison.kind == "control" ? report.find(comparison.a) : nullptr;
    if (control != nullptr && comparison.ci95 && same_work(*control, run) &&
        (control->cores() > 1) == (run.cores() > 1)) {
      const double far_end = std::max(comparison.ci95->high, 1 / comparison.ci95->low);
      const double ratio = std::max(*comparison.ratio, 1 / *comparison.ratio);
      factor = std::max(factor.value_or(1), std::sqrt(ratio * far_end));
    }
  }
  return factor;
}

void judge(Report& report) {
  for (Comparison& comparison : report.comparisons) {
    const std::optional<double> of_a = control_factor(report, *report.find(comparison.a));
    const std::optional<double> of_b = control_factor(report, *report.find(comparison.b));
    if (comparison.ci95 && of_a && of_b) {
      const double factor = std::max(*of_a, *of_b);
      comparison.equal_commands = factor;
      comparison.significant = comparison.ci95->low > factor || comparison.ci95->high < 1 / factor;
    }
  }
}

}  // namespace ddp::bench
