// bench/record.hpp - a report: the JSON object "ddp_scaling", field by field.
//
// run_plan() adds the measurements, pair() and judge() the comparisons, write_sentences() the
// sentences. The screen, the page and the document read nothing else. Below each structure stand
// the fields that the document has. columns.list says which of them are shown.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "bench/statistics.hpp"
#include "common/device/gpu_monitor.hpp"

namespace nlohmann {

/// Writes an empty optional as null; dump() does so for NaN and infinity.
template <typename T>
struct adl_serializer<std::optional<T>> {
  static void to_json(ordered_json& json, const std::optional<T>& value) {
    json = value ? ordered_json(*value) : ordered_json(nullptr);
  }
};

}  // namespace nlohmann

// Writer part of NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE for ordered_json, which 3.11 lacks.
#define DDP_JSON_FIELDS(Type, ...)                                                            \
  inline void to_json(nlohmann::ordered_json& nlohmann_json_j, const Type& nlohmann_json_t) { \
    NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(NLOHMANN_JSON_TO, __VA_ARGS__))                  \
  }

namespace ddp {
DDP_JSON_FIELDS(GpuReadings, utilisation_percent, memory_mib)
}  // namespace ddp

namespace ddp::bench {

inline constexpr int kSchemaVersion = 3;

/// Program that all others are compared with.
inline constexpr const char* kBaseline = "01_single_gpu";

inline void to_json(nlohmann::ordered_json& json, const Interval& interval) {
  json = {interval.low, interval.high};
}
DDP_JSON_FIELDS(Distribution, median, p10, p90, n)

/// Timed launch of a run's program.
struct Repetition {
  int block = 0;  ///< launches of a block ran close together in time, and are paired
  std::string started;  ///< UTC, "2026-01-02T03:04:05Z"
  std::vector<double> samples_ms;  ///< the job's timed steps in order, without warm-up
  double median_ms = 0;  ///< median of samples_ms
  std::optional<double> no_comm_median_ms;  ///< the same command with --no-communication
  std::optional<double> startup_ms;  ///< from the start of the command to the end of its first step
};
DDP_JSON_FIELDS(Repetition, block, started, samples_ms, median_ms, no_comm_median_ms, startup_ms)

/// Comparison with one process, on the same data with the same global batch: of a stage's or a
/// peer's final weights with stage 01's, or of the losses of a user's program.
struct Parity {
  std::optional<double> moved = {};  ///< |w - w0| in float64
  std::optional<double> reference_moved = {};  ///< `moved` of stage 01
  std::optional<double> loss_difference = {};  ///< largest in the first steps, relative
  std::optional<bool> ok = {};
  std::optional<std::string> unchecked = {};  ///< why nothing could be compared
};
DDP_JSON_FIELDS(Parity, moved, reference_moved, loss_difference, ok, unchecked)

/// Parts of a step, each timed alone by bench_micro, at the run's shapes and number of ranks.
struct Pieces {
  std::optional<double> data, forward, backward, update, all_reduce;  ///< ms
};
DDP_JSON_FIELDS(Pieces, data, forward, backward, update, all_reduce)

/// Speed-up of an equal run in another report, of --beside.
struct Elsewhere {
  std::string report;  ///< the file's name
  std::string machine;  ///< "AMD EPYC, 2 cores"
  double speedup = 0;
};
DDP_JSON_FIELDS(Elsewhere, report, machine, speedup)

/// Row of the screen. With an error or without parity it has no speed.
struct Run {
  std::string name;  ///< unique: "M/weak/03_ddp_spawn/spawn/shm/ranks:2"
  /// "stage", "peer", "program" for --program, or "control": a second run of the same command.
  std::string kind = "stage";
  std::string stage;  ///< the stage's folder, the peer's name, or the program's, "train.py"
  std::string variant = "main";  ///< "main", "by_hand", ..., or the peer's variant
  std::string launcher = "none";  ///< a row of launchers.cpp
  std::string backend = "none";  ///< a backend
  std::string device = "cpu";
  std::string model;  ///< "T", "S", "M", "L", or for the first --program "P1"
  std::optional<std::string> command;  ///< of --program
  std::vector<std::int64_t> layers;  ///< widths: input, hidden layers, output
  std::optional<std::int64_t> parameters;
  std::string scaling = "weak";
  int nodes = 1;
  int world_size = 1;  ///< ranks; replicas in stage 02, and in a peer of one process
  int threads = 1;  ///< threads of each process
  std::optional<std::int64_t> global_batch;  ///< samples in a step, over all ranks
  std::string timed = "step";  ///< "run": a program that logs no steps, so they are whole runs
  std::vector<Repetition> repetitions;
  Distribution step_ms;  ///< steps of all repetitions
  std::optional<double> samples_per_second;  ///< global_batch / median step, in seconds
  std::optional<double> speedup;  ///< rate() over the baseline's, from paired launches
  std::optional<Interval> speedup_ci95;
  std::optional<double> quotient;  ///< rate() over the baseline's, from the medians of all launches
  std::optional<double> efficiency;  ///< speedup / (world_size x threads), for the baseline's step
  Pieces pieces_ms;
  std::optional<double> exposed_comm_ms;  ///< step minus the step without communication, paired
  std::optional<Interval> exposed_comm_ci95_ms;
  std::optional<double> limit_ms;  ///< lower limit of the step: its bare matrix products
  std::optional<double> peak_rss_mib;  ///< sum over all ranks
  std::optional<double> startup_ms;  ///< median of the repetitions
  std::optional<std::int64_t> lines_of_code;  ///< the program's source, without blanks and comments
  std::optional<GpuReadings> gpu;  ///< during the last launch, start-up included
  Parity parity;
  std::vector<Elsewhere> elsewhere;
  std::optional<std::string> error;

  /// What nobody could check has a speed, if it is a user's program.
  bool is_right() const { return !error && parity.ok.value_or(command.has_value()); }
  bool has_speed() const { return is_right() && step_ms.median.value_or(0) > 0; }
  /// Samples of a step. Where they are not known, it is the unit: the batch of a rank, with strong
  /// scaling the global batch; or the whole run, which all ranks share.
  double work() const {
    return timed == "run"      ? 1
           : global_batch      ? static_cast<double>(*global_batch)
           : scaling == "weak" ? world_size
                               : 1;
  }
  /// Work in a millisecond, of a run that has a speed.
  double rate() const { return work() / *step_ms.median; }
  /// Number of cores at work at the same time.
  int cores() const { return world_size * threads; }
  /// "03_ddp_spawn", "03_ddp_spawn_by_hand"; for a peer "jax jit".
  std::string program() const {
    return kind == "peer" ? stage + " " + variant
                          : stage + (variant == "main" ? "" : "_" + variant);
  }
  /// True if its ranks are processes.
  bool is_distributed() const { return kind != "peer" && launcher != "none"; }
  /// True for stage 01 with one thread, and for a program of one rank. The first of its model and
  /// scaling is the reference for the others.
  bool is_baseline() const {
    return kind == "program"
               ? world_size == 1
               : kind == "stage" && stage == kBaseline && variant == "main" && threads == 1;
  }
};
DDP_JSON_FIELDS(Run, name, kind, stage, variant, launcher, backend, device, model, command, layers,
                parameters, scaling, nodes, world_size, threads, global_batch, timed, repetitions,
                step_ms, samples_per_second, speedup, speedup_ci95, quotient, efficiency, pieces_ms,
                exposed_comm_ms, exposed_comm_ci95_ms, limit_ms, peak_rss_mib, startup_ms,
                lines_of_code, gpu, parity, elsewhere, error)

/// True if work() of both has the same unit.
inline bool same_unit(const Run& a, const Run& b) {
  return a.timed == b.timed && a.global_batch.has_value() == b.global_batch.has_value();
}

inline bool same_work(const Run& a, const Run& b) {
  return a.model == b.model && a.scaling == b.scaling && a.device == b.device;
}

/// Speed of `a` over speed of `b`, as Run::rate(), from launches in the same blocks.
struct Comparison {
  std::string kind;  ///< "baseline", "control", "best", "threads", "peer"
  std::string a;  ///< names of runs
  std::string b;
  std::optional<double> ratio;  ///< Hodges and Lehmann's estimate on the logarithms
  std::optional<Interval> ci95;
  std::size_t pairs = 0;
  std::optional<double> equal_commands;  ///< how far those like a and b differed, a factor >= 1
  /// True if the interval is farther from 1 than the differences between equal commands.
  bool significant = false;

  /// True if the interval is on one side of 1, and equal commands differed as much.
  bool may_be_chance() const {
    return !significant && equal_commands && ci95 && (ci95->low > 1 || ci95->high < 1);
  }
};
DDP_JSON_FIELDS(Comparison, kind, a, b, ratio, ci95, pairs, equal_commands, significant)

struct Sentence {
  std::string code;  ///< "fastest", "ranks", "threads", "peers", "unchecked", "controls"
  std::vector<std::string> runs;  ///< names of its runs
  std::string text;  ///< a line for each model
};
DDP_JSON_FIELDS(Sentence, code, runs, text)

struct NotRun {
  std::string what;
  std::string reason;
};
DDP_JSON_FIELDS(NotRun, what, reason)

struct Report {
  int schema_version = kSchemaVersion;
  // Shown as they are; machine.cpp names their fields.
  nlohmann::ordered_json machine = nlohmann::ordered_json::object();
  nlohmann::ordered_json software = nlohmann::ordered_json::object();
  nlohmann::ordered_json settings = nlohmann::ordered_json::object();
  std::vector<Run> runs;
  std::vector<Comparison> comparisons;
  std::vector<Sentence> sentences;
  std::vector<NotRun> not_run;
  bool partial = false;  ///< interrupted

  /// Run of that name; nullptr if there is none.
  const Run* find(const std::string& name) const {
    const auto found = std::ranges::find(runs, name, &Run::name);
    return found == runs.end() ? nullptr : &*found;
  }
  /// The first baseline of the same work; nullptr if it has no speed.
  const Run* baseline_of(const Run& run) const {
    const auto found = std::ranges::find_if(
        runs, [&](const Run& other) { return other.is_baseline() && same_work(other, run); });
    return found == runs.end() || !found->has_speed() ? nullptr : &*found;
  }
};
DDP_JSON_FIELDS(Report, schema_version, machine, software, settings, runs, comparisons, sentences,
                not_run, partial)

#undef DDP_JSON_FIELDS

}  // namespace ddp::bench
