// tests/support/peak_memory.hpp - how much memory something needs for a moment.
#pragma once

#include <fstream>
#include <stdexcept>

#include "common/base/process_usage.hpp"

namespace ddp::test {

/// By how much the largest resident set during `body` exceeds what is resident before it.
template <typename Body>
double peak_growth_mib(const Body& body) {
  std::ofstream reset("/proc/self/clear_refs");
  if (!(reset << 5 << std::flush)) {  // the peak becomes what is used now
    throw std::runtime_error("cannot write to /proc/self/clear_refs");
  }
  const double before_mib = peak_rss_mib();
  body();
  return peak_rss_mib() - before_mib;
}

}  // namespace ddp::test
