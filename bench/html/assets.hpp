// bench/html/assets.hpp - the files that are part of every page, put into the program by CMake.
#pragma once

namespace ddp::bench::html {

extern const char* const style_sheet;
/// Declarations alone, for :root.
extern const char* const dark_colors;
extern const char* const script;

}  // namespace ddp::bench::html
