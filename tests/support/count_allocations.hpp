// tests/support/count_allocations.hpp - how often the heap was asked for memory.
#pragma once

#include <cstdint>

namespace ddp::test {

/// Requests for heap memory so far, by any thread of this program and any library in it: malloc and
/// its relatives, which operator new calls too. A program that uses this links
/// count_allocations.cpp, which replaces them.
uint64_t allocations();

}  // namespace ddp::test
