#include "common/base/hash.hpp"

#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ddp {

struct Hash::State : XXH3_state_t {};

Hash::Hash() : state_(std::make_unique<State>()) {
  XXH3_128bits_reset(state_.get());
}
Hash::~Hash() = default;

Hash& Hash::update(const void* bytes, size_t size) {
  XXH3_128bits_update(state_.get(), bytes, size);
  return *this;
}

std::string Hash::hex() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace ddp
