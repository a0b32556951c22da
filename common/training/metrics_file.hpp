// common/training/metrics_file.hpp - the JSON lines that --metrics writes.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "common/base/process.hpp"

namespace ddp {

/// A line per step and rank, and at last the summary. Whole lines are appended while training goes
/// on. A line that cannot be written whole is taken back.
class MetricsFile {
 public:
  /// @throws Error (1) if the file cannot be opened, as does every function that cannot write
  explicit MetricsFile(std::string path);

  /// Keeps the lines of the first `epochs_done` epochs, so that the file of a resumed run begins
  /// with epoch 0. A pipe or a device is only written to.
  void keep_epochs(int64_t epochs_done);
  /// @param steps (ranks, steps, numbers of Step) float64, on the host: the epoch's
  void append_steps(int64_t epoch, const torch::Tensor& steps);
  void append_summary(const nlohmann::ordered_json& summary);
  /// In the file, of each rank.
  int64_t steps() const noexcept { return steps_; }

 private:
  void append(const std::string& lines);
  [[noreturn]] void fail() const;

  std::string path_;
  FileDescriptor file_;
  bool is_regular_;
  int64_t steps_ = 0;
};

}  // namespace ddp
