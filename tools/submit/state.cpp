#include "tools/submit/state.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <thread>

#include "common/base/exit_codes.hpp"
#include "tools/submit/job_json.hpp"
#include "tools/submit/text.hpp"

namespace ddp::submit {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int kSchemaVersion = 1;
constexpr auto kLockPatience = std::chrono::seconds(60);
constexpr auto kLockPoll = std::chrono::milliseconds(20);

std::string reason_of(int error) {
  return std::generic_category().message(error);
}

[[noreturn]] void fail(const std::string& what, const std::string& path, int error) {
  throw Error(ExitCode::kTrainingFailed, "cannot " + what + " " + quote_path(path) + ": " +
                                             reason_of(error) +
                                             ", expected a folder that can be written");
}

std::int64_t now_unix_s() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

void sync_folder(const std::string& folder) {
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0 || fsync(fd) != 0) {
    const int error = errno;
    if (fd >= 0) {
      close(fd);
    }
    fail("sync", folder, error);
  }
  close(fd);
}

/// 64 random bits: two out_dirs never have the same, not even the same path used anew.
std::string random_id() {
  std::uint64_t bits = 0;
  if (getrandom(&bits, sizeof(bits), 0) != static_cast<ssize_t>(sizeof(bits))) {
    throw Error(ExitCode::kTrainingFailed, "getrandom: " + reason_of(errno));
  }
  constexpr std::string_view kHexDigits = "0123456789abcdef";
  std::string id;
  for (int i = 0; i < 16; ++i) {
    id += kHexDigits[(bits >> (4 * i)) & 15U];
  }
  return id;
}

std::string read_file(int fd, const std::string& path) {
  std::string text;
  std::string chunk(65536, '\0');
  for (;;) {
    const ssize_t count = pread(fd, chunk.data(), chunk.size(), static_cast<off_t>(text.size()));
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      fail("read", path, errno);
    }
    if (count == 0) {
      return text;
    }
    text.append(chunk, 0, static_cast<std::size_t>(count));
  }
}

}  // namespace

StateFile::StateFile(const std::string& out_dir, Access access)
    : out_dir_(out_dir), path_(out_dir + "/submissions.jsonl") {
  if (access == Access::kRead) {
    fd_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd_ < 0) {
      throw UsageError("cannot read " + quote_path(path_) + ": " + reason_of(errno) +
                       ", expected a folder that submit has written to");
    }
    read_all(false);
    return;
  }
  std::error_code error;
  std::filesystem::create_directories(out_dir_, error);
  if (error) {
    throw UsageError("cannot make " + quote_path(out_dir_) + ": " + error.message() +
                     ", expected a folder for out_dir");
  }
  take_lock();
  try {
    const bool is_new = !exists(out_dir_);
    fd_ = open(path_.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (fd_ < 0) {
      fail("write", path_, errno);
    }
    if (is_new) {
      sync_folder(out_dir_);
    }
    read_all(true);
    if (id_.empty()) {
      append({{"event", "created"}, {"version", kSchemaVersion}, {"id", random_id()}});
    }
  } catch (...) {
    close(lock_fd_);
    if (fd_ >= 0) {
      close(fd_);
    }
    throw;
  }
}

StateFile::~StateFile() {
  for (const int fd : {fd_, lock_fd_}) {
    if (fd >= 0) {
      close(fd);
    }
  }
}

bool StateFile::exists(const std::string& out_dir) {
  struct stat status = {};
  return stat((out_dir + "/submissions.jsonl").c_str(), &status) == 0;
}

void StateFile::take_lock() {
  const std::string path = out_dir_ + "/submissions.lock";
  lock_fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock_fd_ < 0) {
    throw UsageError("cannot write " + quote_path(path) + ": " + reason_of(errno) +
                     ", expected an out_dir that can be written");
  }
  const auto give_up = std::chrono::steady_clock::now() + kLockPatience;
  while (flock(lock_fd_, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    if (error != EWOULDBLOCK && error != EINTR) {
      close(lock_fd_);
      throw UsageError("cannot lock " + quote_path(path) + ": " + reason_of(error) +
                       ", expected an out_dir on a file system with locks");
    }
    if (std::chrono::steady_clock::now() > give_up) {
      close(lock_fd_);
      throw TransientError(quote_path(path) +
                           " is held by another submit or by a submission that is under way, "
                           "expected it to be free within a minute");
    }
    std::this_thread::sleep_for(kLockPoll);
  }
}

void StateFile::read_all(bool repair) {
  const std::string text = read_file(fd_, path_);
  const std::size_t complete = text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1;
  std::size_t number = 0;
  for (std::size_t start = 0; start < complete;) {
    const std::size_t end = text.find('\n', start);
    apply(text.substr(start, end - start), ++number);
    start = end + 1;
  }
  if (repair && complete < text.size()) {
    if (ftruncate(fd_, static_cast<off_t>(complete)) != 0 || fsync(fd_) != 0) {
      fail("repair", path_, errno);
    }
  }
}

void StateFile::apply(const std::string& line, std::size_t number) {
  const std::string place = quote_path(path_) + ":" + std::to_string(number) + ": ";
  try {
    apply_event(json::parse(line));
  } catch (const json::exception&) {
    throw UsageError(place + "got " + quote_bytes(line.substr(0, 60)) +
                     ", expected an event that submit wrote");
  } catch (const UsageError& error) {
    throw UsageError(place + error.what());
  }
}

void StateFile::apply_event(const json& event) {
  const std::string kind = event.at("event").get<std::string>();
  if ((kind == "created") != id_.empty()) {
    throw UsageError("event: got " + quote_bytes(kind) + ", expected " +
                     (id_.empty() ? "\"created\" first" : "\"created\" only once"));
  }
  if (kind == "created") {
    const json& version = event.at("version");
    if (version != kSchemaVersion) {
      throw UsageError("version: got " + shown(version) + ", expected " +
                       std::to_string(kSchemaVersion));
    }
    const std::string id = event.at("id").get<std::string>();
    check_name("id", id, "");
    id_ = id;
    return;
  }
  if (kind == "planned") {
    for (const json& request : event.at("requests")) {
      Job job;
      job.request = request_from_json(request);
      if (job.request.index != static_cast<int>(jobs_.size())) {
        throw UsageError("job: got " + std::to_string(job.request.index) + ", expected " +
                         std::to_string(jobs_.size()) + ", the next one");
      }
      jobs_.push_back(std::move(job));
    }
    return;
  }
  const int index = event.at("job").get<int>();
  if (index < 0 || index >= static_cast<int>(jobs_.size())) {
    throw UsageError("job: got " + std::to_string(index) + ", expected one that was planned");
  }
  Job& job = jobs_[static_cast<std::size_t>(index)];
  if (kind == "submitting") {
    if (event.at("attempt") != job.attempt + 1) {
      throw UsageError("attempt: got " + shown(event.at("attempt")) + ", expected " +
                       std::to_string(job.attempt + 1));
    }
    if (!job.id.empty()) {
      job.earlier_ids.push_back(job.id);
    }
    job.id.clear();
    job.exit_code.reset();
    job.reason.clear();
    job.token = event.at("token").get<std::string>();
    job.submitted_unix_s = event.at("time").get<std::int64_t>();
    job.state = JobState::kSubmitting;
    ++job.attempt;
  } else if (kind == "submitted") {
    job.id = event.at("id").get<std::string>();
    job.state = JobState::kPending;
  } else if (kind == "state") {
    const std::optional<JobState> state = parse_state(event.at("state").get<std::string>());
    if (!state) {
      throw UsageError("state: got " + shown(event.at("state")) +
                       ", expected one that submit knows");
    }
    job.state = *state;
    job.exit_code.reset();
    if (event.contains("exit_code")) {
      job.exit_code = event.at("exit_code").get<int>();
    }
    job.reason = event.value("reason", "");
  } else {
    throw UsageError("event: got " + quote_bytes(kind) + ", expected one that submit writes");
  }
}

void StateFile::append(const ordered_json& event) {
  // The scheduler's words, which a reason may repeat, may hold anything.
  const std::string line = event.dump(-1, ' ', false, json::error_handler_t::replace);
  const std::string text = line + '\n';
  const off_t before = lseek(fd_, 0, SEEK_END);
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t count = write(fd_, text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0) {
      const int error = errno;
      // A part of it must not become the start of the next line.
      [[maybe_unused]] const int undone = ftruncate(fd_, before);
      fail("write", path_, error);
    }
    done += static_cast<std::size_t>(count);
  }
  if (fsync(fd_) != 0) {
    fail("sync", path_, errno);
  }
  apply(line, 0);
}

const Job& StateFile::job(int index) const {
  if (index < 0 || index >= static_cast<int>(jobs_.size())) {
    throw UsageError("job " + std::to_string(index) + " is not in " + quote_path(path_) +
                     (jobs_.empty() ? ", which has none"
                                    : ", expected 0 to " + std::to_string(jobs_.size() - 1)));
  }
  return jobs_[static_cast<std::size_t>(index)];
}

std::string StateFile::token(int index, int attempt) const {
  return "submit-" + id_ + "-" + std::to_string(index) + "-" + std::to_string(attempt);
}

void StateFile::plan(const std::vector<JobRequest>& requests) {
  // One line, so that a crash cannot leave a part of a sweep.
  ordered_json event = {{"event", "planned"}, {"requests", ordered_json::array()}};
  for (const JobRequest& request : requests) {
    event["requests"].push_back(to_json(request));
  }
  append(event);
}

void StateFile::submitting(int index, const std::string& token) {
  append({{"event", "submitting"},
          {"job", index},
          {"attempt", job(index).attempt + 1},
          {"token", token},
          {"time", now_unix_s()}});
}

void StateFile::submitted(int index, const std::string& id) {
  append({{"event", "submitted"}, {"job", index}, {"id", id}});
}

void StateFile::refused(int index, const std::string& reason) {
  update(index, JobState::kRefused, std::nullopt, reason);
}

void StateFile::update(int index, JobState state, std::optional<int> exit_code,
                       const std::string& reason) {
  const Job& known = job(index);
  if (known.state == state && known.exit_code == exit_code && known.reason == reason) {
    return;
  }
  ordered_json event = {{"event", "state"}, {"job", index}, {"state", state_name(state)}};
  if (exit_code) {
    event["exit_code"] = *exit_code;
  }
  if (!reason.empty()) {
    event["reason"] = reason;
  }
  append(event);
}

}  // namespace ddp::submit
