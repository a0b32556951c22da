#include "common/training/metrics_file.hpp"

#include <array>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/base/exit_codes.hpp"

namespace ddp {

nlohmann::json finite_or_null(double value) {
  return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json();
}

torch::Tensor to_table(const std::vector<StepTimes>& steps) {
  constexpr int64_t kColumns = 8;
  torch::Tensor table =
      torch::empty({static_cast<int64_t>(steps.size()), kColumns}, torch::kFloat64);
  auto cells = table.accessor<double, 2>();
  for (size_t i = 0; i < steps.size(); ++i) {
    const StepTimes& step = steps[i];
    const std::array<double, kColumns> values = {
        double(step.epoch), step.step_ms,         step.phase_ms[0], step.phase_ms[1],
        step.phase_ms[2],   step.exposed_comm_ms, step.phase_ms[3], step.loss};
    for (size_t c = 0; c < values.size(); ++c) {
      cells[static_cast<int64_t>(i)][static_cast<int64_t>(c)] = values[c];
    }
  }
  return table;
}

void write_metrics(const std::string& path, const torch::Tensor& tables,
                   const nlohmann::json& summary) {
  std::ofstream out(path, std::ios::trunc);
  const auto all = tables.accessor<double, 3>();
  for (int64_t r = 0; r < tables.size(0); ++r) {
    for (int64_t s = 0; s < tables.size(1); ++s) {
      const auto row = all[r][s];
      // An ordered object, so that a line reads from cause to effect.
      const nlohmann::ordered_json line = {{"rank", r},
                                           {"epoch", static_cast<int64_t>(row[0])},
                                           {"step", s},
                                           {"step_ms", finite_or_null(row[1])},
                                           {"data_ms", finite_or_null(row[2])},
                                           {"forward_ms", finite_or_null(row[3])},
                                           {"backward_ms", finite_or_null(row[4])},
                                           {"exposed_comm_ms", finite_or_null(row[5])},
                                           {"optimizer_ms", finite_or_null(row[6])},
                                           {"loss", finite_or_null(row[7])}};
      out << line.dump() << '\n';
    }
  }
  out << nlohmann::json{{"summary", summary}}.dump() << '\n';
  out.close();
  if (!out) {
    throw Error(ExitCode::kTrainingFailed,
                "--metrics: cannot write " + path + ", expected a writable file");
  }
}

}  // namespace ddp
