#include "common/backends/sealed_store.hpp"

#include <fmt/ranges.h>
#include <sodium.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>
#include <vector>

#include "common/base/exit_codes.hpp"

namespace ddp {
namespace {

using Bytes = std::vector<uint8_t>;

constexpr size_t kKeyBytes = 16;
constexpr size_t kNonceBytes = crypto_aead_xchacha20poly1305_ietf_NPUBBYTES;
constexpr size_t kTagBytes = crypto_aead_xchacha20poly1305_ietf_ABYTES;

using Secret = std::array<uint8_t, crypto_aead_xchacha20poly1305_ietf_KEYBYTES>;

const uint8_t* bytes_of(const std::string& text) {
  return reinterpret_cast<const uint8_t*>(text.data());
}

void start_library() {
  if (sodium_init() < 0) {
    throw Error(ExitCode::kTrainingFailed, "libsodium cannot be started, expected random numbers");
  }
}

/// A key for one purpose.
Secret derive(const std::string& key, const std::string& purpose) {
  Secret secret{};
  std::array<uint8_t, kKeyBytes> bytes{};
  sodium_hex2bin(bytes.data(), bytes.size(), key.data(), key.size(), nullptr, nullptr, nullptr);
  crypto_generichash(secret.data(), secret.size(), bytes_of(purpose), purpose.size(), bytes.data(),
                     bytes.size());
  return secret;
}

/// See Note [Sealed store].
class SealedStore : public c10d::Store {
 public:
  SealedStore(c10::intrusive_ptr<c10d::Store> store, const std::string& key)
      : Store(store->getTimeout()),
        store_(std::move(store)),
        for_names_(derive(key, "names")),
        for_values_(derive(key, "values")) {}

  c10::intrusive_ptr<Store> clone() override {
    auto copy = c10::make_intrusive<SealedStore>(*this);
    copy->store_ = store_->clone();
    return copy;
  }

  void set(const std::string& key, const Bytes& value) override {
    store_->set(sealed_name(key), sealed(key, value));
  }

  Bytes get(const std::string& key) override { return opened(key, store_->get(sealed_name(key))); }

  /// The sum is a value like others, since the store could neither read nor seal it.
  int64_t add(const std::string& key, int64_t value) override {
    while (true) {
      const Bytes before = look(key);
      int64_t sum = 0;
      if (!before.empty()) {
        const Bytes digits = opened(key, before);
        const auto* const text = reinterpret_cast<const char*>(digits.data());
        std::from_chars(text, text + digits.size(), sum);
      }
      sum += value;
      const std::string digits = std::to_string(sum);
      const Bytes after = sealed(key, {digits.begin(), digits.end()});
      if (store_->compareSet(sealed_name(key), before, after) == after) {
        return sum;
      }
    }
  }

  Bytes compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) override {
    while (true) {
      const Bytes before = look(key);
      const Bytes found = before.empty() ? Bytes() : opened(key, before);
      if (found != expected) {
        return before.empty() ? expected : found;
      }
      const Bytes after = sealed(key, desired);
      if (store_->compareSet(sealed_name(key), before, after) == after) {
        return desired;
      }
    }
  }

  bool deleteKey(const std::string& key) override { return store_->deleteKey(sealed_name(key)); }
  bool check(const std::vector<std::string>& keys) override {
    return store_->check(sealed_names(keys));
  }
  int64_t getNumKeys() override { return store_->getNumKeys(); }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    store_->wait(sealed_names(keys), timeout);
  }
  void setTimeout(const std::chrono::milliseconds& timeout) override {
    timeout_ = timeout;
    store_->setTimeout(timeout);
  }

 private:
  std::string sealed_name(const std::string& key) const {
    std::array<uint8_t, crypto_generichash_BYTES> hash{};
    crypto_generichash(hash.data(), hash.size(), bytes_of(key), key.size(), for_names_.data(),
                       for_names_.size());
    return fmt::format("{:02x}", fmt::join(hash, ""));
  }

  std::vector<std::string> sealed_names(const std::vector<std::string>& keys) const {
    std::vector<std::string> names;
    for (const std::string& key : keys) {
      names.push_back(sealed_name(key));
    }
    return names;
  }

  /// What is stored now, or nothing.
  Bytes look(const std::string& key) {
    const std::string name = sealed_name(key);
    return store_->check({name}) ? store_->get(name) : Bytes();
  }

  Bytes sealed(const std::string& key, const Bytes& value) const {
    Bytes box(kNonceBytes + value.size() + kTagBytes);
    randombytes_buf(box.data(), kNonceBytes);
    crypto_aead_xchacha20poly1305_ietf_encrypt(box.data() + kNonceBytes, nullptr, value.data(),
                                               value.size(), bytes_of(key), key.size(), nullptr,
                                               box.data(), for_values_.data());
    return box;
  }

  Bytes opened(const std::string& key, const Bytes& box) const {
    Bytes value(std::max(box.size(), kNonceBytes + kTagBytes) - kNonceBytes - kTagBytes);
    if (box.size() < kNonceBytes + kTagBytes ||
        crypto_aead_xchacha20poly1305_ietf_decrypt(
            value.data(), nullptr, nullptr, box.data() + kNonceBytes, box.size() - kNonceBytes,
            bytes_of(key), key.size(), box.data(), for_values_.data()) != 0) {
      throw Error(
          ExitCode::kTrainingFailed,
          fmt::format("the store's entry {} was not written by a rank of this job, expected "
                      "one sealed with its DDP_STORE_KEY",
                      key));
    }
    return value;
  }

  c10::intrusive_ptr<c10d::Store> store_;
  Secret for_names_;
  Secret for_values_;
};

}  // namespace

c10::intrusive_ptr<c10d::Store> seal_store(const c10::intrusive_ptr<c10d::Store>& store,
                                           const std::string& key) {
  start_library();
  return c10::make_intrusive<SealedStore>(store, key);
}

std::string random_store_key() {
  start_library();
  std::array<uint8_t, kKeyBytes> bytes{};
  randombytes_buf(bytes.data(), bytes.size());
  return fmt::format("{:02x}", fmt::join(bytes, ""));
}

}  // namespace ddp
