// common/training/metrics_file.hpp - what --metrics writes: JSON lines.
#pragma once

#include <torch/types.h>

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "common/training/step_timer.hpp"

namespace ddp {

/// null for what is not finite: JSON has no NaN.
nlohmann::json finite_or_null(double value);

/// (steps, columns) float64, as ranks exchange it and write_metrics() takes it.
torch::Tensor to_table(const std::vector<StepTimes>& steps);

/// Writes a line per rank and step, and {"summary": `summary`} as the last.
/// @param tables (world size, steps, columns), every rank's to_table()
/// @throws Error (1) if the file cannot be written
void write_metrics(const std::string& path, const torch::Tensor& tables,
                   const nlohmann::json& summary);

}  // namespace ddp
