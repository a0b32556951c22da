#include "bench/report/page/page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <kainjow/mustache.hpp>
#include <map>
#include <ostream>
#include <vector>

#include "bench/report/catalog.hpp"
#include "bench/report/conclusions.hpp"
#include "bench/report/output_file.hpp"
#include "bench/report/page/assets.hpp"
#include "bench/report/page/series.hpp"
#include "bench/report/page/tables.hpp"
#include "bench/report/verdict.hpp"

namespace ddp::bench {
namespace page {
namespace {

using Runs = std::vector<NamedRun>;

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

/// What is not UTF-8 is replaced, and numbers that are none become null.
std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// JSON that no HTML parser takes for the end of its element. "<" only stands in strings.
std::string embed(const Json& json) {
  std::string safe;
  for (const char c : dump(json)) {
    safe += c == '<' ? "\\u003c" : std::string(1, c);
  }
  return safe;
}

/// What the template takes; an empty text is one that is not there.
kainjow::mustache::data to_data(const Json& json) {
  kainjow::mustache::data data(json == true);
  if (json.is_string() && json != "") {
    data = json.get<std::string>();
  } else if (json.is_array()) {
    data = kainjow::mustache::list();
    for (const Json& element : json) {
      data.push_back(to_data(element));
    }
  } else if (json.is_object()) {
    data = kainjow::mustache::data::type::object;
    for (const auto& [name, member] : json.items()) {
      data.set(name, to_data(member));
    }
  }
  return data;
}

bool has_failed(const Run& run) {
  return run.error || !run.parity.ok;
}

/// Runs of one workload together, in the report's order; controls and points of sweeps left out.
Runs by_workload(const Report& report, const Runs& runs) {
  std::map<Json, std::size_t> place;
  for (const NamedRun& one : runs) {
    place.emplace(one.row["workload"], place.size());
  }
  Runs ordered;
  std::ranges::remove_copy_if(runs, std::back_inserter(ordered), [&](const NamedRun& one) {
    return one.run->is_control() || report.is_swept(*one.run);
  });
  std::ranges::stable_sort(ordered, {},
                           [&](const NamedRun& one) { return place.at(one.row["workload"]); });
  return ordered;
}

Json rows_of(const Runs& runs) {
  Json rows = Json::array();
  for (const NamedRun& one : runs) {
    rows.push_back(one.row);
  }
  return rows;
}

/// Each row once for every element of its list, with that element.
Json unfold(const Json& rows, const char* list, const char* element) {
  Json unfolded = Json::array();
  for (const Json& row : rows) {
    for (const Json& one : row[list]) {
      unfolded.push_back(row);
      unfolded.back()[element] = one;
    }
  }
  return unfolded;
}

/// What tables can show, by the name that contents.jsonc has for it.
Json collect_rows(const Report& report, const Runs& all, const Runs& shown) {
  const auto only = [](const Runs& runs, const auto& keep) {
    Runs kept;
    std::ranges::copy_if(runs, std::back_inserter(kept), keep,
                         [](const NamedRun& one) -> const Run& { return *one.run; });
    return kept;
  };
  const Runs measured = only(shown, &Run::has_speed);
  const Runs predicted =
      only(measured, [](const Run& run) { return run.predicted_step_ms.has_value(); });
  Runs worst = predicted;
  std::ranges::stable_sort(worst, std::greater(), [](const NamedRun& one) {
    return std::abs(one.run->prediction.residual.value_or(0));
  });
  worst.resize(std::min(worst.size(), kMaxWorst));

  Json rows = to_json(report);
  rows["shown"] = rows_of(shown);
  rows["failed"] = rows_of(only(all, has_failed));
  rows["finished"] = rows_of(only(shown, [](const Run& run) { return !run.error; }));
  rows["measured"] = rows_of(measured);
  rows["communicating"] = rows_of(
      only(measured, [](const Run& run) { return run.comm.bytes_per_step || run.comm.alone_ms; }));
  rows["predicted"] = rows_of(predicted);
  rows["worst_predicted"] = rows_of(worst);
  rows["regimes"] = unfold(rows["communication_models"], "regimes", "regime");
  rows["sweeps"] = unfold(rows["crossover"], "values", "point");
  rows["memory_rates"] = unfold(rows["limits"], "memory", "rate");
  return rows;
}

void add_fact(const std::string& name, const std::string& text, Json& facts) {
  if (!text.empty()) {
    facts.push_back({{"name", name}, {"text", text}});
  }
}

/// {"facts": ...}, or false for none.
Json as_list(const Json& facts) {
  return facts.empty() ? Json(false) : Json{{"facts", facts}};
}

/// Of the machine, or of the software; members that this program does not know too.
Json describe_facts(const Json& object, const Json& names) {
  Json facts = Json::array();
  for (const auto& [key, value] : object.items()) {
    std::string text = show_fact(value);
    if (key == "launchers" && value.is_object()) {
      for (const auto& [launcher, description] : value.items()) {
        const bool has_version =
            description.is_object() && !description.value("version", Json()).is_null();
        add_fact(launcher, show_fact(has_version ? description["version"] : description), facts);
      }
      continue;
    }
    if (key == "git_commit" && text.size() >= kCommitHash) {
      text = text.substr(0, kShortHash) + text.substr(kCommitHash);  // with "-dirty"
    }
    add_fact(names.value(key, key), key == "gpus" && text.empty() ? "none" : text, facts);
  }
  return as_list(facts);
}

Json describe_settings(const Json& settings, const Json& names) {
  Json facts = Json::array();
  for (const Json& entry : names) {
    const std::string member = entry[1];
    const std::string text = show_fact(settings.value(member, Json()));
    if (member == "steps_asked" && text.empty()) {
      add_fact(entry[0], "none: chosen from the budget", facts);
    } else if (!text.empty()) {
      add_fact(entry[0], text + std::string(entry[2]), facts);
    }
  }
  return as_list(facts);
}

Json describe_workloads(const Report& report) {
  std::vector<std::string> models;
  Json facts = Json::array();
  for (const Run& run : report.runs) {
    if (std::ranges::count(models, run.model) == 0) {
      models.push_back(run.model);
      add_fact(run.model, workload_description(run.model), facts);
    }
  }
  return as_list(facts);
}

/// Everything that page.html asks for.
Json page_data(const Json& document, const Report& report) {
  const Json contents = Json::parse(contents_jsonc, nullptr, true, /*ignore_comments=*/true);
  // Those of earlier versions of the document are drawn now.
  const std::vector<Conclusion> conclusions =
      report.conclusions.empty() ? conclude(report, {}) : report.conclusions;
  const NamedRuns named = name_runs(report);
  const Runs shown = by_workload(report, named.runs);
  const auto failed =
      std::ranges::count_if(report.runs, [](const Run& run) { return has_failed(run); });
  Json names = {{"series", named.series}, {"runs", Json::array()}};
  for (const NamedRun& one : named.runs) {
    names["runs"].push_back({{"series", one.row["series"]},
                             {"workload", one.row["workload"]},
                             {"is_swept", report.is_swept(*one.run)}});
  }
  Json data = {
      {"host", show_fact(report.machine.value("host", Json()))},
      {"date", show_fact(document["context"].value("date", Json()))},
      {"partial", report.partial},
      {"failed", failed == 0 ? "" : std::to_string(failed)},
      {"run_count", std::to_string(report.runs.size())},
      {"answers", Json::array()},
      {"trust", Json::array()},
      {"machine", describe_facts(report.machine, contents["facts"])},
      {"software", describe_facts(report.software, contents["facts"])},
      {"scaled_efficiency", show_efficiency(kScaledEfficiency)},
      {"tolerance", show_percent(kControlTolerance)},
      {"tolerance_share", Json(kControlTolerance).dump()},
      {"keys", named.series},
      {"assumptions", report.assumptions},
      {"command", show_fact(report.settings.value("command", Json()))},
      {"settings", describe_settings(report.settings, contents["settings"])},
      {"workloads", describe_workloads(report)},
      {"document", embed(document)},
      {"names", embed(names)},
  };
  const Json rows = collect_rows(report, named.runs, shown);
  for (const auto& [name, table] : contents["tables"].items()) {
    data[name] = make_table(table, rows.value(std::string(table["rows"]), Json::array()));
  }
  const auto has_one = [&](std::initializer_list<const char*> tables) {
    return std::ranges::any_of(tables, [&](const char* table) { return data[table] != false; });
  };
  data["has_prediction"] = has_one({"predictions", "limits", "micro"});
  for (const auto& [question, texts] : by_question(conclusions)) {
    if (question == kTrust) {
      data["trust"] = texts;
    } else {
      data["answers"].push_back({{"question", question}, {"texts", texts}});
    }
  }
  data["has_trust"] = !data["trust"].empty();
  data["has_all_reduce"] = has_one({"all_reduce", "models"});
  return data;
}

}  // namespace
}  // namespace page

std::string render_page(const nlohmann::ordered_json& document, const Report& report) {
  // Once through text, so that what a program wrote is UTF-8.
  const auto valid = page::Json::parse(page::dump(page::page_data(document, report)));
  kainjow::mustache::data data = page::to_data(valid);
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

void write_page(const std::string& file, const nlohmann::ordered_json& document,
                const Report& report) {
  const std::string page = render_page(document, report);
  write_output_file(file, [&](std::ostream& out) { out << page; });
}

}  // namespace ddp::bench
