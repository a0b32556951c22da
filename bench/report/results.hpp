// bench/report/results.hpp - what was measured of each configuration, and the numbers that follow
// from it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/report/communication_model.hpp"
#include "bench/report/micro_results.hpp"
#include "bench/report/statistics.hpp"
#include "bench/run/configuration.hpp"
#include "bench/run/gpu_monitor.hpp"
#include "bench/run/metrics.hpp"

namespace ddp::bench {

/// The error of a configuration that Ctrl-C kept from being measured.
inline constexpr const char* kInterrupted = "interrupted before it was measured";

struct Parity {
  std::optional<double> moved;  ///< none: the run failed, or it is not a number
  std::optional<double> reference_moved;  ///< stage 01's
  bool ok = false;
};

/// One timed run.
struct Repetition {
  std::vector<Step> steps;  ///< warm-up dropped
  double median_ms = 0;
  double peak_rss_mib = 0;  ///< of the largest rank, 0: not known
  double job_peak_rss_mib = 0;  ///< the sum of all ranks' peaks, 0: not known
  double startup_ms = 0;
  std::optional<double> cpu_utilisation;
  std::optional<SlowestRank> slowest_rank;
  std::optional<GpuUsage> gpu;
};

/// What a step cannot be faster than, from this machine's measured limits.
struct Floor {
  double compute_ms = 0;  ///< the step's multiplications and additions at the GEMM rate
  double memory_ms = 0;  ///< its least memory traffic at the measured bandwidth
  double comm_ms = 0;  ///< its gradients at the best bus bandwidth of any backend and size
  double total_ms() const { return std::max(compute_ms, memory_ms) + comm_ms; }
};

/// The step without communication, and alpha-beta models of what communication adds.
struct Prediction {
  AllReduceAlgorithm algorithm = AllReduceAlgorithm::kRing;  ///< that fits the sweep better
  double compute_ms = 0;
  double comm_ms = 0;
  std::optional<double> ring_step_ms;
  std::optional<double> tree_step_ms;
  double step_ms() const { return compute_ms + comm_ms; }
};

/// What is known about one configuration. With an error, no speed of it is reported.
struct Result {
  Configuration configuration;
  std::string error;
  Parity parity;
  double parity_step_ms = 0;  ///< rough, from the parity run: plans the timed ones
  double overhead_s = 0;  ///< what a run takes besides its steps
  std::int64_t steps_per_epoch = 1;  ///< at least
  std::int64_t warmup_steps = 0;  ///< at most
  std::int64_t steps = 0;  ///< timed steps that each repetition has at least
  RunLength length;
  std::vector<std::optional<Repetition>> repetitions;  ///< one per block; none: it was not run
  std::vector<double> bucket_bytes;  ///< the all-reduces of a step
  std::optional<double> told_bytes_per_step;  ///< where they are not told one by one
  std::optional<double> alone_ms;  ///< these all-reduces with nothing else going on
  std::optional<double> no_comm_step_ms;
  std::optional<Floor> floor;
  std::optional<Prediction> prediction;

  bool has_speed() const;
  /// Over all repetitions.
  std::vector<double> samples_ms() const;
  Distribution step_ms() const;
  std::optional<double> samples_per_second() const;
  /// The median step, divided as the steps around it are.
  std::array<std::optional<double>, kPhases> phases_ms() const;
  std::optional<double> peak_rss_mib() const;
  std::optional<double> job_peak_rss_mib() const;
  std::optional<double> startup_ms() const;
  std::optional<double> cpu_utilisation() const;
  std::optional<GpuUsage> gpu() const;
  /// Of the repetition in which it stood out most clearly by its share of steps.
  std::optional<SlowestRank> slowest_rank() const;

  std::optional<double> bytes_per_step() const;  ///< 0 with one process, none if not known
  /// The step minus the same step without communication.
  std::optional<double> exposed_by_difference_ms() const;
  /// 1 - exposed / alone. Negative if the step waits longer than communication alone takes.
  std::optional<double> hidden_share() const;
  /// nccl-tests' definition: bytes / alone * 2 (n - 1) / n, in 1e9 bytes a second.
  std::optional<double> bus_bandwidth_gbps() const;
  /// Measured over predicted, minus 1.
  std::optional<double> residual() const;
};

/// The step times' ratio a / b, one pair per repetition.
struct Comparison {
  enum class Kind { kBaseline, kControl, kPeer };
  Kind kind = Kind::kBaseline;
  std::string a;
  std::string b;
  std::optional<double> ratio_median;
  std::optional<Interval> ci95;
  std::size_t pairs = 0;
  /// "faster", "slower" or "same" (see judge()); none where the A/A controls do not hold.
  std::optional<std::string> verdict;
};

/// What the A/A controls say about runs of one workload.
enum class Controls {
  kHold,
  kDiffer,  ///< the same command took another time
  kMissing,  ///< none was measured
};

/// What a job of many ranks would take if nothing changed but their number.
struct Extrapolation {
  std::string from;  ///< name of the run
  AllReduceAlgorithm algorithm = AllReduceAlgorithm::kRing;
  int world_size = 0;
  double step_ms = 0;
  std::optional<double> efficiency;
};

struct Report {
  std::vector<Result> results;
  std::vector<Comparison> comparisons;
  MicroResults micro;  ///< limits of the machine, all-reduce sweep, with --micro the pieces
  std::vector<CommunicationModel> communication_models;
  std::vector<Extrapolation> extrapolations;
  bool partial = false;  ///< interrupted
  bool failed() const;

  /// The stage 01 run that `result` is measured against; nullptr without one that has a speed.
  const Result* baseline_of(const Result& result) const;
  /// By name; nullptr if there is none.
  const Result* find(const std::string& name) const;
  /// With its stage 01.
  const Comparison* comparison_of(const Result& result) const;
  /// Of the workload of `result`: the controls with one process, or those with several.
  Controls controls(const Result& result, bool several) const;
  /// samples/s relative to the baseline's.
  std::optional<double> relative_speedup(const Result& result) const;
  /// relative_speedup / world size: for weak scaling t(01) / t(N), for strong the speed-up per
  /// rank.
  std::optional<double> efficiency(const Result& result) const;
};

/// Fills report.comparisons: every run with its stage 01, originals with their controls, stages
/// with peers of the same world size.
void compare(Report& report);

}  // namespace ddp::bench
