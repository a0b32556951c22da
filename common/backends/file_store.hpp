// common/backends/file_store.hpp - where the ranks of one host meet without a network.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>

namespace ddp {

/// c10d's FileStore in an open file. It needs no name any more, so nobody can take it away, and
/// nobody else can enter: only processes of the same user may open a descriptor of another.
/// @param file of all ranks the same one; duplicated here. It may hold an earlier group's entries
c10::intrusive_ptr<c10d::Store> make_file_store(int file, std::chrono::milliseconds timeout);

}  // namespace ddp
