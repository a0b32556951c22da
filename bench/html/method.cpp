// What went wrong, and how the rest was measured.
#include <cmath>
#include <set>

#include "bench/html/sections.hpp"
#include "bench/run/catalog.hpp"

namespace ddp::bench::html {
namespace {

using nlohmann::ordered_json;

std::string settings_list(const ordered_json& settings) {
  struct Setting {
    const char* key;
    const char* title;
    const char* unit;
  };
  constexpr Setting kSettings[] = {
      {"repetitions", "Repetitions", ""},
      {"steps_asked", "Timed steps asked for", ""},
      {"budget_s", "Budget", "s"},
      {"timeout_s", "Limit for one run", "s"},
      {"seed", "Seed", ""},
      {"parity_tolerance", "Parity within", ""},
  };
  std::string rows;
  for (const Setting& setting : kSettings) {
    const Number value = number_at(settings, setting.key);
    std::string text = !value ? "" : std::abs(*value) < 1e-3 ? show(value) : exact(*value);
    text += value && *setting.unit != '\0' ? std::string(" ") + setting.unit : "";
    if (!value && std::string(setting.key) == "steps_asked") {
      text = "none: chosen from the budget";
    }
    rows += !text.empty()
                ? std::string("<dt>") + setting.title + "</dt><dd>" + escape(text) + "</dd>"
                : "";
  }
  return rows.empty() ? "" : "<dl>" + rows + "</dl>";
}

std::string workloads(const Document& document) {
  std::string html;
  std::set<std::string> named;
  for (const Run& run : document.runs) {
    const std::string description = workload_description(run.model);
    if (!description.empty() && named.insert(run.model).second) {
      html += "<dt>" + escape(run.model) + "</dt><dd>" + escape(description) + "</dd>";
    }
  }
  return html.empty() ? "" : "<h3>Workloads</h3><dl>" + html + "</dl>";
}

std::string merged_reports(const Document& document) {
  Table table("Merged from these reports", {{"command", false}, {"host", false}, {"nodes"}});
  for (const ordered_json& merged : document.merged_from) {
    const Number nodes = number_at(merged, "nodes");
    table.add({code_cell(text_at(merged, "command")), long_cell(text_at(merged, "host")),
               number_cell(nodes, show_count(nodes))});
  }
  return table.html();
}

}  // namespace

Section problems_section(const Material& material) {
  const Document& document = material.document;
  Table errors("Configurations without a speed", {{"configuration", false}, {"error", false}});
  for (const Run& run : document.runs) {
    if (!run.error.empty()) {
      errors.add({code_cell(run.name), long_cell(run.error)});
    } else if (run.parity_ok == false) {
      errors.add({code_cell(run.name), text_cell("parity failed")});
    }
  }
  Table not_run("Not run", {{"what", false}, {"reason", false}});
  for (const auto& [what, reason] : document.not_run) {
    not_run.add({long_cell(what), long_cell(reason)});
  }
  std::string html = errors.html() + not_run.html();
  if (html.empty() && !document.runs.empty()) {
    html = paragraph("No configuration failed, and nothing was left out.");
  }
  return {"problems", "Errors, and what was not run", html};
}

Section method_section(const Material& material) {
  const Document& document = material.document;
  const std::string command = text_at(document.settings, "command");
  std::string html = paragraph(
      "The real stage programs were run, never a copy of their loop. Each configuration first "
      "trained once on the same data and had to end on the same weights as one process. The number "
      "of steps was chosen before anything was timed; then all repetitions of all configurations "
      "ran in one random order, so that a slow minute of the machine hits all alike. The first "
      "steps of each run are warm-up and dropped. A step takes as long as on its slowest rank; "
      "times are medians, never means or best-of. With fewer than five samples there is no "
      "spread, with fewer than three pairs no interval.");
  html += command.empty() ? "" : "<pre>" + escape(command) + "</pre>";
  html += settings_list(document.settings) + workloads(document) + merged_reports(document);
  return {"method", "How it was measured", html};
}

}  // namespace ddp::bench::html
