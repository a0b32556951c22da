// What fuzzers have found worth keeping, and mutations of it, read in seconds: every reader of
// bytes that others have written reads or refuses, and does nothing else. The fuzzer itself is
// fuzz_main.cpp, run by hand (docs/reliability.md).
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/catch.hpp"
#include "tests/support/fuzzed_readers.hpp"

namespace {

namespace fs = std::filesystem;

/// The same numbers on every machine and in every run.
class Random {
 public:
  size_t below(size_t bound) {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return static_cast<size_t>(state_ >> 33U) % bound;
  }

 private:
  uint64_t state_ = 1;
};

/// Cut, doubled, overwritten, or with a piece of another.
std::string mutated(std::string bytes, const std::string& other, Random& random) {
  for (size_t edits = 1 + random.below(4); edits > 0; --edits) {
    const size_t at = random.below(bytes.size() + 1);
    switch (random.below(5)) {
      case 0:
        bytes.resize(at);
        break;
      case 1:
        bytes.erase(at, 1 + random.below(8));
        break;
      case 2:
        bytes.insert(at, bytes.substr(random.below(bytes.size() + 1), 1 + random.below(16)));
        break;
      case 3:
        bytes.insert(at, other.substr(random.below(other.size() + 1), 1 + random.below(64)));
        break;
      default:
        bytes.replace(at, 1, 1, static_cast<char>(random.below(256)));
        break;
    }
  }
  return bytes;
}

}  // namespace

TEST_CASE("every reader reads or refuses what fuzzers have found, and mutations of it", "[fuzz]") {
  constexpr int kMutations = 2000;
  for (const ddp::test::FuzzedReader& reader : ddp::test::fuzzed_readers()) {
    std::vector<std::string> inputs;
    for (const auto& entry :
         fs::directory_iterator(fs::path(DDP_SOURCE_DIR) / "tests" / "corpus" / reader.name)) {
      std::ifstream file(entry.path(), std::ios::binary);
      inputs.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
      INFO(entry.path());
      CHECK_NOTHROW(reader.read(inputs.back()));
    }
    std::ranges::sort(inputs);  // a folder has no order
    INFO(reader.name);
    REQUIRE(inputs.size() >= 5);
    Random random;
    for (int i = 0; i < kMutations; ++i) {
      const std::string input =
          mutated(inputs[random.below(inputs.size())], inputs[random.below(inputs.size())], random);
      try {
        reader.read(input);
      } catch (const std::exception& error) {
        INFO(error.what() << "\n" << input);
        REQUIRE(false);
      }
    }
  }
}
