#include "bench/page.hpp"

#include <fstream>

#include "common/base/exit_codes.hpp"

namespace ddp::bench {

// In the program itself, so that the page needs no other file: see page_assets.cpp.in.
extern const char* const kPageTemplate;
extern const char* const kChartLibrary;  ///< with its copyright notices

namespace {

/// As text of a <script> element: no "<" is left that could end it.
std::string inlined(const nlohmann::ordered_json& document) {
  std::string text;
  for (const char c :
       document.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)) {
    text += c == '<' ? "\\u003c" : std::string(1, c);
  }
  return text;
}

}  // namespace

void write_page(const std::string& file, const nlohmann::ordered_json& document) {
  const std::string page = kPageTemplate;
  const std::string library_mark = "/*LIBRARY*/";
  const std::string document_mark = "/*DOCUMENT*/";
  const std::size_t library = page.find(library_mark);
  const std::size_t data = page.find(document_mark, library);
  std::ofstream out(file, std::ios::binary);
  out << page.substr(0, library) << kChartLibrary
      << page.substr(library + library_mark.size(), data - library - library_mark.size())
      << inlined(document) << page.substr(data + document_mark.size());
  out.close();
  if (!out) {
    throw Error(ExitCode::kTrainingFailed, "--html: cannot write " + file);
  }
}

}  // namespace ddp::bench
