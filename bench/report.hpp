// bench/report.hpp - turns measured runs into a report: pair, judge, sentences, screen, page.
#pragma once

#include <functional>
#include <map>
#include <ostream>

#include "bench/record.hpp"

namespace ddp::bench {

/// Runs of the same model, scaling and device in the report's order, without the controls.
using Workload = std::vector<const Run*>;
std::vector<Workload> workloads(const Report& report);

/// Timed runs, but for peers, with enough repetitions for an interval, or all if none of the
/// workload has enough.
Workload contenders(const Workload& runs);

/// Contender with the highest rate() among the runs for which `wanted` is true.
/// @return nullptr for none
const Run* fastest_stage(
    const Workload& runs,
    const std::function<bool(const Run&)>& wanted = [](const Run&) { return true; });

/// False if stages.list says that the step of the run's program is another one than stage 01's: it
/// is faster for other reasons than its ranks.
bool has_autograd(const Run& run);

/// Fills every run's speeds and report.comparisons, from the repetitions:
///   control   a second run of the same command, and its original
///   baseline  each run, and stage 01 with one thread
///   best      the fastest stage's run, and each other contender
///   threads   the fastest ranks with autograd, and a single process with as many threads
///   peer      the fastest stage's run, and the best run of each framework and transport, on the
///             same cores with the same global batch; also with stages over that transport only
void pair(Report& report);

/// Speed-ups by device and name of a run, "cpu/M/weak/...", of each of several reports.
using OtherReports = std::vector<std::map<std::string, Elsewhere>>;

/// @param files documents of bench, also compressed by gzip
/// @throws UsageError naming a file that is damaged, of another program or of another schema
OtherReports read_reports(const std::vector<std::string>& files);

/// Fills `elsewhere` of the runs: models, commands and ranks are equal, and machines differ.
void set_beside(const OtherReports& others, Report& report);

/// How far equal commands differed, a factor >= 1: the geometric mean of a control's ratio and the
/// far end of its interval, and the largest of the controls with the same work. The far end alone
/// leaves half of the differences unsaid that are four times the noise of a launch, and the ratio
/// alone claims one that is not there in up to 8 % of reports.
/// Runs on one core and on several are two kinds, because ranks that wait for each other are
/// disturbed far more. @return nothing without an interval for this kind
std::optional<double> control_factor(const Report& report, const Run& run);

/// Sets `significant` in report.comparisons if the whole interval is farther from 1 than the
/// control factors of both runs. Without controls for both runs a comparison is not significant.
void judge(Report& report);

/// Fills report.sentences from report.comparisons, after judge(). A sentence claims a difference
/// only if a comparison is significant; its numbers are ratios of comparisons.
///   fastest   the run with the most samples/s, and runs that are not significantly slower
///   ranks     the fastest of each world size with autograd against a single process
///   threads   ranks against threads of a single process, on the same cores
///   peers     our fastest stage against each framework, and both over the same transport
///   unchecked of users' programs, why nothing could be compared with one process
///   controls  differences between equal commands
void write_sentences(Report& report);

/// Width of the widest line of print().
inline constexpr std::size_t kScreenWidth = 100;

/// Prints at most 45 lines for the default plan. The line of a run without speed has the reason.
void print(std::ostream& out, const Report& report);

/// Writes a file with the report, its plots and their script, which needs no network or server.
/// @param document JSON with the object "ddp_scaling"
/// @throws Error naming the file
void write_page(const std::string& file, const nlohmann::ordered_json& document);

/// Suffix of names for Google Benchmark: one iteration, timed by hand.
inline constexpr const char* kBenchmarkSuffix = "/iterations:1/manual_time";

/// `context` and `benchmarks` in the library's format: every repetition of a run is an iteration,
/// with the median step as its time. compare.py pairs iterations by name and compares their ranks.
nlohmann::ordered_json google_benchmark_document(const Report& report);

}  // namespace ddp::bench
