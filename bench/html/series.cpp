#include "bench/html/series.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <set>

namespace ddp::bench::html {
namespace {

constexpr std::size_t kMaxLabel = 22;
constexpr std::size_t kExtraHues = 6;
constexpr int kDashes = 4;

bool is_none(const std::string& text) {
  return text.empty() || text == "none";
}

std::string key_of(const Run& run) {
  std::string key;
  for (const std::string& part :
       {run.kind == "peer" ? run.kind : "", run.program, run.launcher, run.backend, run.speedup,
        run.device, std::to_string(run.nodes)}) {
    key += part + '\n';
  }
  return key;
}

bool is_stage_number(const std::string& program) {
  return program.size() > 2 && std::isdigit(static_cast<unsigned char>(program[0])) != 0 &&
         std::isdigit(static_cast<unsigned char>(program[1])) != 0 && program[2] == '_';
}

/// "03", "03 by_hand"; the name of what is no stage.
std::string short_program(const Run& run) {
  std::string name = run.program;
  if (is_stage_number(name)) {
    return name.substr(0, 2) +
           (is_none(run.variant) || run.variant == "main" ? "" : " " + run.variant);
  }
  for (const std::string prefix : {"peer_", "peers_"}) {
    if (name.rfind(prefix, 0) == 0 && name.size() > prefix.size()) {
      name = name.substr(prefix.size());
    }
  }
  return name;
}

/// The stage's number and "b" for what is not its main program; a known peer's name; else empty.
std::string hue_name(const Run& run) {
  if (is_stage_number(run.program)) {
    const std::string number = run.program.substr(0, 2);
    const bool is_known = number >= "01" && number <= "05";
    const bool is_main = is_none(run.variant) || run.variant == "main";
    return is_known ? number + (is_main ? "" : "b") : "";
  }
  for (const char* peer : {"accelerate", "fabric", "tensorflow", "pytorch"}) {
    if (run.program.find(peer) != std::string::npos) {
      return peer;
    }
  }
  return "";
}

/// What the runs of one program do not share has to be in their labels.
struct Varying {
  std::set<std::string> launchers;
  std::set<std::string> backends;
  std::set<std::string> speedups;
  std::set<std::string> devices;
  std::set<int> nodes;
};

void add_part(std::string& label, bool varies, const std::string& part) {
  if (varies && !is_none(part)) {
    label += " " + part;
  }
}

/// What is special about how the program is run, most of it by name.
std::string how(const Run& run) {
  std::string text;
  const std::string nodes = run.nodes > 1 ? std::to_string(run.nodes) + " nodes" : "";
  const std::string launcher = run.launcher == "spawn" ? "" : run.launcher;
  for (const std::string& part : {launcher, run.backend, run.speedup, nodes}) {
    if (!is_none(part)) {
      text += (text.empty() ? "" : ", ") + part;
    }
  }
  return text;
}

}  // namespace

Hue extra_hue(std::size_t index) {
  return {"x" + std::to_string(index % kExtraHues)};
}

SeriesCatalog::SeriesCatalog(const std::vector<Run>& runs) {
  std::map<std::string, Varying> programs;
  Varying all;
  for (const Run& run : runs) {
    for (Varying* varying : {&programs[run.program], &all}) {
      varying->launchers.insert(run.launcher);
      varying->backends.insert(run.backend);
      varying->speedups.insert(run.speedup);
      varying->devices.insert(run.device);
      varying->nodes.insert(run.nodes);
    }
  }
  all.backends.erase("none");
  std::vector<const Run*> first;
  for (const Run& run : runs) {
    if (index_.emplace(key_of(run), 0).second) {
      first.push_back(&run);
    }
  }
  std::stable_sort(first.begin(), first.end(), [](const Run* a, const Run* b) {
    return std::pair(a->kind == "peer", a->program) < std::pair(b->kind == "peer", b->program);
  });
  std::map<std::string, int> dashes;
  std::map<std::string, Hue> strangers;
  for (const Run* run : first) {
    const Varying& varying = programs[run->program];
    Series series;
    series.index = series_.size();
    series.label = short_program(*run);
    add_part(series.label, varying.launchers.size() > 1, run->launcher);
    add_part(series.label, varying.backends.size() > 1, run->backend);
    add_part(series.label, varying.speedups.size() > 1, run->speedup);
    add_part(series.label, all.devices.size() > 1, run->device);
    add_part(series.label, varying.nodes.size() > 1, std::to_string(run->nodes) + "n");
    series.label = shortened(series.label, kMaxLabel);
    series.how = how(*run);
    series.full_name = run->program + (series.how.empty() ? "" : ", " + series.how);
    const std::string known = hue_name(*run);
    series.hue = !known.empty()
                     ? Hue{known}
                     : strangers.emplace(run->program, extra_hue(strangers.size())).first->second;
    series.hollow = run->kind == "peer";
    // A cross cannot be hollow.
    const Marker end = series.hollow ? Marker::kCross : Marker::kMarkers;
    series.marker = static_cast<Marker>(series_.size() % static_cast<std::size_t>(end));
    series.dash = dashes[run->program]++ % kDashes;
    index_[key_of(*run)] = series.index;
    series_.push_back(series);
  }
}

const Series& SeriesCatalog::of(const Run& run) const {
  return series_.at(index_.at(key_of(run)));
}

std::string SeriesCatalog::row_label(const Run& run) const {
  return of(run).label + (run.world_size > 0 ? " ×" + std::to_string(run.world_size) : "");
}

std::string SeriesCatalog::key() const {
  std::string html = "<ul class=\"key\">";
  for (const Series& series : series_) {
    Svg swatch(34, 14, series.full_name);
    {
      const Svg::Group group = swatch.group("series", series.hue.style());
      swatch.line("curve " + series.dash_class(), {1, 7}, {33, 7});
      swatch.marker(series.marker, series.hollow, {17, 7});
    }
    html += "<li>" + swatch.str() + "<b>" + escape(series.label) + "</b> " +
            escape(series.full_name) + "</li>";
  }
  return html + "</ul>";
}

}  // namespace ddp::bench::html
