// tools/submit/presence.hpp - whether the submit that hands a job over, or runs it, is still there.
#pragma once

#include <optional>
#include <string>

#include "common/base/process.hpp"

namespace ddp::submit {

/// A name in this machine's kernel (an abstract socket), for as long as this object is there or a
/// command that inherited fd() runs. It needs no file system, is gone with the last process that
/// has it, however that ends, and asking for it waits for nobody.
class Presence {
 public:
  /// @throws Error if there are no sockets
  explicit Presence(const std::string& name);

  /// False if another process has the name.
  bool is_ours() const { return is_ours_; }
  int fd() const { return socket_.get(); }

 private:
  FileDescriptor socket_;
  bool is_ours_;
};

/// Host name, boot and network namespace: where Presence names are seen.
std::string this_machine();

/// Whether some process of `machine` has the name; nothing if that cannot be known from here.
std::optional<bool> is_present(const std::string& name, const std::string& machine);

}  // namespace ddp::submit
