// common/training/metrics_file.hpp - the JSON lines that --metrics writes.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "common/base/process.hpp"

namespace ddp {

/// Writes a line per step and rank, and at the end the summary. Lines are appended during training.
/// Lines that cannot be written whole are removed again.
class MetricsFile {
 public:
  /// @throws Error (1) if the file cannot be opened; the other functions, if they cannot write
  explicit MetricsFile(std::string path);

  /// Keeps the lines of the first `epochs_done` epochs, so that the file of a resumed run begins
  /// with epoch 0. Does nothing for a pipe or a device.
  void keep_epochs(int64_t epochs_done);
  /// @param steps (ranks, steps, numbers of Step) float64, on the host: steps of the epoch
  void append_steps(int64_t epoch, const torch::Tensor& steps);
  void append_summary(const nlohmann::ordered_json& summary);
  /// Number of steps in the file, for each rank.
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
