// common/base/hash.hpp - one hash for everything that is compared: digests, data files, snapshots.
#pragma once

#include <fmt/format.h>

#include <string>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ddp {

/// XXH3-128 of a sequence of byte ranges, as 32 hex digits, as `xxh128sum` prints it. Finds
/// damage and differences; it is no defence against an attacker.
class Hash {
 public:
  Hash() { XXH3_128bits_reset(&state_); }

  Hash& update(const void* bytes, size_t size) {
    XXH3_128bits_update(&state_, bytes, size);
    return *this;
  }
  Hash& update(const std::string& text) { return update(text.data(), text.size()); }
  std::string hex() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(&state_);
    return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
  }

 private:
  XXH3_state_t state_;
};

}  // namespace ddp
