// libFuzzer's entry: DDP_FUZZED_READER=snapshot build-fuzz/tests/fuzz CORPUS_FOLDER... See
// docs/reliability.md.
#include <cstdint>
#include <cstdlib>
#include <iostream>

#include "tests/support/fuzzed_readers.hpp"

namespace {

const ddp::test::FuzzedReader& wanted() {
  const char* const name = std::getenv("DDP_FUZZED_READER");
  for (const ddp::test::FuzzedReader& reader : ddp::test::fuzzed_readers()) {
    if (name != nullptr && std::string(name) == reader.name) {
      return reader;
    }
  }
  std::cerr << "DDP_FUZZED_READER: got \"" << (name == nullptr ? "" : name)
            << "\", expected one of:";
  for (const ddp::test::FuzzedReader& reader : ddp::test::fuzzed_readers()) {
    std::cerr << ' ' << reader.name;
  }
  std::cerr << '\n';
  std::exit(2);
}

}  // namespace

/// An exception that it lets through ends the process, which is what libFuzzer looks for.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  static const ddp::test::FuzzedReader& reader = wanted();
  reader.read(std::string(reinterpret_cast<const char*>(bytes), size));
  return 0;
}
