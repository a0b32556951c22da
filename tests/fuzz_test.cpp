// Headers of safetensors files are read or refused as the corpus says; libFuzzer tries others.
#include <fstream>

#include "tests/catch.hpp"
#include "tests/safetensors_fuzz.hpp"

TEST_CASE("safetensors headers are read or refused", "[fuzz]") {
  std::ifstream corpus(DDP_SOURCE_DIR "/tests/corpus/safetensors.txt");
  int headers = 0;
  for (std::string line; std::getline(corpus, line); ++headers) {
    INFO(line);
    const size_t tab = line.find('\t');
    CHECK(ddp::test::reads_header(line.substr(tab + 1)) == (line.substr(0, tab) == "read"));
  }
  CHECK(headers > 30);
}
