// common/training/trace.hpp - --trace: LibTorch's own profiler over a few steps, as a Chrome trace.
#pragma once

#include <cstdint>
#include <string>

namespace ddp {

/// Records kSteps steps after the first kWarmupSteps: operators, collectives by name, and a GPU's
/// kernels. A host's ranks have the same clock, so Perfetto shows their files on one time axis.
class Trace {
 public:
  static constexpr int64_t kWarmupSteps = 16;
  static constexpr int64_t kSteps = 16;

  /// @param path file to write; with several ranks NAME.json becomes "NAME.rank1.json"
  /// @throws UsageError if the path exists and is no regular file
  Trace(const std::string& path, int rank, int world_size, bool with_cuda);
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  /// @throws Error (1) if the file cannot be written
  void end_step();
  /// Ends the trace with the last step of the run, if it still records.
  void finish();

 private:
  void stop();

  std::string path_;
  bool with_cuda_;
  bool running_ = false;
  int64_t steps_ = 0;
};

}  // namespace ddp
