#include "bench/report/merge.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "bench/report/format.hpp"
#include "common/base/exit_codes.hpp"

namespace ddp::bench {
namespace {

using nlohmann::ordered_json;

/// What follows a run's name in Google Benchmark's names.
constexpr const char* kNameEnd = "/iterations:";

/// Without these being equal, the numbers are not of one program.
void check_same_build(const ReportFile& first, const ReportFile& other) {
  const auto value = [](const ReportFile& report, const char* section, const char* key) {
    return report.scaling().at(section).value(key, ordered_json());
  };
  struct Key {
    const char* section;
    const char* key;
  };
  for (const Key& key : {Key{"software", "git_commit"}, Key{"software", "compiler"},
                         Key{"software", "libtorch"}, Key{"software", "assertions"},
                         Key{"settings", "seed"}, Key{"settings", "parity_tolerance"}}) {
    const ordered_json a = value(first, key.section, key.key);
    const ordered_json b = value(other, key.section, key.key);
    if (a != b) {
      throw UsageError(other.path + ": " + key.section + "." + key.key + " is " + b.dump() +
                       ", expected that of " + first.path + ", " + a.dump());
    }
  }
}

bool is_of_baseline(const MeasuredRun& run) {
  return run.stage == kBaselineStage && (run.kind == "stage" || run.kind == "control");
}

/// Where each name was first measured.
struct Kept {
  const ReportFile* report;
  const MeasuredRun* run;
};

/// @throws UsageError unless both are the same run of stage 01
ordered_json dropped_note(const Kept& kept, const ReportFile& report, const MeasuredRun& run) {
  if (!is_of_baseline(run) || !is_of_baseline(*kept.run)) {
    throw UsageError(report.path + ": " + run.name + " is in " + kept.report->path +
                     " too, expected each configuration once");
  }
  if (run.global_batch != kept.run->global_batch) {
    throw UsageError(report.path + ": the global batch of " + run.name + " is " +
                     format_fixed(run.global_batch, 0) + ", expected that of " + kept.report->path +
                     ", " + format_fixed(kept.run->global_batch, 0) +
                     " (strong scaling: measure both with the same largest world size)");
  }
  std::string reason = "measured in " + kept.report->path + " already";
  if (run.step_ms && kept.run->step_ms) {
    reason += "; its step time here is " + format_significant(*run.step_ms / *kept.run->step_ms) +
              " of that one";
  } else {
    reason += run.step_ms ? ", without a speed there" : ", without a speed here";
  }
  return {{"what", run.name + " of " + report.path}, {"reason", reason}};
}

/// The name of the run that an entry of Google Benchmark's belongs to.
std::string run_name(const ordered_json& entry) {
  const std::string text = entry.at("name").get<std::string>();
  return text.substr(0, text.rfind(kNameEnd));
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

/// Lists besides runs that hold what was measured, or assumed.
void append_lists(const ordered_json& from, ordered_json& to) {
  const auto append = [&](const char* key, bool once) {
    if (!from.contains(key) || !from.at(key).is_array()) {
      return;
    }
    ordered_json& all = to[key];
    for (const ordered_json& element : from.at(key)) {
      if (!once || std::find(all.begin(), all.end(), element) == all.end()) {
        all.push_back(element);
      }
    }
  };
  for (const char* key :
       {"comparisons", "limits", "all_reduce", "communication_models", "extrapolations", "micro"}) {
    append(key, false);
  }
  append("assumptions", true);
  append("not_run", true);
}

/// One entry per report that was measured; those of a merged report are kept.
void append_origin(const ReportFile& report, ordered_json& merged_from) {
  const ordered_json& scaling = report.scaling();
  if (scaling.contains("merged_from") && scaling.at("merged_from").is_array()) {
    for (const ordered_json& origin : scaling.at("merged_from")) {
      merged_from.push_back(origin);
    }
    return;
  }
  std::int64_t nodes = 1;
  for (const ordered_json& run : scaling.at("runs")) {
    if (const ordered_json value = run.value("nodes", ordered_json()); value.is_number_integer()) {
      nodes = std::max(nodes, value.get<std::int64_t>());
    }
  }
  merged_from.push_back({
      {"command", scaling.at("settings").value("command", ordered_json())},
      {"host", scaling.at("machine").value("host", ordered_json())},
      {"nodes", nodes},
  });
}

}  // namespace

ordered_json merge_reports(const std::vector<ReportFile>& reports) {
  const ReportFile& first = reports.front();
  ordered_json merged = first.document;
  ordered_json& scaling = merged["ddp_scaling"];
  ordered_json merged_from = ordered_json::array();
  std::map<std::string, Kept> kept;
  for (const ReportFile& report : reports) {
    check_same_build(first, report);
    append_origin(report, merged_from);
    std::set<std::string> dropped;
    for (std::size_t i = 0; i < report.runs.size(); ++i) {
      const MeasuredRun& run = report.runs[i];
      const auto [found, is_new] = kept.insert({run.name, {&report, &run}});
      if (!is_new) {
        scaling["not_run"].push_back(dropped_note(found->second, report, run));
        dropped.insert(run.name);
      } else if (&report != &first) {
        scaling["runs"].push_back(report.scaling().at("runs").at(i));
      }
    }
    if (&report != &first) {
      append_benchmarks(report.document.at("benchmarks"), dropped, merged["benchmarks"]);
      append_lists(report.scaling(), scaling);
      scaling["partial"] = scaling.at("partial") == true || report.scaling().at("partial") == true;
    }
  }
  scaling["merged_from"] = merged_from;
  return merged;
}

}  // namespace ddp::bench
