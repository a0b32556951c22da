// Headers of safetensors files that are read or refused as the corpus says, and mutations of them
// that are read or refused whatever they say.
#include <fstream>
#include <vector>

#include "tests/catch.hpp"
#include "tests/safetensors_fuzz.hpp"

namespace {

struct Header {
  bool is_read;
  std::string text;
};

std::vector<Header> corpus() {
  std::ifstream file(DDP_SOURCE_DIR "/tests/corpus/safetensors.txt");
  std::vector<Header> headers;
  for (std::string line; std::getline(file, line);) {
    const size_t tab = line.find('\t');
    headers.push_back({line.substr(0, tab) == "read", line.substr(tab + 1)});
  }
  return headers;
}

/// The same numbers on every machine.
class Random {
 public:
  size_t below(size_t bound) {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return static_cast<size_t>(state_ >> 33U) % bound;
  }

 private:
  uint64_t state_ = 1;
};

/// Overwritten, cut, or with a piece of another.
std::string mutated(std::string text, const std::string& other, Random& random) {
  for (size_t edits = 1 + random.below(4); edits > 0; --edits) {
    const size_t at = random.below(text.size() + 1);
    const size_t from = random.below(other.size() + 1);
    switch (random.below(3)) {
      case 0:
        text.replace(at, 1, 1, static_cast<char>(random.below(256)));
        break;
      case 1:
        text.erase(at, 1 + random.below(8));
        break;
      default:
        text.insert(at, other, from, 1 + random.below(64));
        break;
    }
  }
  return text;
}

}  // namespace

TEST_CASE("safetensors headers are read or refused, mutated ones too", "[fuzz]") {
  constexpr int kMutations = 3000;
  const std::vector<Header> headers = corpus();
  REQUIRE(headers.size() > 30);
  for (const Header& header : headers) {
    INFO(header.text);
    CHECK(ddp::test::reads_header(header.text) == header.is_read);
  }
  Random random;
  for (int i = 0; i < kMutations; ++i) {
    const std::string text = mutated(headers[random.below(headers.size())].text,
                                     headers[random.below(headers.size())].text, random);
    INFO(text);
    REQUIRE_NOTHROW(ddp::test::reads_header(text));
  }
}
