// libFuzzer's entry, docs/reliability.md: whatever a safetensors file's header says, it is read or
// refused. The test `fuzz` calls it too.
#include "tests/safetensors_fuzz.hpp"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "common/base/exit_codes.hpp"
#include "common/base/hash.hpp"
#include "common/base/scratch_folder.hpp"
#include "common/data/tensor_file.hpp"

namespace ddp::test {
namespace {

/// @return whether it was read @throws std::logic_error if it was refused in many words
template <typename Read>
bool reads(const Read& read) {
  constexpr size_t kMostMessage = 4096;  // a line may quote much, but not all of the input
  try {
    read();
    return true;
  } catch (const Error& error) {
    const std::string message = error.what();
    if (message.empty() || message.size() > kMostMessage ||
        message.find('\n') != std::string::npos) {
      throw std::logic_error("expected one short line: " + message);
    }
    return false;
  }
}

}  // namespace

bool reads_header(const std::string& tensors) {
  static const ScratchFolder folder("ddp-fuzz");
  const std::string path = folder.path() + "/fuzzed.safetensors";
  const std::string data(8, '\1');
  std::string header = R"({"__metadata__":{"xxh3_128":")";
  const size_t checksum = header.size();
  header += std::string(32, '0') + "\"}," + tensors;
  header.append((8 - header.size() % 8) % 8, ' ');
  header.replace(checksum, 32, Hash().update(header + data).hex());
  const uint64_t header_bytes = header.size();
  std::filesystem::remove(path);  // a file that is written over would be flushed to the disk
  std::ofstream(path, std::ios::binary)
      << std::string(reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes)) << header
      << data;
  reads([&] { map_tensor_file(path, {"t"}); });
  return reads([&] { read_tensor_file(path); });
}

}  // namespace ddp::test

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  ddp::test::reads_header(std::string(reinterpret_cast<const char*>(bytes), size));
  return 0;
}
