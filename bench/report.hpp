// bench/report.hpp - what becomes of measured runs: pair, judge, write sentences, print, page.
#pragma once

#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "bench/record.hpp"

namespace ddp::bench {

/// Runs of the same model, scaling and device in the report's order, without the controls.
using Workload = std::vector<const Run*>;
std::vector<Workload> workloads(const Report& report);

/// Timed runs of stages. Runs with too few repetitions for an interval are passed over, unless all
/// of the workload have so few.
Workload contenders(const Workload& runs);

/// The contender with the most samples per second, of those that `wanted` admits.
/// @return nullptr for none
const Run* fastest_stage(
    const Workload& runs,
    const std::function<bool(const Run&)>& wanted = [](const Run&) { return true; });

/// Fills every run's speeds and report.comparisons, from the repetitions:
///   control   an equal command once more, and its original
///   baseline  each run, and stage 01 with one thread
///   best      the fastest stage's run, and each other contender
///   threads   the fastest ranks, and one process with as many threads
///   peer      the fastest stage's run on the same cores with the same global batch, and the best
///             of each framework and transport; the same for stages over that transport
/// A run with an error or without parity has no speed and is compared with nothing.
void pair(Report& report);

/// The most that equal commands of the kind of `run` differed by, a factor >= 1: the farthest end
/// of the controls' intervals, of the same model, scaling and device. The kinds are one process on
/// one core, and several cores at work: ranks that wait for each other are disturbed far more.
/// @return nothing without a control that has an interval
std::optional<double> control_factor(const Report& report, const Run& run);

/// Sets `significant` of report.comparisons: the whole interval is farther from 1 than the control
/// factors of both runs. Without a control for each of them nothing is significant.
void judge(Report& report);

/// Fills report.sentences from report.comparisons, after judge(). A sentence claims a difference
/// only where a comparison is significant; every number in it is the ratio of a comparison.
///   fastest   the stage's run with the most samples/s, and those not significantly slower
///   ranks     the fastest stage of each world size against one process
///   threads   ranks against threads of one process, on the same cores
///   peers     our fastest stage against each framework, and both over the same transport
///   controls  how far equal commands differed
void write_sentences(Report& report);

/// The widest line that print() writes.
inline constexpr std::size_t kScreenWidth = 100;

/// At most 45 lines for a default report. A run without speed says why in its own line.
void print(std::ostream& out, const Report& report);

/// Writes one file with the report, its plots and the script that draws them. It needs neither
/// network nor server: it opens from a file:// address.
/// @param document with the object "ddp_scaling"
/// @throws Error naming the file
void write_page(const std::string& file, const nlohmann::ordered_json& document);

/// Google Benchmark's name of a run is its own with this suffix: one iteration, timed by hand.
inline constexpr const char* kBenchmarkSuffix = "/iterations:1/manual_time";

/// `context` and `benchmarks` as the library writes them: every repetition of a run is an iteration
/// whose time is the median step. compare.py pairs them by name and tests them by ranks.
nlohmann::ordered_json google_benchmark_document(const Report& report);

}  // namespace ddp::bench
