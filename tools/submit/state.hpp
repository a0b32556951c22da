// tools/submit/state.hpp - which jobs an out_dir has, on disk, whatever happens to this program.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/submit/job.hpp"

namespace ddp::submit {

/// The file out_dir/submissions.jsonl: one event per line, only ever appended to, each line on the
/// disk (fsync) before anything follows from it.
///
/// Note [Write-ahead]: that a job is about to be submitted is written before the scheduler is
/// asked, its id after the scheduler has answered. So after a crash a job is either not submitted,
/// or recorded, or "submitting": then the scheduler is asked for a job with its token. The lock
/// makes that safe: it is inherited by the command that submits, so whoever gets it knows that no
/// submission is under way any more, even if the program that started it was killed. A line that
/// was cut off by a crash is dropped: nothing has followed from it.
class StateFile {
 public:
  enum class Access {
    kRead,  ///< the file must be there; nothing is created or locked
    kWrite,  ///< locked against others; folder and file are made if need be
  };

  /// @throws UsageError if there is no state to read or what is there is no state,
  ///         TransientError if another program holds the lock too long
  StateFile(const std::string& out_dir, Access access);
  ~StateFile();
  StateFile(const StateFile&) = delete;
  StateFile& operator=(const StateFile&) = delete;

  static bool exists(const std::string& out_dir);

  const std::string& out_dir() const { return out_dir_; }
  const std::vector<Job>& jobs() const { return jobs_; }
  /// @throws UsageError if there is no such job
  const Job& job(int index) const;

  /// Names the attempt of a job to the scheduler: unique to this out_dir.
  std::string token(int index, int attempt) const;

  /// Records jobs that will be submitted, all of them or none.
  void plan(const std::vector<JobRequest>& requests);
  void submitting(int index, const std::string& token);
  void submitted(int index, const std::string& id);
  /// The scheduler did not take it.
  void refused(int index, const std::string& reason);
  /// What became of it; nothing is written if that is known already.
  void update(int index, JobState state, std::optional<int> exit_code, const std::string& reason);

  /// The lock, for a child that submits: see Note [Write-ahead].
  int lock_fd() const { return lock_fd_; }

 private:
  void take_lock();
  void read_all(bool repair);
  void apply(const std::string& line, std::size_t number);
  void apply_event(const nlohmann::json& event);
  void append(const nlohmann::ordered_json& event);

  std::string out_dir_;
  std::string path_;
  std::string id_;
  std::vector<Job> jobs_;
  int lock_fd_ = -1;
  int fd_ = -1;
};

}  // namespace ddp::submit
