// common/backends/sealed_store.hpp - a store on a network, for those alone who have its key.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <string>

namespace ddp {

/// Note [Sealed store]: who reaches a TCPStore can list, read, replace and add what is in it. Here
/// names are keyed hashes (BLAKE2b) and values are encrypted and bound to their name
/// (XChaCha20-Poly1305), so a stranger sees only how many there are and how long, and what he
/// writes or moves is noticed. He can still delete, put an older value of the same name back, or
/// end the store: the job then fails, but computes nothing wrong. Tensors travel past the store, in
/// plain.
///
/// @param key 32 hexadecimal digits; see random_store_key()
c10::intrusive_ptr<c10d::Store> seal_store(const c10::intrusive_ptr<c10d::Store>& store,
                                           const std::string& key);

/// @return 128 bits as 32 hexadecimal digits
std::string random_store_key();

}  // namespace ddp
