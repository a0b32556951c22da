// tools/submit/scheduler.cpp - what HTCondor and Slurm have in common.
#include "tools/submit/scheduler.hpp"

#include <algorithm>
#include <iterator>
#include <regex>
#include <system_error>

#include "common/base/process.hpp"
#include "tools/submit/text.hpp"

namespace ddp::submit {
namespace {

/// A variable with which Slurm's commands are told what to do.
bool is_told_to_slurm(std::string_view variable) {
  constexpr std::string_view kStarts[] = {"SLURM_",  "SBATCH_", "SRUN_",   "SALLOC_",
                                          "SQUEUE_", "SACCT_",  "SCANCEL_"};
  // Where the cluster is, and who asks.
  constexpr std::string_view kKept[] = {
      "SLURM_CONF=", "SLURM_CONF_SERVER=", "SLURM_CLUSTERS=", "SLURM_JWT=", "SLURM_SACK_"};
  const auto starts = [variable](std::string_view start) { return variable.starts_with(start); };
  return std::any_of(std::begin(kStarts), std::end(kStarts), starts) &&
         std::none_of(std::begin(kKept), std::end(kKept), starts);
}

/// The first line that says something.
std::string first_words(const std::string& text) {
  for (const std::string& line : split(text, '\n')) {
    if (line.find_first_not_of(" \t\r") != std::string::npos) {
      return ": " + quote_bytes(line);
    }
  }
  return "";
}

}  // namespace

JobId parse_job_id(const std::string& id) {
  const std::vector<std::string> parts = split(id, ';', 2);
  const std::size_t end = std::min(parts[0].find_first_of("._"), parts[0].size());
  return {parts[0].substr(0, end), parts[0].substr(std::min(end + 1, parts[0].size())),
          parts.size() > 1 ? parts[1] : ""};
}

std::string job_id(Scheduler scheduler, const std::string& submission, int position, int count) {
  if (submission.empty() || count == 1) {
    return submission;
  }
  const JobId parts = parse_job_id(submission);
  const char separator = scheduler == Scheduler::kSlurm ? '_' : '.';
  return fmt::format("{}{}{}{}", parts.submission, separator, position,
                     submission.substr(parts.submission.size()));
}

bool is_submission_id(Scheduler scheduler, const std::string& id) {
  static const std::regex kSlurmId("[1-9]\\d{0,9}(;[A-Za-z0-9][\\w.-]{0,99})?");
  static const std::regex kNumber("[1-9]\\d{0,9}");
  return std::regex_match(id, scheduler == Scheduler::kSlurm ? kSlurmId : kNumber);
}

std::optional<std::string> parse_id(const ClusterScheduler& scheduler, const std::string& out,
                                    int count) {
  constexpr std::size_t kLongest = 200;
  std::smatch parts;
  const bool is_all = out.size() < kLongest &&
                      std::regex_match(out, parts, std::regex(scheduler.id_pattern)) &&
                      (!parts[2].matched || parts[2] == std::to_string(count - 1));
  return is_all ? std::optional<std::string>(parts[1]) : std::nullopt;
}

std::vector<std::vector<std::string>> CommandResult::rows(char separator, std::size_t parts) const {
  std::vector<std::vector<std::string>> rows;
  for (const std::string& line : split(ok() ? out : "", '\n')) {
    if (std::vector<std::string> row = split(line, separator, parts); row.size() == parts) {
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

CommandResult run_command(const std::vector<std::string>& argv, const std::string& cwd,
                          double timeout_s, int inherited_fd) {
  const std::string& name = argv.front();
  CommandResult result;
  if (name.find('/') == std::string::npos && !find_in_path(name)) {
    result.failure = name + " is not on PATH";
    return result;
  }
  CaptureOptions options;
  options.start.cwd = cwd;
  options.start.environment = environment_with({}, is_told_to_slurm);
  options.start.standing = Standing::kOurGroup;
  options.timeout_s = timeout_s;
  if (inherited_fd >= 0) {
    options.start.inherited_fds = {inherited_fd};
  }
  try {
    CapturedProcess process(argv, options);
    result.started = true;
    const CaptureResult ended = process.wait();
    result.out = ended.out;
    const std::string& said = ended.err.empty() ? ended.out : ended.err;
    if (ended.timed_out) {
      result.failure = fmt::format("{} gave no answer within {} s", name, timeout_s);
    } else if (ended.signal != 0) {
      result.failure =
          fmt::format("{} was ended by signal {}{}", name, ended.signal, first_words(said));
    } else if (ended.exit_code != 0) {
      result.failure = fmt::format("{} exited with {}{}", name, ended.exit_code, first_words(said));
    }
  } catch (const std::system_error& error) {
    result.failure = fmt::format("{}: {}", name, error.what());
  }
  return result;
}

void Lines::operator()(const char* name, const std::string& value) const {
  if (!value.empty()) {
    text += fmt::format("{}{}{}{}\n", start, name, between, value);
  }
}

void Lines::operator()(const char* name, std::optional<std::int64_t> value) const {
  (*this)(name, value ? std::to_string(*value) : "");
}

}  // namespace ddp::submit
