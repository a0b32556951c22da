// tools/submit/state.cpp - the folders and files of Note [No locks], read and written.
#include "tools/submit/state.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <system_error>

#include "common/base/exit_codes.hpp"
#include "common/base/hash.hpp"
#include "tools/submit/files.hpp"
#include "tools/submit/presence.hpp"
#include "tools/submit/text.hpp"

namespace ddp::submit {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kJobsFile = "jobs.json";

/// The first line of a file. Nothing that submit did not write reaches a scheduler.
std::string seal(const std::string& body) {
  return "submit state 2, checksum " + Hash().update(body).hex();
}

std::string sealed(const ordered_json& document) {
  // The scheduler's words, which a reason may repeat, may hold anything.
  const std::string body = document.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
  return seal(body) + "\n" + body;
}

/// Hands the document of a file to `take`.
void read_sealed(const std::string& path, const std::function<void(const json&)>& take) {
  const std::optional<std::string> text = read_text(path);
  if (!text) {
    throw UsageError("cannot read " + quote_path(path) + ": " +
                     std::generic_category().message(errno) + ", expected what submit wrote");
  }
  const std::size_t end = std::min(text->find('\n'), text->size());
  const std::string body = text->substr(std::min(end + 1, text->size()));
  if (text->substr(0, end) != seal(body)) {
    refuse_value(quote_path(path) + ":1",
                 quote_bytes(text->substr(0, std::min<std::size_t>(end, 80))),
                 "\"" + seal(body) + "\": it was damaged or changed");
  }
  try {
    take(json::parse(body));
  } catch (const json::exception& error) {
    throw UsageError(quote_path(path) + ": " + error.what() + ", expected what submit wrote");
  }
}

std::string submissions_folder(const std::string& out_dir) {
  return out_dir + "/submissions";
}

std::string earlier_state(const std::string& out_dir) {
  return out_dir + "/submissions.jsonl";
}

/// The names in a folder that submit may have given; none if the folder is not there.
std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (std::string name = entry.path().filename().string(); name.front() != '.') {
      names.push_back(std::move(name));
    }
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    throw UsageError("cannot read " + quote_path(folder) + ": " + error.message() +
                     ", expected the submissions of an out_dir");
  }
  return names;
}

}  // namespace

State::State(const std::string& out_dir) : out_dir_(out_dir) {
  if (fs::exists(earlier_state(out_dir))) {
    throw UsageError(quote_path(earlier_state(out_dir)) +
                     " is of an earlier version of submit, which knows its jobs; expected another "
                     "out_dir");
  }
  const std::string folder = submissions_folder(out_dir);
  for (const std::string& name : names_in(folder)) {
    const std::optional<int> first = to_int(name);
    if (!first) {
      throw UsageError(quote_path(folder + "/" + name) +
                       " is none of submit's, expected the number of a job");
    }
    firsts_.push_back(*first);
  }
  std::sort(firsts_.begin(), firsts_.end());
  for (const int first : firsts_) {
    read_submission(first);
  }
  if (id_.empty()) {
    id_ = random_id();
  }
}

bool State::exists(const std::string& out_dir) {
  return fs::exists(submissions_folder(out_dir)) || fs::exists(earlier_state(out_dir));
}

void State::read_submission(int first) {
  const std::string folder = submissions_folder(out_dir_) + "/" + std::to_string(first);
  if (first != static_cast<int>(jobs_.size())) {
    throw UsageError(quote_path(folder) + " begins with job " + std::to_string(first) +
                     ", expected " + std::to_string(jobs_.size()) + ", the next one");
  }
  read_sealed(folder + "/" + kJobsFile, [this](const json& document) {
    id_ = document.at("id").get<std::string>();
    for (const json& request : document.at("jobs")) {
      jobs_.push_back({request_from_json(request), {}});
    }
  });
  std::map<int, int> latest;
  for (const std::string& name : names_in(folder)) {
    const std::vector<std::string> parts = split(name, '.');
    const std::optional<int> index = to_int(parts[0]);
    const std::optional<int> attempt = parts.size() == 3 ? to_int(parts[1]) : std::nullopt;
    if (index && attempt && *index >= first && *index < static_cast<int>(jobs_.size())) {
      latest[*index] = std::max(latest[*index], *attempt);
    }
  }
  for (const auto& [index, attempt] : latest) {
    read_sealed(attempt_path(index, attempt), [this, index](const json& document) {
      jobs_[static_cast<std::size_t>(index)].attempt = attempt_from_json(document);
    });
  }
}

const Job& State::job(int index) const {
  if (index < 0 || index >= static_cast<int>(jobs_.size())) {
    throw UsageError("job " + std::to_string(index) + " is not in " +
                     quote_path(submissions_folder(out_dir_)) +
                     (jobs_.empty() ? ", which has none"
                                    : ", expected 0 to " + std::to_string(jobs_.size() - 1)));
  }
  return jobs_[static_cast<std::size_t>(index)];
}

std::string State::token(int index, int attempt) const {
  return "submit-" + id_ + "-" + std::to_string(index) + "-" + std::to_string(attempt);
}

std::string State::attempt_path(int index, int attempt) const {
  const int first = *std::prev(std::upper_bound(firsts_.begin(), firsts_.end(), index));
  return submissions_folder(out_dir_) + "/" + std::to_string(first) + "/" + std::to_string(index) +
         "." + std::to_string(attempt) + ".json";
}

bool State::plan(const std::vector<JobRequest>& requests) {
  ordered_json document = {{"id", id_}, {"jobs", ordered_json::array()}};
  for (const JobRequest& request : requests) {
    document["jobs"].push_back(to_json(request));
  }
  const std::string folder = submissions_folder(out_dir_);
  const int first = static_cast<int>(jobs_.size());
  try {
    make_folders(folder);
    if (!create_folder(folder + "/" + std::to_string(first), kJobsFile, sealed(document))) {
      return false;
    }
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
  firsts_.push_back(first);
  for (const JobRequest& request : requests) {
    jobs_.push_back({request, {}});
  }
  return true;
}

bool State::begin(int index, const Finding& finding, const std::string& id) {
  Attempt attempt = job(index).attempt;
  if (!attempt.id.empty()) {
    attempt.earlier_ids.push_back(attempt.id);
  }
  ++attempt.number;
  attempt.token = token(index, attempt.number);
  attempt.machine = this_machine();
  attempt.id = id;
  attempt.finding = finding;
  attempt.submitted_unix_s = std::chrono::duration_cast<std::chrono::seconds>(
                                 std::chrono::system_clock::now().time_since_epoch())
                                 .count();
  if (!create_file(attempt_path(index, attempt.number), sealed(to_json(attempt)))) {
    return false;
  }
  jobs_[static_cast<std::size_t>(index)].attempt = attempt;
  return true;
}

void State::write_attempt(int index, const Attempt& attempt) {
  replace_file(attempt_path(index, attempt.number), sealed(to_json(attempt)));
  read_again(index);  // a reason's bytes may have become UTF-8 on the way
}

void State::update(int index, const Finding& finding) {
  Attempt attempt = job(index).attempt;
  if (attempt.finding != finding && read_again(index).attempt == attempt) {
    attempt.finding = finding;
    write_attempt(index, attempt);
  }
}

void State::submitted(int index, const std::string& id) {
  Attempt attempt = job(index).attempt;
  attempt.id = id;
  attempt.finding = {JobState::kPending, std::nullopt, ""};
  write_attempt(index, attempt);
}

const Job& State::read_again(int index) {
  Job& job = jobs_.at(static_cast<std::size_t>(index));
  for (int next = std::max(job.attempt.number, 1); fs::exists(attempt_path(index, next)); ++next) {
    read_sealed(attempt_path(index, next),
                [&job](const json& document) { job.attempt = attempt_from_json(document); });
  }
  return job;
}

}  // namespace ddp::submit
