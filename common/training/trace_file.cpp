#include "common/training/trace_file.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/base/exit_codes.hpp"

namespace ddp {
namespace {

using Json = nlohmann::ordered_json;  // so that a line reads from what it is to what it has

/// Threads of a trace, from top to bottom.
enum Lane : int { kStepLane, kPhaseLane, kFirstCollectiveLane };

double to_us(StepTrace::Clock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

/// Appends events to a text, one a line.
class EventLines {
 public:
  explicit EventLines(int rank) : rank_(rank) {}

  /// What viewers call the rank, or one of its lanes, and in which order they show it.
  void name(const std::string& what, int lane, const std::string& name, int index) {
    add({{"name", what + "_name"},
         {"ph", "M"},
         {"pid", rank_},
         {"tid", lane},
         {"args", {{"name", name}}}});
    add({{"name", what + "_sort_index"},
         {"ph", "M"},
         {"pid", rank_},
         {"tid", lane},
         {"args", {{"sort_index", index}}}});
  }

  void complete(int lane, const std::string& name, StepTrace::Clock::time_point begin,
                StepTrace::Clock::time_point end, const Json& args) {
    add({{"name", name},
         {"ph", "X"},
         {"pid", rank_},
         {"tid", lane},
         {"ts", to_us(begin.time_since_epoch())},
         {"dur", to_us(end - begin)},
         {"args", args}});
  }

  const std::string& text() const { return text_; }

 private:
  void add(const Json& event) { text_ += (text_.empty() ? "" : ",\n") + event.dump(); }

  int rank_;
  std::string text_;
};

/// The first lane in which nothing goes on any more, by the ends of what is in them.
int free_lane(std::vector<StepTrace::Clock::time_point>& ends, StepTrace::Clock::time_point begin,
              StepTrace::Clock::time_point end) {
  const auto lane = std::ranges::find_if(ends, [begin](auto last) { return last <= begin; });
  const auto index = static_cast<int>(lane - ends.begin());
  if (lane == ends.end()) {
    ends.push_back(end);
  } else {
    *lane = end;
  }
  return kFirstCollectiveLane + index;
}

}  // namespace

std::string trace_events(const StepTrace& trace, int rank) {
  EventLines lines(rank);
  lines.name("process", 0, fmt::format("rank {}", rank), rank);
  lines.name("thread", kStepLane, "steps", kStepLane);
  lines.name("thread", kPhaseLane, "phases", kPhaseLane);
  std::vector<StepTrace::Clock::time_point> lane_ends;
  for (const StepTrace::Step* const step : trace.steps()) {
    const Json of_step = {{"epoch", step->epoch}, {"step", step->step}};
    lines.complete(kStepLane, "step", step->begin, step->end, of_step);
    for (const StepTrace::Span& span : step->spans) {
      if (span.begin != span.end) {
        lines.complete(kPhaseLane, span.name, span.begin, span.end, of_step);
      }
    }
    for (const StepTrace::Collective& collective : step->collectives) {
      const StepTrace::Clock::rep ended = collective.end->load();
      // Nobody has waited for one that has not, and it is drawn to where the trace ends.
      const auto end = ended == 0 ? std::max(collective.begin, trace.steps().back()->end)
                                  : StepTrace::Clock::time_point(StepTrace::Clock::duration(ended));
      const int bucket = collective.site.bucket;
      Json args = of_step;
      args["bytes"] = collective.bytes;
      args["bucket"] = bucket < 0 ? Json() : Json(bucket);
      args["call"] = collective.site.text();
      const size_t lanes = lane_ends.size();
      const int lane = free_lane(lane_ends, collective.begin, end);
      if (lanes < lane_ends.size()) {
        lines.name("thread", lane, "collectives", lane);
      }
      lines.complete(
          lane,
          bucket < 0 ? collective.kind : fmt::format("{} of bucket {}", collective.kind, bucket),
          collective.begin, end, args);
    }
  }
  return lines.text();
}

TraceFile::TraceFile(std::string path) : path_(std::move(path)), file_(path_) {
  if (!file_) {
    fail();
  }
}

void TraceFile::write(const std::vector<std::string>& events_of_ranks, const Json& about) {
  file_ << fmt::format(
               "{{\"traceEvents\": [\n{}\n],\n\"displayTimeUnit\": \"ms\",\n"
               "\"otherData\": {}}}\n",
               fmt::join(events_of_ranks, ",\n"), about.dump())
        << std::flush;
  if (!file_) {
    fail();
  }
}

void TraceFile::fail() const {
  throw Error(ExitCode::kTrainingFailed,
              fmt::format("--trace: cannot write {} ({}), expected a writable file", path_,
                          std::strerror(errno)));
}

}  // namespace ddp
