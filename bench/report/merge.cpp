#include "bench/report/merge.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <string>

#include "bench/report/catalog.hpp"
#include "bench/report/format.hpp"
#include "common/base/exit_codes.hpp"

namespace ddp::bench {
namespace {

using nlohmann::ordered_json;

/// Without these being equal, the numbers are not of one program.
void check_same_build(const ReportFile& first, const ReportFile& other) {
  const auto check = [&](const char* section, ordered_json Report::*member, const char* key) {
    const ordered_json a = (first.report.*member).value(key, ordered_json());
    const ordered_json b = (other.report.*member).value(key, ordered_json());
    if (a != b) {
      throw UsageError(fmt::format("{}: {}.{} is {}, expected that of {}, {}", other.path, section,
                                   key, b.dump(), first.path, a.dump()));
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
    throw UsageError(fmt::format("{}: {} is in {} too, expected each configuration once", file.path,
                                 run.name, kept.file->path));
  }
  if (run.global_batch != kept.run->global_batch) {
    throw UsageError(fmt::format(
        "{}: the global batch of {} is {}, expected that of {}, {} (strong scaling: measure both "
        "with the same largest world size)",
        file.path, run.name, run.global_batch, kept.file->path, kept.run->global_batch));
  }
  const std::optional<double> here_ms = run.typical_step_ms();
  const std::optional<double> there_ms = kept.run->typical_step_ms();
  const std::string step_time =
      here_ms && there_ms ? fmt::format("; its step time here is {} of that one",
                                        format_significant(*here_ms / *there_ms))
                          : fmt::format(", without a speed {}", here_ms ? "there" : "here");
  return {fmt::format("{} of {}", run.name, file.path),
          fmt::format("measured in {} already{}", kept.file->path, step_time)};
}

/// Families are numbered from 0 in each report; tools sort by the number.
/// @param dropped names of runs
void append_benchmarks(const ordered_json& entries, const std::set<std::string>& dropped,
                       ordered_json& merged) {
  const auto family_of = [](const ordered_json& entry) {
    const ordered_json index = entry.value("family_index", ordered_json());
    return index.is_number_integer() ? std::optional(index.get<std::int64_t>()) : std::nullopt;
  };
  std::int64_t offset = 0;
  for (const ordered_json& entry : merged) {
    offset = std::max(offset, family_of(entry).value_or(-1) + 1);
  }
  for (ordered_json entry : entries) {
    const std::string name = entry.at("name");
    if (dropped.contains(name.substr(0, name.rfind(kBenchmarkSuffix)))) {
      continue;
    }
    if (const std::optional<std::int64_t> family = family_of(entry)) {
      entry["family_index"] = *family + offset;
    }
    merged.push_back(entry);
  }
}

template <typename T>
void append_new(std::vector<T>& to, const std::vector<T>& from) {
  std::ranges::copy_if(from, std::back_inserter(to), [&](const T& element) {
    return std::ranges::find(to, element) == to.end();
  });
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
    const ordered_json value = object.value(key, ordered_json());
    return value.is_string() ? std::optional(value.get<std::string>()) : std::nullopt;
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
