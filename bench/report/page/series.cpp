#include "bench/report/page/series.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <set>

namespace ddp::bench::page {
namespace {

constexpr std::size_t kMaxLabel = 24;
constexpr int kDashes = 4;
constexpr std::size_t kOtherHues = 6;
constexpr double kUsualBucketMib = 25;
/// In what runs of one program differ; what differs is in their labels.
constexpr std::array<const char*, 5> kParts = {"/launcher", "/backend", "/speedup", "/device",
                                               "/nodes"};

std::string part_of(const Json& run, const char* part) {
  if (std::string(part) == "/nodes") {
    const double nodes = number_at(run, "/nodes").value_or(1);
    return nodes > 1 ? show_count(nodes) + " nodes" : "";
  }
  const std::string text = text_at(run, part);
  return text == "none" ? "" : text;
}

std::string joined(const std::vector<std::string>& parts, const char* between) {
  std::string text;
  for (const std::string& part : parts) {
    text += (text.empty() || part.empty() ? "" : between) + part;
  }
  return text;
}

bool is_stage_number(const std::string& program) {
  return program.size() > 2 && std::isdigit(static_cast<unsigned char>(program[0])) != 0 &&
         std::isdigit(static_cast<unsigned char>(program[1])) != 0 && program[2] == '_';
}

std::string variant_of(const Json& run) {
  const std::string variant = text_at(run, "/variant");
  return variant == "main" || variant == "none" ? "" : variant;
}

std::string program_of(const Json& run) {
  const std::string stage = text_at(run, "/stage");
  if (stage.empty()) {
    const std::string name = text_at(run, "/name");
    return name.empty() ? "unnamed" : name;
  }
  return joined({stage, variant_of(run)}, "_");
}

/// "fused", "bucket 4 MiB", "fused bf16 sharded".
std::string speedup_of(const Json& run) {
  const double bucket_mib = number_at(run, "/bucket_mib").value_or(kUsualBucketMib);
  return joined(
      {part_of(run, "/speedup"),
       bucket_mib == kUsualBucketMib ? "" : "bucket " + show(bucket_mib) + " MiB",
       part_of(run, "/gradient_compression"), at(run, "/shard_optimizer") == true ? "sharded" : ""},
      " ");
}

/// "03", "03 by_hand"; the name of what is no stage.
std::string short_program(const Json& run) {
  const std::string program = text_at(run, "/program");
  if (is_stage_number(program)) {
    return joined({program.substr(0, 2), variant_of(run)}, " ");
  }
  return program.rfind("peer_", 0) == 0 ? program.substr(5) : program;
}

/// Of a stage its number, with "b" for what is not its main program; of a known peer its name.
std::string known_hue(const Json& run) {
  const std::string program = text_at(run, "/program");
  const std::string number = program.substr(0, 2);
  if (is_stage_number(program) && number >= "01" && number <= "05") {
    return number + (variant_of(run).empty() || number == "01" ? "" : "b");
  }
  for (const char* peer : {"accelerate", "fabric", "tensorflow", "pytorch"}) {
    if (!is_stage_number(program) && program.find(peer) != std::string::npos) {
      return peer;
    }
  }
  return "";
}

/// At most kMaxLabel code points; the last is an ellipsis if something was cut.
std::string shortened(const std::string& text) {
  std::size_t characters = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool starts_character = (static_cast<unsigned char>(text[i]) & 0xC0U) != 0x80U;
    characters += starts_character ? 1U : 0U;
    if (starts_character && characters == kMaxLabel + 1) {
      return text.substr(0, i) + "…";
    }
  }
  return text;
}

void add_names(Json& run) {
  run["program"] = program_of(run);
  run["speedup"] = speedup_of(run);
  const std::string launcher = part_of(run, "/launcher");
  run["how"] = joined({launcher == "spawn" ? "" : launcher, part_of(run, "/backend"),
                       part_of(run, "/speedup"), part_of(run, "/nodes")},
                      ", ");
  run["full_name"] = joined({text_at(run, "/program"), text_at(run, "/how")}, ", ");
  const std::string model = text_at(run, "/model");
  const std::string scaling = text_at(run, "/scaling");
  run["workload"] = joined(
      {model.empty() ? "Unnamed model" : model, scaling.empty() ? "" : scaling + " scaling"}, ", ");
}

}  // namespace

Json name_series(std::vector<Json>& runs) {
  std::map<std::string, std::set<std::string>> values;  // of each part of each program
  for (Json& run : runs) {
    add_names(run);
    for (const char* part : kParts) {
      values[text_at(run, "/program") + part].insert(part_of(run, part));
    }
  }
  const auto key_of = [](const Json& run) {
    std::string key = text_at(run, "/program");
    for (const char* part : kParts) {
      key += '\n' + part_of(run, part);
    }
    return key;
  };
  std::vector<Json*> ordered;
  for (Json& run : runs) {
    ordered.push_back(&run);
  }
  const auto place = [](const Json* run) {
    return std::pair(text_at(*run, "/kind") == "peer", text_at(*run, "/program"));
  };
  std::stable_sort(ordered.begin(), ordered.end(),
                   [&](const Json* a, const Json* b) { return place(a) < place(b); });

  Json series = Json::array();
  std::map<std::string, std::size_t> index;
  std::map<std::string, int> dashes;
  std::map<std::string, std::size_t> other_hues;
  for (Json* run : ordered) {
    const std::string program = text_at(*run, "/program");
    if (const auto [known, is_new] = index.emplace(key_of(*run), series.size()); is_new) {
      std::string label = short_program(*run);
      for (const char* part : kParts) {
        if (values[program + part].size() > 1) {
          label = joined({label, part_of(*run, part)}, " ");
        }
      }
      std::string hue = known_hue(*run);
      if (hue.empty()) {
        const std::size_t other = other_hues.emplace(program, other_hues.size()).first->second;
        hue = "x" + std::to_string(other % kOtherHues);
      }
      series.push_back({{"label", shortened(label)},
                        {"full_name", run->at("full_name")},
                        {"hue", hue},
                        {"dash", dashes[program]++ % kDashes},
                        {"is_peer", text_at(*run, "/kind") == "peer"}});
    }
    (*run)["series"] = index.at(key_of(*run));
    (*run)["hue"] = series[index.at(key_of(*run))]["hue"];
  }
  return series;
}

bool is_baseline(const Json& run) {
  return text_at(run, "/kind") != "peer" && text_at(run, "/program").rfind("01", 0) == 0;
}

bool has_speed(const Json& run) {
  return text_at(run, "/error").empty() && number_at(run, "/step_ms/median").has_value();
}

}  // namespace ddp::bench::page
