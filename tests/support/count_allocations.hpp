// tests/support/count_allocations.hpp - counts allocations on the heap.
#pragma once

#include <cstdint>

namespace ddp::test {

/// Number of heap allocations so far, by all threads and libraries of this program: malloc and
/// related functions, which operator new calls too. Programs must link count_allocations.cpp, which
/// replaces these functions.
uint64_t allocations();

}  // namespace ddp::test
