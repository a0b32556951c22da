// tests/support/fuzzed_readers.hpp - whatever reads bytes that others have written, as fuzzers call
// it.
#pragma once

#include <string>
#include <vector>

namespace ddp::test {

struct FuzzedReader {
  const char* name;  ///< its folder in tests/corpus
  /// Reads the bytes, or refuses them with a ddp::Error. @throws anything else if that is not so
  void (*read)(const std::string& bytes);
};

const std::vector<FuzzedReader>& fuzzed_readers();

/// The bytes of a snapshot with the checksum that they should have, or no fuzzer would ever come
/// past that.
std::string with_checksum(std::string bytes);

}  // namespace ddp::test
