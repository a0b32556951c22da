// common/training/trace.hpp - --trace: LibTorch's own profiler over a few steps, as a Chrome trace.
#pragma once

#include <cstdint>
#include <string>

namespace ddp {

/// Records kSteps steps after the first kWarmupSteps: operators, the collectives by name, and on a
/// GPU its kernels. All ranks of a host write times of one clock, so Perfetto shows their files on
/// one axis.
class Trace {
 public:
  static constexpr int64_t kWarmupSteps = 16;
  static constexpr int64_t kSteps = 16;

  /// @param path of the file; with several ranks "NAME.rank1.json" for NAME.json
  /// @throws UsageError if it is there and no regular file
  Trace(const std::string& path, int rank, int world_size, bool with_cuda);
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  /// @throws Error (1) if the file cannot be written
  void end_step();
  /// Training is over: writes the steps so far.
  void finish();

 private:
  void start();
  void stop();

  std::string path_;
  bool with_cuda_;
  bool running_ = false;
  int64_t steps_ = 0;
};

}  // namespace ddp
