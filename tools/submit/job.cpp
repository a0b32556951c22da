#include "tools/submit/job.hpp"

#include <array>
#include <utility>

#include "common/base/parse.hpp"
#include "tools/submit/text.hpp"

namespace ddp::submit {
namespace {

constexpr std::array<std::pair<Scheduler, std::string_view>, 3> kSchedulers = {{
    {Scheduler::kCondor, "condor"},
    {Scheduler::kSlurm, "slurm"},
    {Scheduler::kLocal, "local"},
}};

constexpr std::array<std::pair<JobState, std::string_view>, 10> kStates = {{
    {JobState::kPlanned, "planned"},
    {JobState::kSubmitting, "maybe-submitted"},
    {JobState::kRefused, "refused"},
    {JobState::kPending, "pending"},
    {JobState::kRunning, "running"},
    {JobState::kHeld, "held"},
    {JobState::kDone, "done"},
    {JobState::kFailed, "failed"},
    {JobState::kCancelled, "cancelled"},
    {JobState::kLost, "lost"},
}};

}  // namespace

std::string_view scheduler_name(Scheduler scheduler) {
  for (const auto& [known, name] : kSchedulers) {
    if (known == scheduler) {
      return name;
    }
  }
  return "";
}

Scheduler parse_scheduler(const std::string& name, const std::string& text) {
  std::vector<std::string> names;
  for (const auto& [known, known_name] : kSchedulers) {
    if (known_name == text) {
      return known;
    }
    names.emplace_back(known_name);
  }
  throw UsageError(name + ": got " + quote_bytes(text) + ", expected " + any_of(names));
}

std::string_view state_name(JobState state) {
  for (const auto& [known, name] : kStates) {
    if (known == state) {
      return name;
    }
  }
  return "";
}

std::optional<JobState> parse_state(std::string_view name) {
  for (const auto& [known, known_name] : kStates) {
    if (known_name == name) {
      return known;
    }
  }
  return std::nullopt;
}

bool is_over(JobState state) {
  return state == JobState::kDone || state == JobState::kCancelled || needs_resubmission(state);
}

bool needs_resubmission(JobState state) {
  switch (state) {
    case JobState::kPlanned:
    case JobState::kRefused:
    case JobState::kFailed:
    case JobState::kLost:
      return true;
    case JobState::kSubmitting:
    case JobState::kPending:
    case JobState::kRunning:
    case JobState::kHeld:
    case JobState::kDone:
    case JobState::kCancelled:
      break;
  }
  return false;
}

}  // namespace ddp::submit
