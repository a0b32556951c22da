// tools/submit/state.hpp - which jobs an out_dir has, on disk, whatever happens to this program.
#pragma once

#include <cstdint>
#include <map>
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

/// One submission to a scheduler, or one start on this machine, of jobs that were planned together.
struct Batch {
  std::vector<int> jobs;
  std::string token;  ///< see Attempt
  std::string machine;
  std::string id;  ///< of the whole submission; empty: not known
  std::int64_t submitted_unix_s = 0;
  std::vector<Finding> findings;  ///< of each job
};

/// Note [No locks]: A call of submit with new jobs makes one file, whose name is the number of its
/// first job, and each submission of some of them is another:
///
///     out_dir/submissions/0.json       what was asked for: jobs 0 to 3, say; never changes
///     out_dir/submissions/0.1.json     the first submission of jobs among them: which, and how far
///     out_dir/submissions/0.2.json     they have come; the second
///     out_dir/submissions/4.json       jobs 4 and up
///
/// Who creates a file of jobs plans all of them; of two that want the same numbers, one fails and
/// takes the next. The file of a submission is there before the scheduler is asked. Only who has
/// read the one before can create it: so nobody submits jobs that others have submitted meanwhile.
/// Its changes replace it. So readers wait for nobody, and no file system needs locks.
///
/// Nothing in these files comes from other people: they are read only if they, and their folder,
/// are this user's and nobody else may write them.
///
/// An attempt that is "submitting" is looked for in the scheduler, by its token, once it is known
/// that no process hands it over any more: see handover.hpp.
class State {
 public:
  /// Reads what is there, which may be nothing yet.
  /// @throws UsageError if it is damaged, of an earlier version, or others may have written it
  explicit State(const std::string& out_dir);

  /// Whether anything was ever submitted there.
  static bool exists(const std::string& out_dir);

  const std::string& out_dir() const { return out_dir_; }
  const std::vector<Job>& jobs() const { return jobs_; }
  /// @throws UsageError if there is no such job
  const Job& job(int index) const;

  /// Names a submission to the scheduler: unique to this out_dir.
  std::string token(int plan, int batch) const;
  /// Number of the first job that was planned with this one.
  int plan_of(int index) const;
  /// Number of the next submission of jobs that were planned with this one.
  int next_batch(int index) const;

  /// Records jobs that will be submitted, all of them or none.
  /// @param only_here for a dry run: nothing is written
  /// @return false if another submit took these numbers: read the state anew
  /// @throws UsageError if the out_dir cannot be written
  bool plan(const std::vector<JobRequest>& requests, bool only_here = false);

  /// Begins the next attempt of jobs of one plan. Only who gets true may have them run.
  /// @param machine of the submit that does
  /// @param id of the process that runs it, if it is local
  bool begin(const std::vector<int>& indices, const Finding& finding,
             const std::string& machine = "", const std::string& id = "");
  /// What has become of the jobs' latest attempts. Nothing is written of what is known already, or
  /// of what others have written meanwhile: then their word counts.
  void update(const std::map<int, Finding>& findings);
  void update(int index, const Finding& finding) { update({{index, finding}}); }
  /// @param id of the latest submission of the job, and of those in it with this one
  void submitted(int index, const std::string& id);

  /// What others have written meanwhile about one job, and which jobs of its plan they submitted.
  const Job& read_again(int index);

 private:
  bool write_plan(const std::vector<JobRequest>& requests) const;
  std::string jobs_path(std::size_t first) const;
  std::string batch_path(int plan, int batch) const;
  void read_batch(int plan, int batch);
  void write_batch(int plan, int batch);

  std::string out_dir_;
  std::string folder_;
  std::string id_;
  std::vector<Job> jobs_;
  std::map<int, std::vector<Batch>> batches_;  ///< of each plan, by its first job
};

}  // namespace ddp::submit
