#include "common/training/event_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "common/base/exit_codes.hpp"
#include "common/base/uninterrupted.hpp"

namespace ddp {
namespace {

// Fields of tensorflow.Event and of the messages in it.
constexpr int kWallTime = 1;
constexpr int kStep = 2;
constexpr int kFileVersion = 3;
constexpr int kSummary = 5;
constexpr int kSessionLog = 7;
constexpr int kSummaryValue = 1;
constexpr int kValueTag = 1;
constexpr int kValueSimple = 2;
constexpr int kSessionStatus = 1;
constexpr uint64_t kSessionStart = 1;

// Protobuf's wire types.
constexpr int kVarint = 0;
constexpr int kEightBytes = 1;
constexpr int kText = 2;
constexpr int kFourBytes = 5;

/// As it lies in memory.
template <typename Number>
void append_bytes(std::string& to, Number number) {
  static_assert(std::endian::native == std::endian::little);
  to.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

void append_varint(std::string& to, uint64_t number) {
  for (; number >= 0x80; number >>= 7U) {
    to += static_cast<char>(number | 0x80U);
  }
  to += static_cast<char>(number);
}

void append_key(std::string& to, int field, int wire_type) {
  append_varint(to, static_cast<uint64_t>(field) << 3U | static_cast<uint64_t>(wire_type));
}

void append_text(std::string& to, int field, std::string_view text) {
  append_key(to, field, kText);
  append_varint(to, text.size());
  to += text;
}

/// The checksum of what may hold checksums itself.
uint32_t masked(uint32_t crc) {
  return std::rotr(crc, 15) + 0xa282ead8U;
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// TensorBoard takes files with "tfevents" in their names, in the order of the names.
std::string new_file_name() {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  return fmt::format("events.out.tfevents.{:017.6f}.{}.{}", seconds_now(), host.data(), getpid());
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected
  uint32_t crc = ~0U;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) {
      crc = crc >> 1U ^ ((crc & 1U) != 0 ? kPolynomial : 0);
    }
  }
  return ~crc;
}

EventFile::EventFile(const std::string& folder, int64_t first_step)
    : path_(folder + "/" + new_file_name()) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    fail(error.message());
  }
  file_.reset(uninterrupted([this] {
    return open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
  }));
  if (!file_.is_open()) {
    fail(std::strerror(errno));
  }
  std::string version;
  append_text(version, kFileVersion, "brain.Event:2");
  add_event(0, version);
  std::string status;
  append_key(status, kSessionStatus, kVarint);
  append_varint(status, kSessionStart);
  std::string session;
  append_text(session, kSessionLog, status);
  add_event(first_step, session);
  flush();
}

void EventFile::add(std::string_view tag, int64_t step, double value) {
  std::string scalar;
  append_text(scalar, kValueTag, tag);
  append_key(scalar, kValueSimple, kFourBytes);
  append_bytes(scalar, static_cast<float>(value));
  std::string values;
  append_text(values, kSummaryValue, scalar);
  std::string summary;
  append_text(summary, kSummary, values);
  add_event(step, summary);
}

void EventFile::add_event(int64_t step, const std::string& what) {
  std::string event;
  append_key(event, kWallTime, kEightBytes);
  append_bytes(event, seconds_now());
  append_key(event, kStep, kVarint);
  append_varint(event, static_cast<uint64_t>(step));
  event += what;

  std::string length;
  append_bytes(length, static_cast<uint64_t>(event.size()));
  unwritten_ += length;
  append_bytes(unwritten_, masked(crc32c(length)));
  unwritten_ += event;
  append_bytes(unwritten_, masked(crc32c(event)));
}

void EventFile::flush() {
  for (std::string_view rest = unwritten_; !rest.empty();) {
    const ssize_t bytes =
        uninterrupted([&] { return write(file_.get(), rest.data(), rest.size()); });
    if (bytes <= 0) {
      fail(std::strerror(errno));
    }
    rest.remove_prefix(static_cast<size_t>(bytes));
  }
  unwritten_.clear();
}

void EventFile::fail(const std::string& why) const {
  throw Error(
      ExitCode::kTrainingFailed,
      fmt::format("--tensorboard: cannot write {} ({}), expected a writable folder", path_, why));
}

}  // namespace ddp
