#include "bench/report/merge.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "bench/report/format.hpp"
#include "bench/run/catalog.hpp"
#include "common/base/exit_codes.hpp"

namespace ddp::bench {
namespace {

using nlohmann::ordered_json;

/// Without these being equal, the numbers are not of one program.
void check_same_build(const ReportFile& first, const ReportFile& other) {
  const auto check = [&](const std::string& section, ordered_json Report::*member,
                         const char* key) {
    const ordered_json a = (first.report.*member).value(key, ordered_json());
    const ordered_json b = (other.report.*member).value(key, ordered_json());
    if (a != b) {
      throw UsageError(other.path + ": " + section + "." + key + " is " + b.dump() +
                       ", expected that of " + first.path + ", " + a.dump());
    }
  };
  for (const char* key : {"git_commit", "compiler", "libtorch", "assertions"}) {
    check("software", &Report::software, key);
  }
  for (const char* key : {"seed", "parity_tolerance"}) {
    check("settings", &Report::settings, key);
  }
}

/// Where each name was first measured.
struct Kept {
  const ReportFile* file;
  const Run* run;
};

/// @throws UsageError unless both are the same run of stage 01
NotRun dropped_note(const Kept& kept, const ReportFile& file, const Run& run) {
  const auto of_stage_01 = [](const Run& r) { return r.stage == kBaseline && !r.is_peer(); };
  if (!of_stage_01(run) || !of_stage_01(*kept.run)) {
    throw UsageError(file.path + ": " + run.name + " is in " + kept.file->path +
                     " too, expected each configuration once");
  }
  if (run.global_batch != kept.run->global_batch) {
    throw UsageError(file.path + ": the global batch of " + run.name + " is " +
                     std::to_string(run.global_batch) + ", expected that of " + kept.file->path +
                     ", " + std::to_string(kept.run->global_batch) +
                     " (strong scaling: measure both with the same largest world size)");
  }
  std::string reason = "measured in " + kept.file->path + " already";
  const std::optional<double> here_ms = run.typical_step_ms();
  const std::optional<double> there_ms = kept.run->typical_step_ms();
  if (here_ms && there_ms) {
    reason +=
        "; its step time here is " + format_significant(*here_ms / *there_ms) + " of that one";
  } else {
    reason += here_ms ? ", without a speed there" : ", without a speed here";
  }
  return {run.name + " of " + file.path, reason};
}

/// The name of the run that an entry of Google Benchmark's belongs to.
std::string run_name(const ordered_json& entry) {
  const std::string text = entry.at("name").get<std::string>();
  return text.substr(0, text.rfind(kBenchmarkSuffix));
}

/// Families are numbered from 0 in each report; tools sort by the number.
void append_benchmarks(const ordered_json& entries, const std::set<std::string>& dropped,
                       ordered_json& merged) {
  std::int64_t offset = 0;
  for (const ordered_json& entry : merged) {
    if (const ordered_json index = entry.value("family_index", ordered_json());
        index.is_number_integer()) {
      offset = std::max(offset, index.get<std::int64_t>() + 1);
    }
  }
  for (ordered_json entry : entries) {
    if (dropped.count(run_name(entry)) > 0) {
      continue;
    }
    if (const auto index = entry.find("family_index");
        index != entry.end() && index->is_number_integer()) {
      *index = index->get<std::int64_t>() + offset;
    }
    merged.push_back(std::move(entry));
  }
}

template <typename T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

template <typename T>
void append_new(std::vector<T>& to, const std::vector<T>& from) {
  for (const T& element : from) {
    if (std::find(to.begin(), to.end(), element) == to.end()) {
      to.push_back(element);
    }
  }
}

/// Everything but the runs.
void append_lists(const Report& from, Report& to) {
  append(to.comparisons, from.comparisons);
  append(to.limits, from.limits);
  append(to.all_reduce, from.all_reduce);
  append(to.communication_models, from.communication_models);
  append(to.extrapolations, from.extrapolations);
  append(to.micro, from.micro);
  append_new(to.assumptions, from.assumptions);
  append_new(to.not_run, from.not_run);
  to.partial = to.partial || from.partial;
}

/// One entry per report that was measured; those of a merged report are kept.
std::vector<Origin> origins_of(const Report& report) {
  if (report.merged_from) {
    return *report.merged_from;
  }
  const auto text = [](const ordered_json& object, const char* key) {
    const auto found = object.find(key);
    return found != object.end() && found->is_string() ? std::optional(found->get<std::string>())
                                                       : std::nullopt;
  };
  Origin origin = {text(report.settings, "command"), text(report.machine, "host"), 1};
  for (const Run& run : report.runs) {
    origin.nodes = std::max(origin.nodes, run.nodes);
  }
  return {origin};
}

}  // namespace

ordered_json merge_reports(const std::vector<ReportFile>& files) {
  const ReportFile& first = files.front();
  ordered_json document = first.document;
  Report merged = first.report;
  merged.runs.clear();
  merged.merged_from.emplace();
  std::map<std::string, Kept> kept;
  for (const ReportFile& file : files) {
    check_same_build(first, file);
    append(*merged.merged_from, origins_of(file.report));
    std::set<std::string> dropped;
    for (const Run& run : file.report.runs) {
      const auto [found, is_new] = kept.insert({run.name, {&file, &run}});
      if (is_new) {
        merged.runs.push_back(run);
      } else {
        merged.not_run.push_back(dropped_note(found->second, file, run));
        dropped.insert(run.name);
      }
    }
    if (&file != &first) {
      append_benchmarks(file.document.at("benchmarks"), dropped, document["benchmarks"]);
      append_lists(file.report, merged);
    }
  }
  document["ddp_scaling"] = to_json(merged);
  return document;
}

}  // namespace ddp::bench
