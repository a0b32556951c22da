#include "bench/report/page/series.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "bench/report/field_json.hpp"
#include "bench/report/format.hpp"

namespace ddp::bench::page {
namespace {

constexpr int kDashes = 4;
constexpr std::size_t kOtherHues = 6;

std::string joined(const std::vector<std::string>& parts, const char* between) {
  std::string text;
  for (const std::string& part : parts) {
    text += (text.empty() || part.empty() ? "" : between) + part;
  }
  return text;
}

std::string unless_none(const std::string& text) {
  return text == "none" ? "" : text;
}

std::string variant_of(const Run& run) {
  return run.variant == "main" ? "" : unless_none(run.variant);
}

std::string program_of(const Run& run) {
  return joined({run.stage, variant_of(run)}, "_");
}

/// "fused", "bucket 4.00 MiB", "fused bf16 sharded".
std::string speedup_of(const Run& run) {
  const bool usual_buckets = run.bucket_mib == Run().bucket_mib;
  return joined({unless_none(run.speedup),
                 usual_buckets ? "" : "bucket " + format_significant(run.bucket_mib) + " MiB",
                 unless_none(run.gradient_compression), run.shard_optimizer ? "sharded" : "",
                 run.threads == 1 ? "" : fmt::format("{} threads", run.threads)},
                " ");
}

std::string nodes_of(const Run& run) {
  return run.nodes > 1 ? fmt::format("{} nodes", run.nodes) : "";
}

/// In what runs of one program differ; what differs is in their labels.
std::vector<std::string> parts_of(const Run& run) {
  return {unless_none(run.launcher), unless_none(run.backend), speedup_of(run), run.device,
          nodes_of(run)};
}

bool is_stage_number(const std::string& program) {
  return program.size() > 2 && std::isdigit(static_cast<unsigned char>(program[0])) != 0 &&
         std::isdigit(static_cast<unsigned char>(program[1])) != 0 && program[2] == '_';
}

/// "03", "03 by_hand"; the name of what is no stage.
std::string short_program(const Run& run) {
  const std::string program = program_of(run);
  if (is_stage_number(program)) {
    return joined({program.substr(0, 2), variant_of(run)}, " ");
  }
  return program.starts_with("peer_") ? program.substr(5) : program;
}

/// Of a stage its number, with "b" for what is not its main program; of a known peer its name.
std::string known_hue(const Run& run) {
  const std::string program = program_of(run);
  const std::string number = program.substr(0, 2);
  if (is_stage_number(program)) {
    const bool is_main = variant_of(run).empty() || number == "01";
    return number < "01" || number > "05" ? "" : number + (is_main ? "" : "b");
  }
  for (const char* peer : {"accelerate", "fabric", "tensorflow", "pytorch"}) {
    if (program.find(peer) != std::string::npos) {
      return peer;
    }
  }
  return "";
}

Json named_row(const Run& run) {
  Json row = as_json(run);
  const std::string launcher = run.launcher == "spawn" ? "" : unless_none(run.launcher);
  const std::string how =
      joined({launcher, unless_none(run.backend), speedup_of(run), nodes_of(run)}, ", ");
  row.update({{"program", program_of(run)},
              {"how", how},
              {"full_name", joined({program_of(run), how}, ", ")},
              {"speedup", speedup_of(run)},
              {"workload", run.model + ", " + run.scaling + " scaling"}});
  return row;
}

}  // namespace

NamedRuns name_runs(const Report& report) {
  NamedRuns named{.runs = {}, .series = Json::array()};
  std::map<std::string, std::vector<std::set<std::string>>> values;  // of the parts of each program
  for (const Run& run : report.runs) {
    named.runs.push_back({&run, named_row(run)});
    const std::vector<std::string> parts = parts_of(run);
    auto& of_program = values[program_of(run)];
    of_program.resize(parts.size());
    for (std::size_t i = 0; i < parts.size(); ++i) {
      of_program[i].insert(parts[i]);
    }
  }
  std::vector<NamedRun*> ordered;
  for (NamedRun& one : named.runs) {
    ordered.push_back(&one);
  }
  std::ranges::stable_sort(ordered, {}, [](const NamedRun* one) {
    return std::pair(one->run->is_peer(), program_of(*one->run));
  });

  std::map<std::pair<std::string, std::vector<std::string>>, std::size_t> index;
  std::map<std::string, int> dashes;
  std::map<std::string, std::size_t> other_hues;
  for (NamedRun* one : ordered) {
    const Run& run = *one->run;
    const std::string program = program_of(run);
    const std::vector<std::string> parts = parts_of(run);
    const auto [place, is_new] = index.emplace(std::pair(program, parts), named.series.size());
    if (is_new) {
      std::string label = short_program(run);
      for (std::size_t i = 0; i < parts.size(); ++i) {
        if (values[program][i].size() > 1) {
          label = joined({label, parts[i]}, " ");
        }
      }
      std::string hue = known_hue(run);
      if (hue.empty()) {
        const std::size_t other = other_hues.emplace(program, other_hues.size()).first->second;
        hue = fmt::format("x{}", other % kOtherHues);
      }
      named.series.push_back({{"label", label},
                              {"full_name", one->row["full_name"]},
                              {"hue", hue},
                              {"dash", dashes[program]++ % kDashes},
                              {"is_peer", run.is_peer()}});
    }
    one->row["series"] = place->second;
    one->row["hue"] = named.series[place->second]["hue"];
  }
  return named;
}

}  // namespace ddp::bench::page
