// bench/micro/team.hpp - this process among the ranks: the group that is open, and rank 0's orders.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/micro/exercise.hpp"
#include "bench/micro/lockstep.hpp"
#include "bench/micro/options.hpp"
#include "common/parallel/process_group.hpp"

namespace ddp::micro {

class Team;

/// One benchmark as all ranks know it.
struct Entry {
  std::string name;  ///< in the report, "all_reduce/gloo/ranks:2/bytes:4"
  std::string backend;  ///< that must be open; empty: any is good
  std::function<Exercise(Team&)> make;
};

using ReportSeries = std::function<void(const Series&, const Exercise&)>;

/// The ranks of one run. One backend at a time connects them: an idle one may keep threads busy.
class Team {
 public:
  /// Connects the ranks, if there are several, by one of `options.backends`.
  /// @param options must outlive this object
  /// @throws UsageError if several backends are asked for where a launcher started the ranks
  Team(const MicroOptions& options, LaunchEnvironment environment);

  int rank() const { return environment_.rank; }
  int world_size() const { return environment_.world_size; }
  const torch::Device& device() const { return device_; }
  Lockstep& lockstep() { return *lockstep_; }
  /// There is none with one rank.
  const ProcessGroup& group() const { return *group_; }
  /// Each once, in the order of the command line; in place of "auto" what it is.
  const std::vector<std::string>& backends() const { return backends_; }

  /// Rank 0: all ranks measure entry `index`.
  /// @param iterations as in ddp::micro::measure()
  /// @param report called with what was measured, and the exercise @throws WrongResult
  void lead(const std::vector<Entry>& entries, size_t index, std::int64_t iterations,
            const ReportSeries& report);
  /// The other ranks: do as rank 0 says until it dismisses them.
  void follow(const std::vector<Entry>& entries);
  /// All ranks together: rank 0 dismisses the others, and the connections are closed.
  void leave();

 private:
  void carry_out(const Entry& entry, std::int64_t iterations, const ReportSeries& report);
  void open(const std::string& backend);

  const MicroOptions& options_;
  LaunchEnvironment environment_;
  torch::Device device_;
  std::vector<std::string> backends_;
  std::unique_ptr<ProcessGroup> group_;  // before the lockstep, which uses it
  std::unique_ptr<Lockstep> lockstep_;
};

}  // namespace ddp::micro
