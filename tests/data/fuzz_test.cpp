// Headers of safetensors files from the corpus are read or refused; libFuzzer tries other headers.
#include <fstream>

#include "tests/support/catch.hpp"

namespace ddp::test {

/// Reads a file with eight bytes of data and a right checksum, as a snapshot and as data.
/// @param tensors the header after its metadata: R"("t":{"dtype":"F64","shape":[1],...}})"
/// @return true if it is a snapshot @throws unless the file is read or refused by a ddp::Error of
/// one line
bool reads_header(const std::string& tensors);  // in safetensors_fuzz.cpp

}  // namespace ddp::test

TEST_CASE("safetensors headers are read or refused", "[fuzz]") {
  std::ifstream corpus(DDP_SOURCE_DIR "/tests/data/safetensors_corpus.txt");
  int headers = 0;
  for (std::string line; std::getline(corpus, line); ++headers) {
    INFO(line);
    const size_t tab = line.find('\t');
    CHECK(ddp::test::reads_header(line.substr(tab + 1)) == (line.substr(0, tab) == "read"));
  }
  CHECK(headers > 30);
}
