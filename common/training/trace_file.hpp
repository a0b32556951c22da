// common/training/trace_file.hpp - the timeline that --trace writes, in Chrome's trace format.
#pragma once

#include <fstream>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "common/parallel/step_trace.hpp"

namespace ddp {

/// A rank's part of the file: its events, one a line, with commas between them. The rank is the
/// process of the trace; its threads are the steps, what the rank did in them, and the collectives,
/// on as many threads as were on their way at a time.
std::string trace_events(const StepTrace& trace, int rank);

/// {"traceEvents": [...]}, which Perfetto and chrome://tracing read.
class TraceFile {
 public:
  /// @throws Error (1) if it cannot be opened, as does write() if it cannot write
  explicit TraceFile(std::string path);

  /// @param events_of_ranks as trace_events() gives them
  /// @param about the run
  void write(const std::vector<std::string>& events_of_ranks, const nlohmann::ordered_json& about);

 private:
  [[noreturn]] void fail() const;

  std::string path_;
  std::ofstream file_;
};

}  // namespace ddp
