// bench/report/page/assets.hpp - the files of the page, which the build puts into the program.
#pragma once

namespace ddp::bench::page {

extern const char* const page_html;
extern const char* const table_html;
extern const char* const page_css;
extern const char* const page_js;
extern const char* const contents_jsonc;
extern const char* const chart_js;  ///< Chart.js, with its copyright notices

}  // namespace ddp::bench::page
