// simulator/page.cpp - page of --html: the engine runs all settings, page.html only draws them.
#include <regex>
#include <set>

#include "common/base/command_line.hpp"
#include "common/base/files.hpp"
#include "common/base/json_text.hpp"
#include "simulator/simulator.hpp"

namespace ddp::sim {

extern const char* const kPage;  // page.html: see CMakeLists.txt

namespace {

/// Note [Document of the page]: element #document of the page has a JSON object. Times are in
/// microseconds, and a setting is named as on the command line, "--nprocs" or "bucket_mib":
///   program  "sim_buckets"
///   shown    {"--nprocs": 2, ...}: settings of the command line
///   choices  {"--nprocs": [2, 3, 4, 8], ...}: values of each setting, ascending
///   runs     [{"settings": {"--nprocs": 2, ...}, "ranks": [index in lanes, ...],
///              "error": "deadlock at ..." or ""}, ...]: a run for every combination of the values
///   lanes    [{"end_us", "waited_us", "messages", "sent_bytes",
///              "spans": [[begin, end, index in kinds], ...]}, ...]: lanes of a rank, each once
///   kinds    [["compute", "backward"], ["waiting", "all_reduce"],
///             ["communication", "message to rank 1"], ...]
using Json = nlohmann::ordered_json;
using Settings = std::map<std::string, double>;

/// Six digits are more than a page can show, and keep it small.
double rounded(double value) {
  return std::stod(fmt::format("{:.6g}", value));
}

/// @return index of `value` in the list of that name, to which it is added unless it is there
std::size_t index_in(Json& document, const char* list, const Json& value) {
  Json& known = document[list];
  const auto found = std::find(known.begin(), known.end(), value);
  const auto index = static_cast<std::size_t>(found - known.begin());
  if (found == known.end()) {
    known.push_back(value);
  }
  return index;
}

std::size_t index_of_lanes(Json& document, const RankRecord& rank) {
  Json spans = Json::array();
  for (const auto& [kind, list] : {std::pair("compute", &rank.compute),
                                   {"waiting", &rank.waiting},
                                   {"communication", &rank.communication}}) {
    for (const Span& span : *list) {
      spans.push_back({rounded(span.begin_us), rounded(span.end_us),
                       index_in(document, "kinds", {kind, span.name})});
    }
  }
  return index_in(document, "lanes",
                  {{"end_us", rank.end_us},
                   {"waited_us", rank.waited_us},
                   {"messages", rank.sent.messages},
                   {"sent_bytes", rank.sent.bytes},
                   {"spans", spans}});
}

/// Runs the program with these settings. @return entry of "runs"
Json run_of(Json& document, const std::function<void()>& rank, const Settings& settings) {
  Json run{{"settings", settings}, {"ranks", Json::array()}, {"error", ""}};
  Settings parameters = settings;
  const auto take = [&](const char* name) { return parameters.extract(name).mapped(); };
  const int nprocs = static_cast<int>(take("--nprocs"));
  const Network network{take("--alpha-us"), take("--beta-us-per-mib")};
  try {
    const Simulation simulation = run_ranks(rank, nprocs, network, parameters);
    run["error"] = simulation.deadlock;
    for (const RankRecord& record : simulation.ranks) {
      run["ranks"].push_back(index_of_lanes(document, record));
    }
  } catch (const std::exception& error) {  // what the program refuses
    run["error"] = error.what();
  }
  return run;
}

}  // namespace

void write_page(const std::string& file, const std::function<void()>& rank, const Network& network,
                const Simulation& simulation) {
  Settings shown{{"--nprocs", static_cast<double>(simulation.ranks.size())},
                 {"--alpha-us", network.alpha_us},
                 {"--beta-us-per-mib", network.beta_us_per_mib}};
  std::map<std::string, std::set<double>> choices{{"--nprocs", {2, 3, 4, 8}}};
  const auto around = [&](const std::string& name, std::initializer_list<double> factors) {
    for (const double factor : factors) {
      choices[name].insert(rounded(factor * shown[name]));
    }
  };
  around("--alpha-us", {0.1, 0.3, 3, 10});
  around("--beta-us-per-mib", {0.1, 0.3, 3, 10});
  for (const auto& [name, values] : simulation.parameters) {
    shown[name] = values.front();
    choices[name].insert(values.begin(), values.end());
    around(name, {0.5, 2});
  }
  std::vector<Settings> grid(1);
  for (auto& [name, values] : choices) {
    values.insert(shown[name]);
    for (const Settings& settings : std::exchange(grid, {})) {
      for (const double value : values) {
        grid.push_back(settings);
        grid.back()[name] = value;
      }
    }
  }
  Json document{{"program", program_name()},
                {"shown", shown},
                {"choices", choices},
                {"kinds", Json::array()},
                {"lanes", Json::array()}};
  Json runs;
  for (const Settings& settings : grid) {
    runs.push_back(run_of(document, rank, settings));
  }
  document["runs"] = std::move(runs);
  std::string page = kPage;
  const std::string mark = "/*DOCUMENT*/";
  // Without "<", which could end the <script> element.
  page.replace(page.find(mark), mark.size(),
               std::regex_replace(json_text(document), std::regex("<"), "\\u003c"));
  replace_file("page", file, page);
}

}  // namespace ddp::sim
