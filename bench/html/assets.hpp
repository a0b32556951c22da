// bench/html/assets.hpp - the files that are part of every page, put into the program by CMake.
#pragma once

namespace ddp::bench::html {

extern const char* const kStyleSheet;
/// Declarations alone, for :root.
extern const char* const kDarkColors;
extern const char* const kScript;

}  // namespace ddp::bench::html
