#include "bench/report/html_report.hpp"

#include <algorithm>
#include <ostream>
#include <string_view>
#include <vector>

#include "bench/html/assets.hpp"
#include "bench/html/sections.hpp"
#include "bench/html/text.hpp"
#include "bench/report/output_file.hpp"

namespace ddp::bench {
namespace {

using nlohmann::ordered_json;

// The browser holds the page to its promise: nothing is fetched, and nothing but this is run.
constexpr const char* kHead =
    "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
    "style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'\">\n"
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
    "<meta name=\"color-scheme\" content=\"light dark\">\n";

constexpr const char* kTools =
    "<div class=\"tools\"><button id=\"download\" type=\"button\" hidden>Download the data"
    "</button><button id=\"theme\" type=\"button\" hidden>Theme: auto</button></div>\n";

/// Dark by the reader's choice, or by that of the system; never on paper.
std::string style_sheet() {
  const std::string dark = html::dark_colors;
  return std::string(html::style_sheet) +
         "@media screen and (prefers-color-scheme: dark) {\n:root:not([data-theme=\"light\"]) {\n" +
         dark + "}\n}\n@media screen {\n:root[data-theme=\"dark\"] {\n" + dark + "}\n}\n";
}

/// The same JSON without what an HTML parser would stumble over: "</script>", "<!--", characters
/// that no page may hold. All of these can only stand in strings.
std::string without_markup(const std::string& json) {
  std::string safe;
  safe.reserve(json.size());
  for (std::size_t i = 0; i < json.size(); ++i) {
    const std::string_view character(json.data() + i, std::min<std::size_t>(3, json.size() - i));
    if (json[i] == '<') {
      safe += "\\u003c";
    } else if (json[i] == '\x7F') {
      safe += "\\u007f";
    } else if (character == "\xEF\xBF\xBE" || character == "\xEF\xBF\xBF") {
      safe += character == "\xEF\xBF\xBE" ? "\\ufffe" : "\\uffff";
      i += 2;
    } else {
      safe += json[i];
    }
  }
  return safe;
}

std::string page_title(const html::Document& document) {
  const std::string host = html::text_at(document.machine, "host");
  return "Scaling of data-parallel training" + (host.empty() ? "" : ", " + host);
}

std::string navigation(const std::vector<html::Section>& sections) {
  std::string items;
  for (const html::Section& section : sections) {
    items += "<li><a href=\"#" + section.id + "\">" + html::escape(section.title) + "</a></li>";
  }
  return items.empty() ? "" : "<nav aria-label=\"Contents\"><ul>" + items + "</ul></nav>\n";
}

}  // namespace

std::string make_html_report(const ordered_json& document) {
  // Once through text: what is not UTF-8 is replaced, and numbers that are none become null. The
  // page then shows what the document in it holds.
  const std::string json = document.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  const html::Material material(ordered_json::parse(json));

  std::vector<html::Section> sections;
  for (const auto make :
       {html::summary_section, html::step_time_section, html::speedup_section,
        html::efficiency_section, html::phases_section, html::prediction_section,
        html::extrapolation_section, html::all_reduce_section, html::ratios_section,
        html::resources_section, html::problems_section, html::method_section}) {
    if (html::Section section = make(material); !section.html.empty()) {
      sections.push_back(std::move(section));
    }
  }

  std::string page = kHead;
  page += "<title>" + html::escape(page_title(material.document)) + "</title>\n<style>\n" +
          style_sheet() + "</style>\n</head>\n<body>\n" + kTools + html::overview(material) + "\n" +
          navigation(sections) + "<main>\n";
  for (const html::Section& section : sections) {
    page += "<section id=\"" + section.id + "\"><h2>" + html::escape(section.title) + "</h2>" +
            section.html + "</section>\n";
  }
  page +=
      "</main>\n<footer>Made by bench from the JSON document that lies in this page.</footer>\n";
  page += "<script type=\"application/json\" id=\"document\">" + without_markup(json) +
          "</script>\n<script>\n" + html::script + "</script>\n</body>\n</html>\n";
  return page;
}

void write_html_file(const std::string& file, const ordered_json& document) {
  const std::string page = make_html_report(document);
  write_output_file(file, [&](std::ostream& out) { out << page; });
}

}  // namespace ddp::bench
