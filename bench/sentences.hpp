// bench/sentences.hpp - what the report says, in at most five sentences.
#pragma once

#include "bench/record.hpp"

namespace ddp::bench {

/// Fills report.sentences from report.comparisons, after judge(). A sentence claims a difference
/// only where a comparison is significant; every number in it is the ratio of a comparison.
///   fastest   the stage's run with the most samples/s, and those not significantly slower
///   ranks     the fastest stage of each world size against one process
///   threads   ranks against threads of one process, on the same cores
///   peers     our fastest stage against each framework, and both over the same transport
///   controls  how far equal commands differed
void write_sentences(Report& report);

}  // namespace ddp::bench
