// bench/report/crossover.hpp - from which width or batch on several ranks win over one process.
#pragma once

#include <vector>

#include "bench/report/record.hpp"

namespace ddp::bench {

/// One entry for each width and each batch that the runs of models such as 64-256-256-10@32 vary,
/// everything else being equal. Runs of stage 03 alone, whose step the launchers' programs run too.
std::vector<Crossover> find_crossovers(const Report& report);

}  // namespace ddp::bench
