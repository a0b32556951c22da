// tools/submit/state.hpp - which jobs an out_dir has, on disk, whatever happens to this program.
#pragma once

#include <string>
#include <vector>

#include "tools/submit/job.hpp"

namespace ddp::submit {

// Files that appear whole or not at all, without locks. Each is written under another name that
// starts with a dot, taken by the disk (fsync), and given its name in one step. A process that is
// killed leaves such a dot file behind at most.

/// Whoever reads `path` finds the old text or the new one; after a power failure too, and then it
/// may be the old one. That is never wrong here, only late: the scheduler is asked again.
/// @throws Error if it cannot be written
void replace_file(const std::string& path, const std::string& text);

/// @return false if `path` is there already: of several that try, one wins
/// @throws Error if it cannot be written
bool create_file(const std::string& path, const std::string& text);

/// @throws Error if it cannot be made
void make_folders(const std::string& folder);

/// Note [No locks]: A call of submit with new jobs makes one file, whose name is the number of its
/// first job, and each attempt to have a job run is another:
///
///     out_dir/submissions/0.json       what was asked for: jobs 0 to 3, say; never changes
///     out_dir/submissions/2.1.json     how far the first attempt of job 2 has come
///     out_dir/submissions/4.json       jobs 4 and up
///
/// Who creates a file of jobs plans all of them; of two that want the same numbers, one fails and
/// takes the next. The file of an attempt is there before the scheduler is asked: whoever creates
/// it submits the job, and nobody else does; its changes replace it. So readers wait for nobody,
/// and no file system needs locks.
///
/// An attempt that is "submitting" is looked for in the scheduler, by its token, once it is known
/// that no process hands it over any more: see handover.hpp.
class State {
 public:
  /// Reads what is there, which may be nothing yet.
  /// @throws UsageError if it is damaged, or of an earlier version
  explicit State(const std::string& out_dir);

  /// Whether anything was ever submitted there.
  static bool exists(const std::string& out_dir);

  const std::string& out_dir() const { return out_dir_; }
  const std::vector<Job>& jobs() const { return jobs_; }
  /// @throws UsageError if there is no such job
  const Job& job(int index) const;

  /// Names the attempt of a job to the scheduler: unique to this out_dir.
  std::string token(int index, int attempt) const;

  /// Records jobs that will be submitted, all of them or none.
  /// @return false if another submit took these numbers: read the state anew
  /// @throws UsageError if the out_dir cannot be written
  bool plan(const std::vector<JobRequest>& requests);

  /// Begins the next attempt of a job. Only who gets true may have it run.
  /// @param machine of the submit that does
  /// @param id of the process that runs it, if it is local
  bool begin(int index, const Finding& finding, const std::string& machine = "",
             const std::string& id = "");
  /// What has become of the latest attempt. Nothing is written if that is known already, or if
  /// others have written meanwhile: then their word counts.
  void update(int index, const Finding& finding);
  void submitted(int index, const std::string& id);

  /// What others have written meanwhile about one job.
  const Job& read_again(int index);

 private:
  std::string jobs_path(std::size_t first) const;
  std::string attempt_path(int index, int attempt) const;
  void write_attempt(int index, const Attempt& attempt);

  std::string out_dir_;
  std::string folder_;
  std::string id_;
  std::vector<Job> jobs_;
};

}  // namespace ddp::submit
