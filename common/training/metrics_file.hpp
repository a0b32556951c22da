// common/training/metrics_file.hpp - the JSON lines that --metrics writes.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "common/base/process.hpp"

namespace ddp {

/// A line per step and rank, step by step, and at last the summary. Whole lines are appended while
/// training goes on; what cannot be written whole is taken back.
class MetricsFile {
 public:
  /// Of a file that is there the lines of the first `epochs_done` epochs stay, without which a
  /// resumed run would begin in the middle; a pipe or a device is only written to.
  /// @throws Error (1) if it cannot be opened, as does every function that cannot write
  MetricsFile(std::string path, int64_t epochs_done);

  /// @param steps (ranks, steps, doubles of StepTimes) float64, on the host: what follows
  void append_steps(const torch::Tensor& steps);
  void append_summary(const nlohmann::json& summary);
  /// In the file, of each rank.
  int64_t steps() const noexcept { return steps_; }

 private:
  void keep_epochs(int64_t epochs_done);
  void append(const std::string& lines);
  [[noreturn]] void fail() const;

  std::string path_;
  FileDescriptor file_;
  bool is_regular_;
  int64_t steps_ = 0;
};

}  // namespace ddp
