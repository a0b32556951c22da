// common/base/hash.hpp - one hash for everything that is compared: digests, data files, snapshots.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace ddp {

/// XXH3-128 of a sequence of byte ranges, as 32 hex digits, as `xxh128sum` prints it. Finds
/// damage and differences; it is no defence against an attacker.
class Hash {
 public:
  Hash();
  ~Hash();

  Hash& update(const void* bytes, size_t size);
  Hash& update(const std::string& text) { return update(text.data(), text.size()); }
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ddp
