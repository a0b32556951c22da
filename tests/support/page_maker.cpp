// Makes the pages of the reports in the JSON list on standard input, and writes each with a NUL
// behind it; "refused: " and why for what is no report. What JSON cannot hold is written as text:
// "@nan", "@infinity", and "@bytes" for bytes that are not UTF-8.
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "bench/report/page/page.hpp"
#include "bench/report/report_file.hpp"
#include "common/base/exit_codes.hpp"

namespace {

void replace_marks(nlohmann::ordered_json& value) {
  if (value.is_structured()) {
    for (nlohmann::ordered_json& element : value) {
      replace_marks(element);
    }
  } else if (value == "@nan") {
    value = std::nan("");
  } else if (value == "@infinity") {
    value = std::numeric_limits<double>::infinity();
  } else if (value.is_string()) {
    auto& text = value.get_ref<std::string&>();
    if (const std::size_t mark = text.find("@bytes"); mark != std::string::npos) {
      text.replace(mark, 6, "\xFF\xC0\xAF\xED\xA0\x80\xEF\xBF\xBF");
    }
  }
}

}  // namespace

int main() {
  nlohmann::ordered_json documents = nlohmann::ordered_json::parse(std::cin);
  for (nlohmann::ordered_json& document : documents) {
    replace_marks(document);
    try {
      const ddp::bench::ReportFile file = ddp::bench::parse_report("the document", document);
      std::cout << ddp::bench::render_page(file.document, file.report);
    } catch (const ddp::UsageError& error) {
      std::cout << "refused: " << error.what();
    }
    std::cout << '\0';
  }
}
