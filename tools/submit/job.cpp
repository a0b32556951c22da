// tools/submit/job.cpp - the names of schedulers and states, and jobs as JSON.
#include "tools/submit/job.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/base/parse.hpp"
#include "tools/submit/text.hpp"

namespace ddp::submit {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// In the enumerations' order.
constexpr std::array<std::string_view, 3> kSchedulers = {"condor", "slurm", "local"};
constexpr std::array<std::string_view, 10> kStates = {
    "planned", "maybe-submitted", "refused",   "pending", "running", "held",
    "done",    "failed",          "cancelled", "lost"};

/// Every field with its name, for reading and for writing.
template <typename Request, typename Visit>
void each_field(Request& request, const Visit& visit) {
  visit("job", request.index);
  visit("name", request.name);
  visit("folder", request.folder);
  visit("scheduler", request.scheduler);
  visit("command", request.command);
  visit("processes_per_node", request.processes_per_node);
  visit("several", request.several);
  visit("single", request.single);
  auto& resources = request.resources;
  visit("nodes", resources.nodes);
  visit("cpus", resources.cpus);
  visit("memory_mb", resources.memory_mb);
  visit("gpus", resources.gpus);
  visit("gpu_memory_mb", resources.gpu_memory_mb);
  visit("time_s", resources.time_s);
  visit("account", resources.account);
  visit("partition", resources.partition);
  visit("constraint", resources.constraint);
  visit("bid", resources.bid);
  visit("transfer_files", resources.transfer_files);
}

template <typename AttemptType, typename Visit>
void each_attempt_field(AttemptType& attempt, const Visit& visit) {
  visit("attempt", attempt.number);
  visit("token", attempt.token);
  visit("machine", attempt.machine);
  visit("id", attempt.id);
  visit("earlier_ids", attempt.earlier_ids);
  visit("submitted_unix_s", attempt.submitted_unix_s);
  visit("state", attempt.finding.state);
  visit("exit_code", attempt.finding.exit_code);
  visit("reason", attempt.finding.reason);
}

struct Writer {
  ordered_json& document;

  void operator()(const char* name, Scheduler scheduler) const {
    document[name] = scheduler_name(scheduler);
  }
  void operator()(const char* name, JobState state) const { document[name] = state_name(state); }
  template <typename Field>
  void operator()(const char* name, const Field& field) const {
    document[name] = field;
  }
  template <typename Field>
  void operator()(const char* name, const std::optional<Field>& field) const {
    if (field) {
      document[name] = *field;
    }
  }
};

struct Reader {
  const json& document;

  void operator()(const char* name, Scheduler& scheduler) const {
    scheduler = parse_scheduler(name, document.at(name).get<std::string>());
  }
  void operator()(const char* name, JobState& state) const {
    const std::string text = document.at(name).get<std::string>();
    const auto* const known = std::find(kStates.begin(), kStates.end(), text);
    if (known == kStates.end()) {
      refuse_value(std::string(name), quote_bytes(text), "one that submit knows");
    }
    state = static_cast<JobState>(known - kStates.begin());
  }
  template <typename Field>
  void operator()(const char* name, Field& field) const {
    document.at(name).get_to(field);
  }
  template <typename Field>
  void operator()(const char* name, std::optional<Field>& field) const {
    if (document.contains(name)) {
      field = document.at(name).get<Field>();
    }
  }
};

}  // namespace

std::string_view scheduler_name(Scheduler scheduler) {
  return kSchedulers.at(static_cast<std::size_t>(scheduler));
}

Scheduler parse_scheduler(const std::string& name, const std::string& text) {
  for (std::size_t i = 0; i < kSchedulers.size(); ++i) {
    if (kSchedulers[i] == text) {
      return static_cast<Scheduler>(i);
    }
  }
  refuse_value(name, quote_bytes(text), any_of({kSchedulers.begin(), kSchedulers.end()}));
}

std::string_view state_name(JobState state) {
  return kStates.at(static_cast<std::size_t>(state));
}

bool is_over(JobState state) {
  return state == JobState::kDone || state == JobState::kCancelled || needs_resubmission(state);
}

bool needs_resubmission(JobState state) {
  return state == JobState::kPlanned || state == JobState::kRefused || state == JobState::kFailed ||
         state == JobState::kLost;
}

ordered_json to_json(const JobRequest& request) {
  ordered_json document;
  each_field(request, Writer{document});
  return document;
}

ordered_json to_json(const Attempt& attempt) {
  ordered_json document;
  each_attempt_field(attempt, Writer{document});
  return document;
}

JobRequest request_from_json(const json& document) {
  JobRequest request;
  each_field(request, Reader{document});
  return request;
}

Attempt attempt_from_json(const json& document) {
  Attempt attempt;
  each_attempt_field(attempt, Reader{document});
  return attempt;
}

}  // namespace ddp::submit
