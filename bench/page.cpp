#include "bench/report.hpp"

#include "common/base/files.hpp"
#include "common/base/json_text.hpp"

namespace ddp::bench {

// Part of the program, so that it needs no other file: see embedded.cpp.in.
extern const char* const kPageTemplate;
extern const char* const kChartLibrary;  ///< with its copyright notices

namespace {

/// Text for a <script> element, without "<", which could end it.
std::string inlined(const nlohmann::ordered_json& document) {
  std::string text;
  for (const char c : json_text(document)) {
    text += c == '<' ? "\\u003c" : std::string(1, c);
  }
  return text;
}

void fill(std::string& page, const std::string& mark, const std::string& text) {
  page.replace(page.find(mark), mark.size(), text);
}

}  // namespace

void write_page(const std::string& file, const nlohmann::ordered_json& document) {
  std::string page = kPageTemplate;
  fill(page, "/*LIBRARY*/", kChartLibrary);
  fill(page, "/*DOCUMENT*/", inlined(document));
  replace_file("report", file, page);
}

}  // namespace ddp::bench
