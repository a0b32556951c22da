// What fuzzers have found worth keeping, and mutations of it, read in seconds: every reader of
// bytes that others have written reads or refuses, and does nothing else. The fuzzer itself is
// fuzz_main.cpp, run by hand (docs/reliability.md).
#include <filesystem>
#include <fstream>
#include <iterator>

#include "common/base/exit_codes.hpp"
#include "common/base/scratch_folder.hpp"
#include "common/data/tensor_file.hpp"
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

TEST_CASE("a tensor's shape is whole numbers", "[fuzz]") {
  const ddp::ScratchFolder folder("ddp-fuzz-test");
  const std::string path = folder.path() + "/s";
  const auto accepted = [&](const std::string& shape) {
    std::string header = R"({"__metadata__":{"xxh3_128":")" + std::string(32, '0') +
                         R"("},"t":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":[0,4]}})";
    std::string bytes(sizeof(uint64_t), '\0');
    bytes[0] = static_cast<char>(header.size());
    std::ofstream(path, std::ios::binary) << ddp::test::with_checksum(bytes + header + "four");
    try {
      return ddp::read_tensor_file(path).tensors.front().second.numel() == 1;
    } catch (const ddp::Error& error) {
      CHECK(error.code() == ddp::ExitCode::kSnapshotRefused);
      return false;
    }
  };
  CHECK(accepted("[1]"));
  CHECK(accepted("[1,1]"));
  for (const std::string shape : {"[1.5]", "[1.0]", "[true]", "[-1]", "[46116860128212499449]",
                                  "[2]", "[9223372036854775808]", "[null]", "1", "[[1]]"}) {
    INFO(shape);
    CHECK_FALSE(accepted(shape));
  }
}
