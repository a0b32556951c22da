#include "bench/report/page/page.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <ostream>
#include <set>
#include <vector>

#include "bench/report/output_file.hpp"
#include "bench/report/page/assets.hpp"
#include "bench/report/page/series.hpp"
#include "bench/report/page/table.hpp"
#include "bench/report/page/values.hpp"
#include "bench/report/verdict.hpp"
#include "bench/run/catalog.hpp"

namespace ddp::bench {
namespace page {
namespace {

using List = kainjow::mustache::list;
using Runs = std::vector<Json>;

constexpr std::size_t kMaxWorst = 9;
constexpr std::size_t kCommitHash = 40;
constexpr std::size_t kShortHash = 12;

/// For the content of elements and for quoted attributes; control characters become U+FFFD.
std::string escape(const std::string& text) {
  std::string safe;
  for (const char c : kainjow::mustache::html_escape(text)) {
    const bool is_control =
        (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == '\x7F';
    safe += is_control ? "\xEF\xBF\xBD" : std::string(1, c);
  }
  return safe;
}

/// JSON that no HTML parser takes for the end of its element. "<" only stands in strings.
std::string embed(const Json& json) {
  std::string safe;
  for (const char c : json.dump()) {
    safe += c == '<' ? "\\u003c" : std::string(1, c);
  }
  return safe;
}

Runs only(const Runs& runs, bool (*keep)(const Json& run)) {
  Runs kept;
  std::copy_if(runs.begin(), runs.end(), std::back_inserter(kept), keep);
  return kept;
}

bool has_failed(const Json& run) {
  return !text_at(run, "/error").empty() || at(run, "/parity/ok") == false;
}

/// "03_ddp_spawn on 4 ranks (shm)".
std::string describe(const Json& run) {
  const std::string how = text_at(run, "/how");
  const std::string ranks = show_count(at(run, "/world_size"));
  return text_at(run, "/program") +
         (is_baseline(run) ? "" : " on " + (ranks == "1" ? "one rank" : ranks + " ranks")) +
         (how.empty() ? "" : " (" + how + ")");
}

/// Of samples per second against one process, from that of the step times; null without one.
Json speedup_interval(const Json& run, const Runs& runs, const std::vector<Json>& comparisons) {
  const auto base = std::find_if(runs.begin(), runs.end(), [&](const Json& other) {
    return is_baseline(other) && at(other, "/workload") == at(run, "/workload");
  });
  const auto comparison =
      std::find_if(comparisons.begin(), comparisons.end(), [&](const Json& candidate) {
        return text_at(candidate, "/kind") == "baseline" &&
               at(candidate, "/a") == at(run, "/name") && at(candidate, "/ci95").is_array();
      });
  if (base == runs.end() || comparison == comparisons.end()) {
    return nullptr;
  }
  const auto divide = [](std::optional<double> a, std::optional<double> b) {
    return a && b && *b > 0 ? Json(*a / *b) : Json();
  };
  const Json even = divide(number_at(run, "/global_batch"), number_at(*base, "/global_batch"));
  return {divide(number_at(even, ""), number_at(*comparison, "/ci95/1")),
          divide(number_at(even, ""), number_at(*comparison, "/ci95/0"))};
}

bool is_faster(const Json& a, const Json& b) {
  return number_at(a, "/samples_per_second") > number_at(b, "/samples_per_second");
}

/// The fastest of each workload, in the report's order.
Runs find_winners(const Runs& runs, const std::vector<Json>& comparisons) {
  Runs winners;
  for (const Json& run : runs) {
    if (!has_speed(run) || !number_at(run, "/samples_per_second")) {
      continue;
    }
    if (winners.empty() || at(winners.back(), "/workload") != at(run, "/workload")) {
      winners.push_back(run);
    } else if (is_faster(run, winners.back())) {
      winners.back() = run;
    }
  }
  for (Json& winner : winners) {
    winner["fastest"] = describe(winner);
    winner["interval"] = is_baseline(winner) ? Json() : speedup_interval(winner, runs, comparisons);
  }
  return winners;
}

/// The fastest of each model, and how much faster than one process.
std::string result_sentence(const Runs& runs, const Runs& winners) {
  Runs best;  // one of each model
  for (const Json& winner : winners) {
    const auto same = std::find_if(best.begin(), best.end(), [&](const Json& other) {
      return at(other, "/model") == at(winner, "/model");
    });
    if (same == best.end()) {
      best.push_back(winner);
    } else if (is_faster(winner, *same)) {
      *same = winner;
    }
  }
  if (best.empty()) {
    return runs.empty() ? "Nothing was measured."
                        : "No configuration has a speed: see the errors below.";
  }
  if (std::all_of(best.begin(), best.end(), is_baseline)) {
    return "Nothing measured here handles more samples per second than one process (" +
           text_at(best.front(), "/program") + ").";
  }
  std::string sentence = "Most samples per second: ";
  for (std::size_t i = 0; i < best.size(); ++i) {
    const Json& run = best[i];
    const bool is_weak_and_strong =
        std::any_of(winners.begin(), winners.end(), [&](const Json& winner) {
          return at(winner, "/scaling") != at(winners.front(), "/scaling");
        });
    sentence += (i == 0 ? "for " : "; for ") +
                text_at(run, is_weak_and_strong ? "/workload" : "/model") + " " +
                (is_baseline(run) ? "one process, " : "") + text_at(run, "/fastest");
    if (!is_baseline(run) && number_at(run, "/relative_speedup")) {
      sentence += ", " + show_factor(at(run, "/relative_speedup")) + " one process";
    }
  }
  return sentence + ".";
}

std::string show_parity(const Json& ok) {
  return !ok.is_boolean() ? kNothing : ok.get<bool>() ? "ok" : "failed";
}

std::string show_median(const Json& median) {
  return number_at(median, "") ? show(median) : "no speed";
}

std::string show_step_error(const Json& run) {
  return text_at(run, "/error").empty() ? "parity failed" : text_at(run, "/error");
}

/// "rank 1, 61 % of steps, +4.2 %".
std::string show_slowest_rank(const Json& slowest) {
  return !number_at(slowest, "/rank")
             ? kNothing
             : "rank " + show_count(at(slowest, "/rank")) + ", " +
                   show_percent(at(slowest, "/share_of_steps")) + " of steps, " +
                   show_excess(at(slowest, "/median_excess"));
}

/// "102 KiB, 1 MiB".
std::string show_sizes(const Json& sizes) {
  std::string text;
  for (const Json& bytes : sizes.is_array() ? sizes : Json::array()) {
    const double size = number_at(bytes, "").value_or(0);
    const bool in_mib = size >= 1 << 20;
    text += (text.empty() ? "" : ", ") +
            show(size / (in_mib         ? 1 << 20
                         : size >= 1024 ? 1024
                                        : 1)) +
            (in_mib         ? " MiB"
             : size >= 1024 ? " KiB"
                            : " B");
  }
  return text.empty() ? kNothing : text;
}

/// Columns that say the same in every row are left out.
Data summary_table(const Runs& runs) {
  const auto differs = [&](const char* pointer, const Json& usual) {
    return std::any_of(runs.begin(), runs.end(),
                       [&](const Json& run) { return at(run, pointer) != usual; });
  };
  std::vector<Column> columns = {{"program", "/program", show_text, "program"},
                                 {"launcher", "/launcher", show_text, kText},
                                 {"backend", "/backend", show_text, kText}};
  if (differs("/speedup", "")) {
    columns.push_back({"speed-up", "/speedup", show_text, kText});
  }
  if (!runs.empty() && differs("/device", at(runs.front(), "/device"))) {
    columns.push_back({"device", "/device", show_text, kText});
  }
  if (differs("/nodes", 1)) {
    columns.push_back({"nodes", "/nodes", show_count});
  }
  const std::vector<Column> numbers = {
      {"ranks", "/world_size", show_count},
      {"batch", "/global_batch", show_count},
      {"step, ms", "/step_ms/median", show_median},
      {"p10 – p90", "/step_ms", show_spread},
      {"samples/s", "/samples_per_second", show_count},
      {"vs one process", "/relative_speedup", show_factor},
      {"efficiency", "/efficiency", show_efficiency},
      {"parity", "/parity/ok", show_parity, kText},
  };
  columns.insert(columns.end(), numbers.begin(), numbers.end());
  return make_table("All configurations", columns, runs, true);
}

/// Those of the plots by number of ranks, and of the parts of a step.
void add_step_tables(const Runs& measured, Data& data) {
  const auto add = [&](const char* key, const char* caption, const Runs& runs,
                       const std::vector<Column>& columns) {
    std::vector<Column> all = {{"configuration", "/full_name", show_text, kText},
                               {"ranks", "/world_size", show_count}};
    all.insert(all.end(), columns.begin(), columns.end());
    data.set(key, make_table(caption, all, runs, true));
  };
  add("step_times", "The numbers: step time, ms", measured,
      {{"median", "/step_ms/median"},
       {"p10", "/step_ms/p10"},
       {"p90", "/step_ms/p90"},
       {"p95", "/step_ms/p95"},
       {"steps", "/step_ms/n", show_count}});
  add("speedups", "The numbers: speed-up", measured,
      {{"samples/s", "/samples_per_second", show_count},
       {"vs one process", "/relative_speedup", show_factor}});
  add("efficiencies", "The numbers: efficiency", measured,
      {{"efficiency", "/efficiency", show_efficiency}});
  add("phases", "The numbers: parts of a step, ms", measured,
      {{"data", "/phases_ms/data"},
       {"forward", "/phases_ms/forward"},
       {"backward", "/phases_ms/backward"},
       {"exposed comm.", "/phases_ms/exposed_comm"},
       {"optimizer", "/phases_ms/optimizer"},
       {"step", "/step_ms/median"},
       {"floor", "/floor_ms"},
       {"predicted", "/predicted_step_ms"}});
  const auto communicates = [](const Json& run) {
    return number_at(run, "/comm/bytes_per_step") || number_at(run, "/comm/alone_ms");
  };
  add("communication", "The numbers: communication in a step", only(measured, communicates),
      {{"bytes per step", "/comm/bytes_per_step", show_count},
       {"alone, ms", "/comm/alone_ms"},
       {"hidden", "/comm/hidden_share", show_percent},
       {"step without it, ms", "/no_comm_step_ms"},
       {"exposed by difference, ms", "/comm/exposed_by_difference_ms"},
       {"bus bandwidth, GB/s", "/comm/bus_bandwidth_gbps"},
       {"buckets", "/comm/bucket_bytes", show_sizes, kText}});
}

void add_prediction_tables(const Json& scaling, const Runs& measured, Data& data) {
  const Runs predicted = only(
      measured, [](const Json& run) { return number_at(run, "/predicted_step_ms").has_value(); });
  Runs worst = predicted;
  std::stable_sort(worst.begin(), worst.end(), [](const Json& a, const Json& b) {
    return std::abs(number_at(a, "/prediction/residual").value_or(0)) >
           std::abs(number_at(b, "/prediction/residual").value_or(0));
  });
  worst.resize(std::min(worst.size(), kMaxWorst));
  std::vector<Column> columns = {{"configuration", "/name", show_text, kCode},
                                 {"measured, ms", "/step_ms/median"},
                                 {"predicted, ms", "/predicted_step_ms"},
                                 {"residual", "/prediction/residual", show_excess}};
  data.set("worst_predictions", make_table("Furthest from the prediction", columns, worst));
  columns.front() = {"configuration", "/full_name", show_text, kText};
  columns.insert(columns.begin() + 1, {"ranks", "/world_size", show_count});
  const std::vector<Column> parts = {{"compute", "/prediction/compute_ms"},
                                     {"communication", "/prediction/comm_ms"},
                                     {"step, ring", "/prediction/ring_step_ms"},
                                     {"step, tree", "/prediction/tree_step_ms"},
                                     {"algorithm", "/prediction/algorithm", show_text, kText}};
  columns.insert(columns.end(), parts.begin(), parts.end());
  data.set("predictions",
           make_table("The numbers: measured, predicted, residual, ms", columns, predicted, true));
  data.set("limits", make_table("The numbers: what the machine can do, per rank",
                                {{"device", "/device", show_text, kText},
                                 {"ranks busy", "/world_size", show_count},
                                 {"fp32, GFLOP/s", "/fp32_gflops"},
                                 {"memory, GB/s", "/memory_bandwidth_gbps"}},
                                objects_at(scaling, "/limits")));
  data.set("micro", make_table("The numbers: parts measured alone",
                               {{"part", "/name", show_text, kText},
                                {"median, µs", "/time_us/median"},
                                {"p10 – p90", "/time_us", show_spread},
                                {"bytes", "/bytes", show_count},
                                {"GB/s", "/bandwidth_gbps"}},
                               objects_at(scaling, "/micro")));
  data.set("extrapolations", make_table("The numbers: predicted for more ranks",
                                        {{"from", "/from", show_text, kCode},
                                         {"algorithm", "/algorithm", show_text, kText},
                                         {"ranks", "/world_size", show_count},
                                         {"step, ms", "/predicted_step_ms"},
                                         {"efficiency", "/efficiency", show_efficiency}},
                                        objects_at(scaling, "/extrapolations")));
}

void add_all_reduce_tables(const Json& scaling, Data& data) {
  data.set("all_reduce", make_table("The numbers: all-reduce",
                                    {{"backend", "/backend", show_text, kText},
                                     {"device", "/device", show_text, kText},
                                     {"ranks", "/world_size", show_count},
                                     {"bytes", "/bytes", show_count},
                                     {"median, µs", "/time_us/median"},
                                     {"p10", "/time_us/p10"},
                                     {"p90", "/time_us/p90"},
                                     {"algorithm, GB/s", "/algorithm_bandwidth_gbps"},
                                     {"bus, GB/s", "/bus_bandwidth_gbps"}},
                                    objects_at(scaling, "/all_reduce")));
  std::vector<Json> regimes;
  for (const Json& model : objects_at(scaling, "/communication_models")) {
    for (const Json& regime : objects_at(model, "/regimes")) {
      regimes.push_back(model);
      regimes.back()["regime"] = regime;
    }
  }
  data.set("models", make_table("The numbers: fitted models",
                                {{"backend", "/backend", show_text, kText},
                                 {"device", "/device", show_text, kText},
                                 {"algorithm", "/algorithm", show_text, kText},
                                 {"ranks", "/world_sizes", show_fact, kText},
                                 {"from bytes", "/regime/from_bytes", show_count},
                                 {"α, µs", "/regime/alpha_us"},
                                 {"β, µs per MiB", "/regime/beta_us_per_mib"},
                                 {"median error", "/median_relative_error", show_tenths},
                                 {"points", "/points", show_count}},
                                regimes));
}

void add_comparison_and_resource_tables(const Json& scaling, const Runs& runs, Data& data) {
  data.set("ratios", make_table("The numbers: ratios of step times",
                                {{"a", "/a", show_text, kCode},
                                 {"over b", "/b", show_text, kCode},
                                 {"kind", "/kind", show_text, kText},
                                 {"ratio", "/ratio_median", show_factor},
                                 {"95 % from", "/ci95/0"},
                                 {"to", "/ci95/1"},
                                 {"pairs", "/pairs", show_count},
                                 {"verdict", "/verdict", show_text, kText}},
                                objects_at(scaling, "/comparisons")));
  std::vector<Column> columns = {
      {"configuration", "/full_name", show_text, kText},
      {"ranks", "/world_size", show_count},
      {"largest rank, MiB", "/peak_rss_mib"},
      {"all ranks, MiB", "/job_peak_rss_mib"},
      {"start-up, s", "/startup_ms", show_seconds},
      {"processors busy", "/cpu_utilisation", show_percent},
      {"slowest rank", "/slowest_rank", show_slowest_rank, kText},
  };
  if (std::any_of(runs.begin(), runs.end(),
                  [](const Json& run) { return at(run, "/gpu").is_object(); })) {
    columns.push_back({"GPU busy, %", "/gpu/utilisation_percent"});
    columns.push_back({"GPU, W", "/gpu/power_w"});
    columns.push_back({"GPU, MiB", "/gpu/memory_mib"});
  }
  const Runs finished = only(runs, [](const Json& run) { return text_at(run, "/error").empty(); });
  data.set("resources",
           make_table("The numbers: memory, start-up, processors", columns, finished, true));
}

/// A list of names and what they stand for.
class Facts {
 public:
  void add(const std::string& name, const std::string& text) {
    if (!text.empty()) {
      Data fact("name", name);
      fact.set("text", text);
      facts_.push_back(fact);
    }
  }
  /// False for none.
  Data data() const { return facts_.empty() ? Data(false) : Data("facts", facts_); }

 private:
  List facts_;
};

std::string fact_name(const std::string& key) {
  static const std::map<std::string, std::string> names = {
      {"host", "Host"},
      {"cpu_model", "Processor"},
      {"cores", "Cores used"},
      {"memory_mib", "Memory, MiB"},
      {"gpus", "GPUs"},
      {"load_average", "Load average before"},
      {"cpu_governor", "Frequency governor"},
      {"virtualised", "Virtual machine"},
      {"kernel", "Kernel"},
      {"os", "System"},
      {"compiler", "Compiler"},
      {"assertions", "Assertions compiled in"},
      {"libtorch", "LibTorch"},
      {"git_commit", "Commit"},
  };
  const auto found = names.find(key);
  return found == names.end() ? key : found->second;
}

/// Of the machine, or of the software; members that this program does not know too.
Data describe_facts(const Json& object) {
  Facts facts;
  if (!object.is_object()) {
    return facts.data();
  }
  for (const auto& [key, value] : object.items()) {
    std::string text = show_fact(value);
    if (key == "launchers" && value.is_object()) {
      for (const auto& [launcher, description] : value.items()) {
        const Json& version = at(description, "/version");
        facts.add(launcher, show_fact(version.is_null() ? description : version));
      }
      continue;
    }
    if (key == "git_commit" && text.size() >= kCommitHash) {
      text = text.substr(0, kShortHash) + text.substr(kCommitHash);  // with "-dirty"
    }
    facts.add(fact_name(key), key == "gpus" && text.empty() ? "none" : text);
  }
  return facts.data();
}

Data describe_settings(const Json& settings) {
  Facts facts;
  const auto add = [&](const char* name, const char* pointer, const std::string& unit) {
    const std::string text = show_fact(at(settings, pointer));
    facts.add(name, text + (text.empty() ? "" : unit));
  };
  add("Repetitions", "/repetitions", "");
  if (at(settings, "/steps_asked").is_null()) {
    facts.add("Timed steps asked for", "none: chosen from the budget");
  } else {
    add("Timed steps asked for", "/steps_asked", "");
  }
  add("Budget", "/budget_s", " s");
  add("Limit for one run", "/timeout_s", " s");
  add("Seed", "/seed", "");
  add("Parity within", "/parity_tolerance", "");
  return facts.data();
}

Data describe_workloads(const Runs& runs) {
  Facts facts;
  std::set<std::string> named;
  for (const Json& run : runs) {
    const std::string model = text_at(run, "/model");
    if (named.insert(model).second) {
      facts.add(model, workload_description(model));
    }
  }
  return facts.data();
}

void add_problem_and_method_tables(const Json& scaling, const Runs& all_runs, Data& data) {
  data.set("errors", make_table("Configurations without a speed",
                                {{"configuration", "/name", show_text, kCode},
                                 {"error", "", show_step_error, kLong}},
                                only(all_runs, has_failed)));
  data.set("not_run", make_table("Not run",
                                 {{"what", "/what", show_text, kLong},
                                  {"reason", "/reason", show_text, kLong}},
                                 objects_at(scaling, "/not_run")));
  data.set("merged_from", make_table("Merged from these reports",
                                     {{"command", "/command", show_text, kCode},
                                      {"host", "/host", show_text, kLong},
                                      {"nodes", "/nodes", show_count}},
                                     objects_at(scaling, "/merged_from")));
  data.set("settings", describe_settings(at(scaling, "/settings")));
  data.set("workloads", describe_workloads(all_runs));
  const std::string command = text_at(scaling, "/settings/command");
  data.set("command", command.empty() ? Data(false) : Data(command));
}

/// Runs of one workload together, in the report's order; controls left out.
Runs by_workload(const Runs& runs) {
  std::map<std::string, std::size_t> place;
  for (const Json& run : runs) {
    place.emplace(text_at(run, "/workload"), place.size());
  }
  Runs ordered = only(runs, [](const Json& run) { return text_at(run, "/kind") != "control"; });
  std::stable_sort(ordered.begin(), ordered.end(), [&](const Json& a, const Json& b) {
    return place[text_at(a, "/workload")] < place[text_at(b, "/workload")];
  });
  return ordered;
}

/// For the script, which finds a name for each run at the run's place in the document.
Json names_for_script(const Json& runs_of_document, const Runs& named, const Json& series) {
  Json names = Json::array();
  std::size_t next = 0;
  for (const Json& run : runs_of_document.is_array() ? runs_of_document : Json::array()) {
    names.push_back(nullptr);
    if (run.is_object()) {
      names.back() = {{"series", named[next]["series"]}, {"workload", named[next]["workload"]}};
      ++next;
    }
  }
  return {{"series", series}, {"runs", names}};
}

Data page_data(const Json& document) {
  const Json& scaling = at(document, "/ddp_scaling");
  Runs all_runs = objects_at(scaling, "/runs");
  const Json series = name_series(all_runs);
  const Runs runs = by_workload(all_runs);
  const Runs measured = only(runs, has_speed);
  const std::vector<Json> comparisons = objects_at(scaling, "/comparisons");
  const Runs winners = find_winners(runs, comparisons);

  Data data;
  const std::string host = text_at(scaling, "/machine/host");
  const std::string date = text_at(document, "/context/date");
  data.set("host", host.empty() ? Data(false) : Data(host));
  data.set("date", date.empty() ? Data(false) : Data(date));
  data.set("partial", at(scaling, "/partial") == true);
  const std::size_t failed = only(all_runs, has_failed).size();
  data.set("failed", failed == 0 ? Data(false) : Data(std::to_string(failed)));
  data.set("run_count", std::to_string(all_runs.size()));
  data.set("result", result_sentence(all_runs, winners));
  data.set("winners", make_table("The fastest of each workload",
                                 {{"workload", "/workload", show_text, kText},
                                  {"fastest", "/fastest", show_text, kText},
                                  {"samples/s", "/samples_per_second", show_count},
                                  {"vs one process", "/relative_speedup", show_factor},
                                  {"95 % interval", "/interval", show_interval},
                                  {"efficiency", "/efficiency", show_efficiency}},
                                 winners));
  data.set("machine", describe_facts(at(scaling, "/machine")));
  data.set("software", describe_facts(at(scaling, "/software")));
  data.set("scaled_efficiency", show_efficiency(kScaledEfficiency));
  data.set("tolerance", show_percent(kControlTolerance));
  data.set("tolerance_share", Json(kControlTolerance).dump());
  List keys;
  for (const Json& one : series) {
    Data key;
    for (const char* member : {"label", "full_name", "hue"}) {
      key.set(member, one[member].get<std::string>());
    }
    keys.push_back(key);
  }
  data.set("keys", keys);
  data.set("summary", summary_table(runs));
  add_step_tables(measured, data);
  add_prediction_tables(scaling, measured, data);
  List assumptions;
  if (const Json& list = at(scaling, "/assumptions"); list.is_array()) {
    for (const Json& assumption : list) {
      assumptions.push_back(Data("assumption", show_fact(assumption)));
    }
  }
  data.set("assumptions", assumptions);
  add_all_reduce_tables(scaling, data);
  add_comparison_and_resource_tables(scaling, runs, data);
  add_problem_and_method_tables(scaling, all_runs, data);
  const auto has_one = [&](const char* a, const char* b, const char* c) {
    return !data.get(a)->is_false() || !data.get(b)->is_false() || !data.get(c)->is_false();
  };
  data.set("has_prediction", has_one("predictions", "limits", "micro"));
  data.set("has_all_reduce", has_one("all_reduce", "models", "models"));
  data.set("document", embed(document));
  data.set("names", embed(names_for_script(at(scaling, "/runs"), all_runs, series)));
  return data;
}

}  // namespace
}  // namespace page

std::string render_page(const nlohmann::ordered_json& document) {
  // Once through text: what is not UTF-8 is replaced, and numbers that are none become null. The
  // page then shows what the document in it holds.
  using page::Json;
  page::Data data =
      page::page_data(Json::parse(document.dump(-1, ' ', false, Json::error_handler_t::replace)));
  data.set("table", page::table_html);
  data.set("details", "<details><summary>{{caption}}</summary>\n{{>table}}\n</details>\n");
  data.set("facts_list", "<dl>{{#facts}}<dt>{{name}}</dt><dd>{{text}}</dd>{{/facts}}</dl>");
  data.set("style_sheet", page::page_css);
  data.set("script", page::page_js);
  data.set("chart_library", page::chart_js);
  kainjow::mustache::mustache page_template(page::page_html);
  page_template.set_custom_escape(page::escape);
  return page_template.render(data);
}

void write_page(const std::string& file, const nlohmann::ordered_json& document) {
  const std::string page = render_page(document);
  write_output_file(file, [&](std::ostream& out) { out << page; });
}

}  // namespace ddp::bench
