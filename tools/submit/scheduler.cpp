// tools/submit/scheduler.cpp - what HTCondor and Slurm have in common.
#include "tools/submit/scheduler.hpp"

#include <regex>
#include <system_error>

#include "common/base/process.hpp"
#include "tools/submit/text.hpp"

namespace ddp::submit {
namespace {

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

std::optional<std::string> parse_id(const ClusterScheduler& scheduler, const std::string& out) {
  constexpr std::size_t kLongest = 200;
  std::smatch parts;
  const bool is_all =
      out.size() < kLongest && std::regex_match(out, parts, std::regex(scheduler.id_pattern));
  return is_all ? std::optional<std::string>(parts[1]) : std::nullopt;
}

std::string id_alone(const std::string& id) {
  return id.substr(0, id.find(';'));
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
