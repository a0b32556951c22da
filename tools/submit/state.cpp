// tools/submit/state.cpp - the files of Note [No locks], read and written.
#include "tools/submit/state.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>
#include <system_error>

#include "common/base/hash.hpp"
#include "tools/submit/text.hpp"

/// An empty one is null.
template <typename T>
struct nlohmann::adl_serializer<std::optional<T>> {
  static void to_json(json& document, const std::optional<T>& value) {
    document = value ? json(*value) : json();
  }
  static void from_json(const json& document, std::optional<T>& value) {
    value = document.is_null() ? std::nullopt : std::optional<T>(document.get<T>());
  }
};

namespace ddp::submit {

// Enumerations are numbers in these files. Who changes their order, or a structure, changes kSeal.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Resources, nodes, cpus, memory_mb, gpus, gpu_memory_mb, time_s,
                                   account, partition, constraint, bid, transfer_files)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(JobRequest, index, name, folder, scheduler, command,
                                   processes_per_node, several, single, resources)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Finding, state, exit_code, reason)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Attempt, number, token, machine, id, earlier_ids,
                                   submitted_unix_s, finding)

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kFolder = "/submissions";
constexpr const char* kFirstVersion = "/submissions.jsonl";  // where the first version kept them
constexpr const char* kSeal = "submit state 3, checksum ";

[[noreturn]] void fail(const std::string& what, const std::string& path, int error) {
  throw Error(ExitCode::kTrainingFailed,
              fmt::format("cannot {} {}: {}, expected an out_dir that can be written", what,
                          quote_path(path), std::generic_category().message(error)));
}

/// 16 random hex digits: no two of them are ever the same.
std::string random_id() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

/// Has the disk take a file or a folder.
void sync(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const int error = fd < 0 || fsync(fd) != 0 ? errno : 0;
  close(fd);
  if (error != 0) {
    fail("write", path, error);
  }
}

/// Writes "a/.b.<random>" for "a/b". @return its path
std::string write_beside(const fs::path& path, const std::string& text) {
  const std::string temporary =
      (path.parent_path() / ("." + path.filename().string() + "." + random_id())).string();
  std::ofstream file(temporary, std::ios::binary);
  file << text << std::flush;
  if (!file) {
    const int error = errno;
    unlink(temporary.c_str());
    fail("write", path.string(), error);
  }
  sync(temporary);
  return temporary;
}

/// The first line of a file. Nothing that submit did not write reaches a scheduler.
std::string seal(const std::string& body) {
  return kSeal + Hash().update(body).hex();
}

std::string sealed(const json& document) {
  // The scheduler's words, which a reason may repeat, may hold anything.
  const std::string body = document.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
  return seal(body) + "\n" + body;
}

json read_sealed(const std::string& path) {
  const std::optional<std::string> text = read_text(path);
  if (!text) {
    refuse("cannot read {}: {}, expected what submit wrote", quote_path(path),
           std::generic_category().message(errno));
  }
  const std::size_t end = std::min(text->find('\n'), text->size());
  const std::string body = text->substr(std::min(end + 1, text->size()));
  if (text->substr(0, end) != seal(body)) {
    refuse_value(quote_path(path) + ":1",
                 quote_bytes(text->substr(0, std::min<std::size_t>(end, 80))),
                 "\"" + seal(body) + "\": it was damaged or changed");
  }
  return json::parse(body);
}

}  // namespace

void replace_file(const std::string& path, const std::string& text) {
  const std::string temporary = write_beside(path, text);
  if (rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    unlink(temporary.c_str());
    fail("write", path, error);
  }
}

bool create_file(const std::string& path, const std::string& text) {
  const std::string temporary = write_beside(path, text);
  // A link, because a rename would replace what is there.
  const int error = link(temporary.c_str(), path.c_str()) == 0 ? 0 : errno;
  std::error_code ignored;
  // Two links: a file server's answer was lost, and the second try found the first one's work.
  const bool is_ours = error == 0 || fs::hard_link_count(temporary, ignored) == 2;
  unlink(temporary.c_str());
  if (!is_ours && error != EEXIST) {
    fail("write", path, error);
  }
  sync(fs::path(path).parent_path().string());
  return is_ours;
}

void make_folders(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    fail("make", folder, error.value());
  }
}

State::State(const std::string& out_dir) : out_dir_(out_dir), folder_(out_dir + kFolder) {
  if (const std::string first = out_dir + kFirstVersion; fs::exists(first)) {
    refuse("{} is an earlier version's, expected an out_dir of this submit", quote_path(first));
  }
  // The names first: all jobs whose files are named by then are there to be read afterwards.
  std::map<int, int> latest;
  int last_index = -1;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder_, error)) {
    static const std::regex kName("(\\d{1,9})(?:\\.(\\d{1,9}))?\\.json");
    const std::string name = entry.path().filename().string();
    std::smatch parts;
    if (name.front() == '.') {
      continue;  // left behind by a submit that was killed
    }
    if (!std::regex_match(name, parts, kName)) {
      refuse(
          "{} is none of this submit's, expected files like 0.json and 0.1.json; an earlier "
          "version's out_dir it does not know",
          quote_path(folder_ + "/" + name));
    }
    const int index = std::stoi(parts[1]);
    if (parts[2].matched) {
      latest[index] = std::max(latest[index], std::stoi(parts[2]));
    } else {
      last_index = std::max(last_index, index);
    }
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    refuse("cannot read {}: {}, expected the submissions of an out_dir", quote_path(folder_),
           error.message());
  }
  while (fs::exists(jobs_path(jobs_.size()))) {
    const json document = read_sealed(jobs_path(jobs_.size()));
    id_ = document.at("id").get<std::string>();
    for (const JobRequest& request : document.at("jobs").get<std::vector<JobRequest>>()) {
      jobs_.push_back({request, {}});
    }
  }
  for (const auto& [index, attempt] : latest) {
    last_index = std::max(last_index, index);
    if (index < static_cast<int>(jobs_.size())) {
      read_sealed(attempt_path(index, attempt))
          .get_to(jobs_[static_cast<std::size_t>(index)].attempt);
    }
  }
  if (last_index >= static_cast<int>(jobs_.size())) {
    refuse("{} has job {}, but {} is not there, expected all that submit wrote",
           quote_path(folder_), last_index, fs::path(jobs_path(jobs_.size())).filename().string());
  }
  if (id_.empty()) {
    id_ = random_id();
  }
}

bool State::exists(const std::string& out_dir) {
  return fs::exists(out_dir + kFolder) || fs::exists(out_dir + kFirstVersion);
}

const Job& State::job(int index) const {
  if (index < 0 || index >= static_cast<int>(jobs_.size())) {
    refuse(
        "job {} is not in {}{}", index, quote_path(folder_),
        jobs_.empty() ? ", which has none" : fmt::format(", expected 0 to {}", jobs_.size() - 1));
  }
  return jobs_[static_cast<std::size_t>(index)];
}

std::string State::token(int index, int attempt) const {
  return fmt::format("submit-{}-{}-{}", id_, index, attempt);
}

std::string State::jobs_path(std::size_t first) const {
  return fmt::format("{}/{}.json", folder_, first);
}

std::string State::attempt_path(int index, int attempt) const {
  return fmt::format("{}/{}.{}.json", folder_, index, attempt);
}

bool State::plan(const std::vector<JobRequest>& requests) {
  try {
    make_folders(folder_);
    if (!create_file(jobs_path(jobs_.size()), sealed({{"id", id_}, {"jobs", requests}}))) {
      return false;
    }
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
  for (const JobRequest& request : requests) {
    jobs_.push_back({request, {}});
  }
  return true;
}

bool State::begin(int index, const Finding& finding, const std::string& machine,
                  const std::string& id) {
  Attempt attempt = job(index).attempt;
  if (!attempt.id.empty()) {
    attempt.earlier_ids.push_back(attempt.id);
  }
  ++attempt.number;
  attempt.token = token(index, attempt.number);
  attempt.machine = machine;
  attempt.id = id;
  attempt.finding = finding;
  attempt.submitted_unix_s = std::time(nullptr);
  if (!create_file(attempt_path(index, attempt.number), sealed(attempt))) {
    return false;
  }
  jobs_[static_cast<std::size_t>(index)].attempt = attempt;
  return true;
}

void State::write_attempt(int index, const Attempt& attempt) {
  replace_file(attempt_path(index, attempt.number), sealed(attempt));
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
  attempt.finding = {JobState::kPending};
  write_attempt(index, attempt);
}

const Job& State::read_again(int index) {
  Job& job = jobs_.at(static_cast<std::size_t>(index));
  for (int next = std::max(job.attempt.number, 1); fs::exists(attempt_path(index, next)); ++next) {
    read_sealed(attempt_path(index, next)).get_to(job.attempt);
  }
  return job;
}

}  // namespace ddp::submit
