// bench/report/record.hpp - the record of a report: every field of the JSON object ddp_scaling,
// named once. The terminal, the document and compare all read these structs;
// docs/bench.md and report.schema.json say what each field means.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/report/fields.hpp"
#include "bench/report/statistics.hpp"

namespace ddp::bench {

inline constexpr int kSchemaVersion = 2;

/// What follows a run's name in the names that Google Benchmark's tools see.
inline constexpr const char* kBenchmarkSuffix = "/iterations:1/manual_time";

/// The parts of a step, in the order in which they happen.
enum Phase : std::size_t {
  kData,
  kForward,
  kBackward,
  kExposedComm,  ///< waiting that even the rank that waits least has
  kImbalance,  ///< waiting beyond that, for ranks that come late
  kOptimizer,
  kPhases
};
inline constexpr std::array<const char*, kPhases> kPhaseNames = {
    "data", "forward", "backward", "exposed_comm", "imbalance", "optimizer"};
using PhaseTimes = std::array<std::optional<double>, kPhases>;

/// Of an all-reduce, in a model; see communication_model.hpp.
enum class AllReduceAlgorithm { kRing, kTree };
/// "ring" or "tree".
const char* to_string(AllReduceAlgorithm algorithm);

/// nccl-tests' bus bandwidth over bytes / time: comparable between world sizes.
inline double bus_factor(int world_size) {
  return 2.0 * (world_size - 1) / world_size;
}

/// How fast a rank reads and writes so many bytes over and over: in its share of the caches, if
/// they fit in there.
struct MemoryRate {
  std::int64_t bytes = 0;
  std::optional<double> gbps{};  ///< GB/s (1e9)
  DDP_FIELDS(bytes, gbps);
};

/// What one rank can do while `world_size` of them do it at the same time.
struct Limit {
  std::string device;  ///< "cpu" or "cuda"
  int world_size = 1;
  std::optional<double> fp32_gflops{};
  std::optional<double> memory_bandwidth_gbps{};  ///< of more bytes than any cache holds
  std::vector<MemoryRate> memory{};  ///< ascending
  std::optional<double> kernel_launch_us{};  ///< none on the CPU
  DDP_FIELDS(device, world_size, fp32_gflops, memory_bandwidth_gbps, memory, kernel_launch_us);
  static constexpr const char* kMayLack = "memory";

  bool is_of_same(const Limit& other) const {
    return device == other.device && world_size == other.world_size;
  }
};

/// One all-reduce of fp32 values, on its slowest rank.
struct AllReduceSample {
  std::string backend;
  std::string device;
  int world_size = 2;
  std::int64_t bytes = 0;
  Distribution time_us{};
  std::optional<double> algorithm_bandwidth_gbps{};
  std::optional<double> bus_bandwidth_gbps{};
  std::optional<double> pass_spread{};  ///< p90 / p10 of the passes' medians; none with one pass
  int nodes = 1;
  DDP_FIELDS(backend, device, world_size, bytes, time_us, algorithm_bandwidth_gbps,
             bus_bandwidth_gbps, pass_spread, nodes);
  static constexpr const char* kMayLack = "nodes";

  /// Its passes differ so much that no single number describes it.
  bool is_unstable() const;
};

/// A piece of a step, timed alone.
struct PieceResult {
  std::string name;  ///< "optimizer/sgd/flat/S"
  Distribution time_us{};
  std::optional<std::int64_t> bytes{};  ///< that must at least be read and written
  std::optional<double> bandwidth_gbps{};
  DDP_FIELDS(name, time_us, bytes, bandwidth_gbps);
};

/// Sizes over which alpha and beta are the same: a backend may switch its protocol, and data may
/// outgrow a cache.
struct AlphaBetaRegime {
  std::int64_t from_bytes = 0;  ///< to the next regime's
  double alpha_us = 0;
  double beta_us_per_mib = 0;
  DDP_FIELDS(from_bytes, alpha_us, beta_us_per_mib);
};

struct CommunicationModel {
  std::string backend;
  std::string device;
  /// None: alpha + bytes x beta at the one world size that was measured, which tells none.
  std::optional<AllReduceAlgorithm> algorithm;
  std::vector<int> world_sizes;  ///< that were measured, ascending
  std::vector<AlphaBetaRegime> regimes;  ///< ascending, from 0 bytes
  double median_relative_error = 0;  ///< of the model at the measured points: 0.1 is 10 %
  std::optional<double> worst_relative_error;
  /// The worst at the points of a world size that the model was not fitted to, each left out once;
  /// none with fewer than three.
  std::optional<double> leave_one_out_error;
  std::size_t points = 0;
  bool across_nodes = false;  ///< over a network, which is no backend's shared memory or links
  DDP_FIELDS(backend, device, algorithm, world_sizes, regimes, median_relative_error,
             worst_relative_error, leave_one_out_error, points, across_nodes);
  static constexpr const char* kMayLack = "across_nodes";

  /// Microseconds, 0 for one rank. Beyond what was measured it is an extrapolation.
  /// @return nothing for fewer ranks than one, for bytes that are negative or not a number, and
  /// without an algorithm for other world sizes than the measured one
  std::optional<double> predict_us(double bytes, int world_size) const;
};

/// The all-reduces of a run's steps.
struct Communication {
  std::optional<double> alone_ms;  ///< with nothing else going on
  /// 1 - exposed / alone. Negative if the step waits longer than communication alone takes. None
  /// where its interval holds 0, likewise the next.
  std::optional<double> hidden_share;
  std::optional<Interval> hidden_share_ci95;
  std::optional<double> bytes_per_step;  ///< 0 with one process
  std::optional<double> bus_bandwidth_gbps;
  std::optional<double> exposed_by_difference_ms;  ///< the step minus the one without, by blocks
  std::optional<Interval> exposed_by_difference_ci95_ms;
  std::vector<double> bucket_bytes;  ///< in the order in which they start
  DDP_FIELDS(alone_ms, hidden_share, hidden_share_ci95, bytes_per_step, bus_bandwidth_gbps,
             exposed_by_difference_ms, exposed_by_difference_ci95_ms, bucket_bytes);
};

/// The step without communication, and alpha-beta models of what communication adds.
struct Prediction {
  std::optional<AllReduceAlgorithm> algorithm{};  ///< none: the sweep does not tell
  std::optional<double> compute_ms{};
  std::optional<double> comm_ms{};
  std::optional<double> ring_step_ms{};
  std::optional<double> tree_step_ms{};
  std::optional<double> residual{};  ///< measured over predicted, minus 1: see paired_ratio()
  std::optional<std::string> reason{};  ///< for having none, if the model is at fault
  DDP_FIELDS(algorithm, compute_ms, comm_ms, ring_step_ms, tree_step_ms, residual, reason);
};

/// What a step cannot be faster than, from this machine's measured limits: each alone, since all of
/// them may happen at once.
struct Floor {
  std::optional<double> compute_ms;  ///< its multiplications and additions at the GEMM rate
  std::optional<double> memory_ms;  ///< its least memory traffic at the measured bandwidth
  std::optional<double> comm_ms;  ///< its gradients at the best bandwidth of any exchange
  std::optional<double> launch_ms;  ///< one kernel's launch; none on the CPU
  DDP_FIELDS(compute_ms, memory_ms, comm_ms, launch_ms);
};

/// Means over the samples of a run and over the GPUs that it used; memory is the largest sum over
/// them.
struct GpuUsage {
  double utilisation_percent = 0;
  double power_w = 0;
  double memory_mib = 0;
  std::optional<double> energy_j_per_sample{};  ///< of all GPUs together, in the timed steps
  DDP_FIELDS(utilisation_percent, power_w, memory_mib, energy_j_per_sample);
};

/// The rank that the others wait for. Waiting makes all steps equally long, so a slow rank shows
/// in what it needs besides waiting.
struct SlowestRank {
  int rank = 0;
  double share_of_steps = 0;  ///< in which it was the busiest
  double median_excess = 0;  ///< its median over the median of the other ranks', minus 1
  /// Over the launches, in each of which some rank is late.
  std::optional<Interval> excess_ci95{};
  DDP_FIELDS(rank, share_of_steps, median_excess, excess_ci95);
  static constexpr const char* kMayLack = "excess_ci95";
};

struct Parity {
  std::optional<double> moved;  ///< none: the run failed, or it is not a number
  std::optional<double> reference_moved;  ///< stage 01's
  bool ok = false;
  DDP_FIELDS(moved, reference_moved, ok);
};

/// One launch of a run's program, as it was timed.
struct Repetition {
  std::optional<std::string> started;  ///< UTC, "2026-01-02T03:04:05Z"
  std::vector<double> samples_ms;  ///< the timed steps of the job, in order
  std::vector<std::vector<double>> rank_samples_ms;  ///< [rank][step]: its own; none of one process
  std::optional<double> median_ms;  ///< of samples_ms
  std::optional<double> no_comm_median_ms;  ///< of the block's run without communication
  std::optional<double> wall_samples_per_second;  ///< by the clock, over all timed steps
  std::optional<double> startup_ms;
  // Of all ranks, while they make steps.
  std::optional<std::int64_t> minor_faults;
  std::optional<std::int64_t> major_faults;
  std::optional<std::int64_t> voluntary_switches;
  std::optional<std::int64_t> involuntary_switches;
  // Of the machine, while the launch lasted.
  std::optional<double> steal_share;  ///< of the processors' time, taken by the host
  std::optional<double> others_busy_share;  ///< of the processors' time, used by other programs
  std::optional<std::string> affinity;  ///< "0-3"
  std::optional<std::string> scheduling;  ///< "other", "fifo 5"
  DDP_FIELDS(started, samples_ms, rank_samples_ms, median_ms, no_comm_median_ms,
             wall_samples_per_second, startup_ms, minor_faults, major_faults, voluntary_switches,
             involuntary_switches, steal_share, others_busy_share, affinity, scheduling);
  static constexpr const char* kMayLack = "samples_ms, rank_samples_ms, no_comm_median_ms";
};

/// k of n launches took clearly longer than the fastest one.
struct SlowLaunches {
  std::int64_t k = 0;
  std::int64_t n = 0;
  DDP_FIELDS(k, n);
};

/// What is known about one configuration. With an error, no speed of it is reported.
struct Run {
  std::string name;  ///< unique
  std::string kind = "stage";  ///< "stage", "peer", "control"
  std::string stage;  ///< the folder, or the peer's name
  std::string variant = "main";
  std::string launcher = "none";
  std::string backend = "none";
  std::string speedup = "none";
  double bucket_mib = 25;
  std::string gradient_compression = "none";
  bool shard_optimizer = false;
  std::string device = "cpu";
  std::string model;
  std::vector<std::int64_t> layers;  ///< features of input, hidden layers, output
  std::optional<std::int64_t> parameters;
  std::string scaling = "weak";
  int nodes = 1;
  int world_size = 1;
  int threads = 1;  ///< of each process
  std::optional<std::int64_t> lines_of_code;  ///< of the stage's source, or the peer's
  std::int64_t global_batch = 0;  ///< samples per step, over all ranks
  std::optional<double> flops;  ///< additions and multiplications of a step, over all ranks
  std::optional<std::int64_t> steps;  ///< timed ones of the shortest repetition
  std::vector<std::optional<Repetition>> repetitions;  ///< one per block; none: it was not run
  SlowLaunches slow_launches;
  Distribution step_ms;  ///< of all repetitions' steps
  std::optional<double> no_comm_step_ms;
  std::optional<double> samples_per_second;  ///< of the median step
  std::optional<double> wall_samples_per_second;  ///< of all timed steps, by the clock
  std::optional<double> gflops;  ///< flops / median step, 1e9 a second
  std::optional<double> relative_speedup;
  std::optional<double> efficiency;
  PhaseTimes phases_ms;  ///< the median step, divided as the steps around it are
  Communication comm;
  std::optional<double> predicted_step_ms;
  Prediction prediction;
  std::optional<double> floor_ms;
  Floor floor;
  /// "overhead", "arithmetic", "memory" or "communication": see bound_by().
  std::optional<std::string> bound;
  std::optional<double> peak_rss_mib;
  std::optional<double> job_peak_rss_mib;
  std::optional<double> peak_device_mib;
  std::optional<double> cpu_utilisation;
  std::optional<GpuUsage> gpu;
  std::optional<double> startup_ms;
  std::optional<SlowestRank> slowest_rank;
  std::optional<double> loss;  ///< on the held-out samples, median over repetitions
  std::optional<double> accuracy;  ///< likewise; none in a regression
  Parity parity;
  std::optional<std::string> error;
  DDP_FIELDS(name, kind, stage, variant, launcher, backend, speedup, bucket_mib,
             gradient_compression, shard_optimizer, device, model, layers, parameters, scaling,
             nodes, world_size, threads, lines_of_code, global_batch, flops, steps, repetitions,
             slow_launches, step_ms, no_comm_step_ms, samples_per_second, wall_samples_per_second,
             gflops, relative_speedup, efficiency, phases_ms, comm, predicted_step_ms, prediction,
             floor_ms, floor, bound, peak_rss_mib, job_peak_rss_mib, peak_device_mib,
             cpu_utilisation, gpu, startup_ms, slowest_rank, loss, accuracy, parity, error);
  /// Earlier reports lack these; the defaults are what they mean.
  static constexpr const char* kMayLack =
      "kind, bucket_mib, gradient_compression, shard_optimizer, layers, threads, repetitions, "
      "slow_launches";

  bool has_speed() const { return !error && step_ms.median; }
  /// A run of stage 01 that others are measured against.
  bool is_baseline() const;
  bool is_control() const { return kind == "control"; }
  bool is_peer() const { return kind == "peer"; }
  /// Stage 02: one process with `world_size` replicas.
  bool has_replicas() const;
  bool has_launcher() const { return launcher != "none" && launcher != "spawn"; }
  bool several_processes() const { return launcher != "none" && world_size > 1; }
  /// Several processes, replicas or threads wait for each other: whatever slows down one of them
  /// slows down all, so it takes a control of this kind to say how far equal runs differ.
  bool keeps_several_busy() const { return world_size > 1 || threads > 1; }
  /// The program with its variant and speed-up, for readers: "03_ddp_spawn fused", "pytorch tuned".
  std::string title() const;
  /// Of those repetitions that were run; none with an error.
  std::vector<double> known_medians_ms() const;
  /// Median of the repetitions' medians; of all steps if they are not told apart.
  std::optional<double> typical_step_ms() const;
};

/// The step times' ratio a / b, one pair per block.
struct Comparison {
  std::string kind = "baseline";  ///< "baseline", "control", "variant", "peer"
  std::string a;
  std::string b;
  std::optional<double> ratio_median{};  ///< see paired_ratio()
  std::optional<Interval> ci95{};
  std::size_t pairs = 0;
  /// "faster", "slower" or "same" (see judge()); none where the A/A controls do not hold.
  std::optional<std::string> verdict{};
  DDP_FIELDS(kind, a, b, ratio_median, ci95, pairs, verdict);
  static constexpr const char* kMayLack = "kind";
};

/// What a job of many ranks would take if nothing changed but their number.
struct Extrapolation {
  std::string from;  ///< name of the run
  AllReduceAlgorithm algorithm = AllReduceAlgorithm::kRing;
  int world_size = 0;
  double predicted_step_ms = 0;
  std::optional<double> efficiency;
  DDP_FIELDS(from, algorithm, world_size, predicted_step_ms, efficiency);
};

/// A sentence of the report.
struct Conclusion {
  std::string code;  ///< which question it answers, "fastest"
  std::vector<std::string> runs;  ///< names of those that it is about
  std::string text;
  DDP_FIELDS(code, runs, text);
};

/// A configuration whose weights were compared with stage 01's, and which was not timed.
struct ParityCheck {
  std::string name;  ///< as that of a run
  std::optional<std::string> same_step_as{};  ///< name of a run; none: its step is another one
  std::optional<double> moved{};
  std::optional<double> reference_moved{};
  bool ok = false;
  std::optional<std::string> error{};
  DDP_FIELDS(name, same_step_as, moved, reference_moved, ok, error);
};

/// A point of a sweep.
struct CrossoverValue {
  std::int64_t value = 0;
  std::string run;  ///< its name
  std::optional<double> speedup{};  ///< over one process, by samples per second
  std::optional<Interval> ci95{};
  DDP_FIELDS(value, run, speedup, ci95);
};

/// From which width or batch on several ranks win.
struct Crossover {
  std::string axis;  ///< "width" or "batch"
  std::string sweep;  ///< "64-W-W-10@32": which models
  int world_size = 1;
  std::vector<CrossoverValue> values;  ///< ascending
  std::optional<double> crosses_at;  ///< none: one process wins at the largest value, or at none
  DDP_FIELDS(axis, sweep, world_size, values, crosses_at);
};

/// How long a training to an accuracy takes.
struct TimeToAccuracy {
  std::string dataset;
  double target = 0;  ///< accuracy on the held-out samples
  std::string program;
  int world_size = 1;
  std::int64_t global_batch = 0;
  bool scale_lr = false;  ///< the learning rate has grown as the batch has
  std::optional<std::int64_t> epochs{};  ///< the fewest found that reach it; none: none did
  std::optional<double> accuracy{};  ///< after these
  Distribution seconds{};  ///< from the begin of the first step to the end of the last
  Distribution seconds_with_start{};  ///< from the start of the command to the end of the last step
  std::optional<std::string> error{};  ///< why it was not reached
  DDP_FIELDS(dataset, target, program, world_size, global_batch, scale_lr, epochs, accuracy,
             seconds, seconds_with_start, error);
};

/// Something that a reader may miss in the report, and why it is not there.
struct NotRun {
  std::string what;
  std::string reason;
  bool operator==(const NotRun&) const = default;
  DDP_FIELDS(what, reason);
};

/// The first element that is wanted; nullptr if there is none.
template <typename T, typename Wanted>
const T* find_first(const std::vector<T>& list, Wanted wanted) {
  const auto found = std::ranges::find_if(list, wanted);
  return found == list.end() ? nullptr : &*found;
}

template <typename T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

/// The same model, scaling and device.
bool same_work(const Run& a, const Run& b);

struct Report {
  int schema_version = kSchemaVersion;
  // Objects whose fields are named where they are found out, and which readers show as they are.
  nlohmann::ordered_json machine = nlohmann::ordered_json::object();
  nlohmann::ordered_json software = nlohmann::ordered_json::object();
  nlohmann::ordered_json settings = nlohmann::ordered_json::object();
  std::vector<Limit> limits;
  std::vector<AllReduceSample> all_reduce;
  std::vector<CommunicationModel> communication_models;
  std::vector<Run> runs;
  std::vector<Comparison> comparisons;
  std::vector<Extrapolation> extrapolations;
  std::vector<Conclusion> conclusions;
  std::vector<std::string> assumptions;
  std::vector<PieceResult> micro;
  std::vector<ParityCheck> parity_only;
  std::vector<Crossover> crossover;
  std::vector<TimeToAccuracy> time_to_accuracy;
  std::vector<NotRun> not_run;
  bool partial = false;  ///< interrupted
  DDP_FIELDS(schema_version, machine, software, settings, limits, all_reduce, communication_models,
             runs, comparisons, extrapolations, conclusions, assumptions, micro, parity_only,
             crossover, time_to_accuracy, not_run, partial);
  /// Earlier reports have none of these.
  static constexpr const char* kMayLack = "conclusions, parity_only, crossover, time_to_accuracy";

  /// The stage 01 run that `run` is measured against; nullptr without one that has a speed.
  const Run* baseline_of(const Run& run) const;
  /// By name; nullptr if there is none.
  const Run* find(const std::string& name) const;
  /// With its stage 01.
  const Comparison* comparison_of(const Run& run) const;
  /// Its workload is a point of a sweep.
  bool is_swept(const Run& run) const;
  /// Runs of one workload and kind of scaling together, in order, without controls and sweeps.
  std::vector<std::vector<const Run*>> workloads() const;
};

/// The object ddp_scaling.
nlohmann::ordered_json to_json(const Report& report);

/// Takes the single steps out of the report, which are most of its size.
void drop_samples(Report& report);

}  // namespace ddp::bench
