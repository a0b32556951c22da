// bench/print.hpp - the screen: a table a model, where a step's time goes, the sentences.
#pragma once

#include <ostream>

#include "bench/record.hpp"

namespace ddp::bench {

/// The widest line that print() writes.
inline constexpr std::size_t kScreenWidth = 100;

/// At most 45 lines for a default report. A run without speed says why in its own line.
void print(std::ostream& out, const Report& report);

}  // namespace ddp::bench
