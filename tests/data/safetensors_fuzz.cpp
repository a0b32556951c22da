// libFuzzer's entry, see tests/README.md: a safetensors file with any header is read or refused.
// data_files_test.cpp calls it too.
#include <cstdint>
#include <filesystem>
#include <fstream>

#include "common/base/exit_codes.hpp"
#include "common/base/files.hpp"
#include "common/base/hash.hpp"
#include "common/data/tensor_file.hpp"

namespace ddp::test {
namespace {

/// @return true if it was read, false if it was refused
/// @throws std::logic_error if the refusal is not one short line
template <typename Read>
bool reads(const Read& read) {
  constexpr size_t kMostMessage = 4096;  // a line must not quote all of the input
  try {
    read();
    return true;
  } catch (const Error& error) {
    const std::string message = error.what();
    if (message.size() > kMostMessage || message.find('\n') != std::string::npos) {
      throw std::logic_error("expected one short line: " + message);
    }
    return false;
  }
}

}  // namespace

bool reads_header(const std::string& tensors) {
  const std::string data(8, '\1');
  std::string header = R"({"__metadata__":{"xxh3_128":")";
  const size_t checksum = header.size();
  header += std::string(32, '0') + "\"}," + tensors;
  header.append((8 - header.size() % 8) % 8, ' ');
  header.replace(checksum, 32, Hash().update(header + data).hex());
  const uint64_t header_bytes = header.size();
  const std::string bytes(reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes));
  static const ScratchFolder folder("ddp-fuzz");
  const std::string path = folder.path() + "/fuzzed.safetensors";
  std::filesystem::remove(path);  // overwriting the file would flush it to the disk
  std::ofstream(path, std::ios::binary) << bytes << header << data;
  reads([&] { map_tensor_file(path, {"t"}); });
  return reads([&] { parse_tensor_file(path, bytes + header + data); });
}

}  // namespace ddp::test

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  ddp::test::reads_header(std::string(reinterpret_cast<const char*>(bytes), size));
  return 0;
}
