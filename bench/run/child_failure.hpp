// bench/run/child_failure.hpp - why a program failed, in one line.
#pragma once

#include <string>

#include "bench/run/child_process.hpp"

namespace ddp::bench {

/// How it ended, and the line of its standard error that most likely tells why. Never empty.
std::string describe_failure(const ChildResult& result, double timeout_s);

}  // namespace ddp::bench
