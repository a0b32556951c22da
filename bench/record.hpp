// bench/record.hpp - the record of a report: the JSON object "ddp_scaling", field by field.
//
// run_plan() fills what was measured, pair() and judge() what follows from it, write_sentences()
// the words. The screen, the page and the document read nothing else.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/statistics.hpp"

namespace ddp::bench {

inline constexpr int kSchemaVersion = 3;

/// One launch of a run's program, as it was timed.
struct Repetition {
  int block = 0;  ///< launches with the same block were run close together in time, and are paired
  std::string started;  ///< UTC, "2026-01-02T03:04:05Z"
  std::vector<double> samples_ms;  ///< the job's timed steps in order, warm-up dropped
  std::optional<double> median_ms;  ///< of samples_ms
  std::optional<double> no_comm_median_ms;  ///< the same command with --no-communication
  std::optional<double> startup_ms;  ///< from the start of the command to the end of its first step
};

/// Do the weights end where stage 01's do, on the same data with the same global batch?
struct Parity {
  std::optional<double> moved;  ///< |w - w0| in float64
  std::optional<double> reference_moved;  ///< stage 01's
  bool ok = false;
};

/// Parts of a step, each timed alone by bench_micro at the run's shapes with as many ranks at work.
struct Pieces {
  std::optional<double> data, forward, backward, update, all_reduce;  ///< ms
};

/// Of whole launches, start-up included: means over samples, GPUs and repetitions.
struct GpuUsage {
  double utilisation_percent = 0;
  double memory_mib = 0;
};

/// One row of the screen. With an error or without parity it has no speed.
struct Run {
  std::string name;  ///< unique: "M/weak/03_ddp_spawn/spawn/shm/ranks:2"
  std::string kind = "stage";  ///< "stage", "peer", or "control": an equal command once more
  std::string stage;  ///< the stage's folder, or the peer's name
  std::string variant = "main";  ///< "main", "by_hand", ..., or the peer's variant
  std::string launcher = "none";  ///< "none", "spawn", "torchrun", "mpirun", "srun"
  std::string backend =
      "none";  ///< what carries the gradients: "none", "shm", "gloo", "mpi", "nccl"
  std::string device = "cpu";
  std::string model;  ///< "T", "S", "M", "L"
  std::vector<std::int64_t> layers;  ///< widths: input, hidden layers, output
  std::optional<std::int64_t> parameters;
  std::string scaling = "weak";
  int nodes = 1;
  int world_size = 1;  ///< ranks; replicas in stage 02, and in a peer of one process
  int threads = 1;  ///< of each process
  std::int64_t global_batch = 0;  ///< samples in a step, over all ranks
  std::vector<Repetition> repetitions;
  Distribution step_ms;  ///< of all repetitions' steps
  std::optional<double> samples_per_second;  ///< global_batch / median step
  std::optional<double> speedup;  ///< samples per second over stage 01's, from paired launches
  std::optional<Interval> speedup_ci95;
  std::optional<double> efficiency;  ///< speedup / (world_size x threads)
  Pieces pieces_ms;
  std::optional<double> exposed_comm_ms;  ///< step minus the step without communication, paired
  std::optional<Interval> exposed_comm_ci95_ms;
  std::optional<double> limit_ms;  ///< the step's bare matrix products, replayed by out= operations
  std::optional<double> peak_rss_mib;  ///< of all ranks together
  std::optional<double> startup_ms;  ///< median of the repetitions'
  std::optional<std::int64_t> lines_of_code;  ///< the program's source, without blanks and comments
  std::optional<GpuUsage> gpu;
  Parity parity;
  std::optional<std::string> error;

  bool has_speed() const { return !error && parity.ok && samples_per_second.has_value(); }
  /// At work at the same time.
  int cores() const { return world_size * threads; }
  /// "03_ddp_spawn", "03_ddp_spawn_by_hand"; of a peer "jax jit".
  std::string program() const;
  /// Its ranks are processes of their own.
  bool is_distributed() const { return kind != "peer" && launcher != "none"; }
  /// Stage 01 with one thread: what the others of its model and scaling are measured against.
  bool is_baseline() const {
    return kind == "stage" && stage == "01_single_gpu" && variant == "main" && threads == 1;
  }
};

/// The same model, scaling and device.
bool same_work(const Run& a, const Run& b);

/// Speed of `a` over speed of `b`, in samples per second, from launches in the same blocks.
struct Comparison {
  std::string kind;  ///< "baseline", "control", "best", "threads", "peer"
  std::string a;  ///< names of runs
  std::string b;
  std::optional<double> ratio;  ///< Hodges and Lehmann's estimate on the logarithms
  std::optional<Interval> ci95;
  std::size_t pairs = 0;
  /// The interval excludes 1 by more than equal commands of this session differed by.
  bool significant = false;
};

struct Sentence {
  std::string code;  ///< "fastest", "ranks", "threads", "peers", "controls"
  std::vector<std::string> runs;  ///< names of those that it is about
  std::string text;
};

/// Something that a reader may miss, and why it is not there.
struct NotRun {
  std::string what;
  std::string reason;
};

struct Report {
  int schema_version = kSchemaVersion;
  // Objects whose fields are named where they are found out, and which readers show as they are.
  nlohmann::ordered_json machine = nlohmann::ordered_json::object();
  nlohmann::ordered_json software = nlohmann::ordered_json::object();
  nlohmann::ordered_json settings = nlohmann::ordered_json::object();
  std::vector<Run> runs;
  std::vector<Comparison> comparisons;
  std::vector<Sentence> sentences;
  std::vector<NotRun> not_run;
  bool partial = false;  ///< interrupted

  /// By name; nullptr if there is none.
  const Run* find(const std::string& name) const;
  /// The stage 01 run of the same model, scaling and device; nullptr without one that has a speed.
  const Run* baseline_of(const Run& run) const;
};

/// The object ddp_scaling. @param samples false: samples_ms, most of its size, are left empty
nlohmann::ordered_json to_json(const Report& report, bool samples = true);
/// The way back. @throws Error naming the field that is missing or of another type
Report report_from_json(const nlohmann::ordered_json& document);

}  // namespace ddp::bench
