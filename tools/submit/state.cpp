// tools/submit/state.cpp - the files of Note [No locks], read and written.
#include "tools/submit/state.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>
#include <system_error>

#include "common/base/hash.hpp"
#include "common/base/process.hpp"
#include "tools/submit/scheduler.hpp"
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
                                   processes_per_node, several, single, limit, resources)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Finding, state, exit_code, reason)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Batch, jobs, token, machine, id, submitted_unix_s, findings)

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kFolder = "/submissions";
constexpr const char* kFirstVersion = "/submissions.jsonl";  // where the first version kept them
constexpr const char* kSeal = "submit state 4, checksum ";

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

/// Writes "a/.b.<random>" for "a/b", which only this user can read: arguments may hold passwords.
/// @return its path
std::string write_beside(const fs::path& path, const std::string& text) {
  const std::string temporary =
      (path.parent_path() / ("." + path.filename().string() + "." + random_id())).string();
  const FileDescriptor fd(open(
      temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR));
  std::string_view rest = text;
  while (fd.is_open() && !rest.empty()) {
    const ssize_t written = write(fd.get(), rest.data(), rest.size());
    if (written <= 0 && errno != EINTR) {
      break;
    }
    rest.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(written, 0)));
  }
  if (!fd.is_open() || !rest.empty() || fsync(fd.get()) != 0) {
    const int error = errno;
    unlink(temporary.c_str());
    fail("write", path.string(), error);
  }
  return temporary;
}

/// @throws UsageError unless it is this user's and nobody else may write it
void check_ours(const std::string& path, const struct stat& status) {
  if (status.st_uid != geteuid()) {
    refuse("{} belongs to user {}, expected your own (user {})", quote_path(path), status.st_uid,
           geteuid());
  }
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    refuse("{} has mode {:04o}, expected one that only you may write (chmod go-w)",
           quote_path(path), status.st_mode & 07777U);
  }
}

/// The text of a file that is ours; nothing if it cannot be read.
/// @throws UsageError as above
std::optional<std::string> read_ours(const std::string& path) {
  const FileDescriptor fd(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  struct stat status = {};
  if (!fd.is_open() || fstat(fd.get(), &status) != 0) {
    return std::nullopt;
  }
  check_ours(path, status);
  std::string text(static_cast<std::size_t>(status.st_size), '\0');
  std::size_t length = 0;
  ssize_t got = 0;
  while ((got = read(fd.get(), text.data() + length, text.size() - length)) > 0) {
    length += static_cast<std::size_t>(got);
  }
  text.resize(length);
  return got == 0 ? std::optional(text) : std::nullopt;
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
  const std::optional<std::string> text = read_ours(path);
  if (!text) {
    refuse("cannot read {}: {}, expected what submit wrote", quote_path(path),
           std::generic_category().message(errno));
  }
  const std::size_t end = std::min(text->find('\n'), text->size());
  const std::string body = text->substr(std::min(end + 1, text->size()));
  if (text->substr(0, end) != seal(body)) {
    refuse_value(quote_path(path) + ":1",
                 quote_bytes(text->substr(0, std::min<std::size_t>(end, 80))),
                 "\"" + seal(body) + "\": it was damaged or changed, or is another version's");
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
  struct stat status = {};
  if (lstat(folder_.c_str(), &status) == 0) {
    check_ours(folder_, status);
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
    batches_[static_cast<int>(jobs_.size())];
    for (const JobRequest& request : document.at("jobs").get<std::vector<JobRequest>>()) {
      jobs_.push_back({request, {}});
    }
  }
  for (const auto& [plan, batch] : latest) {
    last_index = std::max(last_index, plan);
    if (plan < static_cast<int>(jobs_.size()) && !batches_.contains(plan)) {
      refuse("{} is none of this submit's, expected the number of a planned job in front",
             quote_path(batch_path(plan, batch)));
    }
    for (int i = 1; i <= batch && plan < static_cast<int>(jobs_.size()); ++i) {
      read_batch(plan, i);
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

std::string State::token(int plan, int batch) const {
  return fmt::format("submit-{}-{}-{}", id_, plan, batch);
}

int State::plan_of(int index) const {
  return std::prev(batches_.upper_bound(job(index).request.index))->first;
}

int State::next_batch(int index) const {
  return static_cast<int>(batches_.at(plan_of(index)).size()) + 1;
}

std::string State::jobs_path(std::size_t first) const {
  return fmt::format("{}/{}.json", folder_, first);
}

std::string State::batch_path(int plan, int batch) const {
  return fmt::format("{}/{}.{}.json", folder_, plan, batch);
}

bool State::plan(const std::vector<JobRequest>& requests, bool only_here) {
  if (only_here) {
    // It gets its number, which tokens start with, when it is first written to.
    id_ = jobs_.empty() ? "NEW" : id_;
  } else if (!write_plan(requests)) {
    return false;
  }
  batches_[static_cast<int>(jobs_.size())];
  for (const JobRequest& request : requests) {
    jobs_.push_back({request, {}});
  }
  return true;
}

bool State::write_plan(const std::vector<JobRequest>& requests) const {
  try {
    std::error_code error;
    fs::create_directories(out_dir_, error);
    if (error || (mkdir(folder_.c_str(), S_IRWXU) != 0 && errno != EEXIST)) {
      fail("make", folder_, error ? error.value() : errno);
    }
    return create_file(jobs_path(jobs_.size()), sealed({{"id", id_}, {"jobs", requests}}));
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
}

bool State::begin(const std::vector<int>& indices, const Finding& finding,
                  const std::string& machine, const std::string& id) {
  const int plan = plan_of(indices.front());
  const int number = next_batch(plan);
  const Batch batch = {indices, token(plan, number), machine,
                       id,      std::time(nullptr),  std::vector(indices.size(), finding)};
  if (!create_file(batch_path(plan, number), sealed(batch))) {
    return false;
  }
  read_batch(plan, number);
  return true;
}

/// Reads a submission, and what it says about the jobs whose latest one it is.
void State::read_batch(int plan, int number) {
  const std::string path = batch_path(plan, number);
  std::vector<Batch>& batches = batches_.at(plan);
  batches.resize(std::max(batches.size(), static_cast<std::size_t>(number)));
  Batch& batch = batches[static_cast<std::size_t>(number) - 1];
  read_sealed(path).get_to(batch);
  const int count = static_cast<int>(batch.jobs.size());
  if (count == 0 || batch.findings.size() != batch.jobs.size()) {
    refuse_value(quote_path(path), fmt::format("{} jobs", count), "jobs, and what became of each");
  }
  for (int position = 0; position < count; ++position) {
    const int index = batch.jobs[static_cast<std::size_t>(position)];
    if (plan_of(index) != plan) {
      refuse_value(quote_path(path), fmt::format("job {}", index), "one of those planned together");
    }
    Job& job = jobs_[static_cast<std::size_t>(index)];
    if (!batch.id.empty() && !is_submission_id(job.request.scheduler, batch.id)) {
      refuse_value(quote_path(path), "the id " + quote_bytes(batch.id),
                   fmt::format("one of {}", scheduler_name(job.request.scheduler)));
    }
    Attempt& attempt = job.attempt;
    if (attempt.batch > number) {
      continue;
    }
    if (attempt.batch < number) {
      if (!attempt.id.empty()) {
        attempt.earlier_ids.push_back(attempt.id);
      }
      ++attempt.number;
    }
    attempt.plan = plan;
    attempt.batch = number;
    attempt.position = position;
    attempt.count = count;
    attempt.token = batch.token;
    attempt.machine = batch.machine;
    attempt.id = job_id(job.request.scheduler, batch.id, position, count);
    attempt.submitted_unix_s = batch.submitted_unix_s;
    attempt.finding = batch.findings[static_cast<std::size_t>(position)];
  }
}

void State::write_batch(int plan, int number) {
  replace_file(batch_path(plan, number),
               sealed(batches_.at(plan)[static_cast<std::size_t>(number) - 1]));
  read_batch(plan, number);  // a reason's bytes may have become UTF-8 on the way
}

void State::update(const std::map<int, Finding>& findings) {
  std::map<std::pair<int, int>, std::map<int, Attempt>> news;  // by plan and submission
  for (const auto& [index, finding] : findings) {
    const Attempt& attempt = job(index).attempt;
    if (attempt.finding != finding) {
      news[{attempt.plan, attempt.batch}].emplace(index, attempt);
    }
  }
  for (const auto& [where, attempts] : news) {
    const auto& [plan, number] = where;
    read_again(attempts.begin()->first);
    bool has_changed = false;
    for (const auto& [index, attempt] : attempts) {
      if (job(index).attempt == attempt) {
        Batch& batch = batches_.at(plan)[static_cast<std::size_t>(number) - 1];
        batch.findings[static_cast<std::size_t>(attempt.position)] = findings.at(index);
        has_changed = true;
      }
    }
    if (has_changed) {
      write_batch(plan, number);
    }
  }
}

void State::submitted(int index, const std::string& id) {
  const Attempt attempt = job(index).attempt;
  Batch& batch = batches_.at(attempt.plan)[static_cast<std::size_t>(attempt.batch) - 1];
  batch.id = id;
  for (Finding& finding : batch.findings) {
    finding = {JobState::kPending};
  }
  write_batch(attempt.plan, attempt.batch);
}

const Job& State::read_again(int index) {
  const int plan = plan_of(index);
  if (const int known = job(index).attempt.batch; known > 0) {
    read_batch(plan, known);
  }
  for (int next = next_batch(index); fs::exists(batch_path(plan, next)); ++next) {
    read_batch(plan, next);
  }
  return job(index);
}

}  // namespace ddp::submit
