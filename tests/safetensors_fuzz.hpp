// tests/safetensors_fuzz.hpp - safetensors files made of any header.
#pragma once

#include <string>

namespace ddp::test {

/// Reads a file with eight bytes of data and a right checksum, as a snapshot and as data.
/// @param tensors the header after its metadata: R"("t":{"dtype":"F64","shape":[1],...}})"
/// @return whether it is a snapshot @throws what is neither a read file nor a ddp::Error of one
/// line
bool reads_header(const std::string& tensors);

}  // namespace ddp::test
