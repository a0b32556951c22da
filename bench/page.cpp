#include "bench/report.hpp"

#include <regex>

#include "common/base/files.hpp"
#include "common/base/json_text.hpp"

namespace ddp::bench {

// Part of the program, so that it needs no other file: see CMakeLists.txt.
extern const char* const kPageTemplate;
extern const char* const kChartLibrary;  ///< with its copyright notices

namespace {

void fill(std::string& page, const std::string& mark, const std::string& text) {
  page.replace(page.find(mark), mark.size(), text);
}

}  // namespace

void write_page(const std::string& file, const nlohmann::ordered_json& document) {
  std::string page = kPageTemplate;
  fill(page, "/*LIBRARY*/", kChartLibrary);
  // Without "<", which could end the <script> element.
  fill(page, "/*DOCUMENT*/", std::regex_replace(json_text(document), std::regex("<"), "\\u003c"));
  replace_file("report", file, page);
}

}  // namespace ddp::bench
