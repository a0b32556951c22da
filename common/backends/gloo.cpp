// common/backends/gloo.cpp - LibTorch's Gloo, and waits that notice what it forgets.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>
#include <string>
#include <utility>
// The wheel ships ProcessGroupGloo.hpp but not the gloo/*.h that it includes, so they come from the
// system's libgloo-dev, which is older. That is safe because c10d holds Gloo's types only behind
// shared_ptr; nothing of Gloo itself may be called through these headers.
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "common/backends/backend.hpp"
#include "common/base/exit_codes.hpp"

namespace ddp {
namespace {

/// This process's sockets, by the names that /proc has for them: "socket:[4711]".
std::set<std::string> open_sockets() {
  std::set<std::string> sockets;
  std::error_code closed_meanwhile;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/self/fd", closed_meanwhile)) {
    std::string name = std::filesystem::read_symlink(entry, closed_meanwhile);
    if (name.starts_with("socket:")) {
      sockets.insert(std::move(name));
    }
  }
  return sockets;
}

// Note [Lost connections]
// ~~~~~~~~~~~~~~~~~~~~~~~
// When a peer dies, Gloo fails what waits for it, except for a message that it was just about to
// send: if the write is the first to find the connection broken, the message stays in a queue that
// nobody looks at again (Pair::write() and signalException() in gloo/transport/tcp/pair.cc). The
// rank then waits for all of --timeout, and whoever waits for that rank does, too. But Gloo closes
// its end of the connection. So a rank that has waited for a while looks whether its sockets are
// all there. In a run without faults they are: no rank leaves before all depart().
class Gloo : public c10d::ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;

  void remember_sockets(const std::set<std::string>& before) {
    std::ranges::set_difference(open_sockets(), before,
                                std::inserter(connections_, connections_.end()));
  }

  bool lost_a_connection() const { return !std::ranges::includes(open_sockets(), connections_); }

 private:
  std::set<std::string> connections_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    const BackendOptions& options) {
  const auto gloo_options = c10d::ProcessGroupGloo::Options::create();
  gloo_options->timeout = options.timeout;
  gloo_options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(options.address));
  const std::set<std::string> before = open_sockets();
  const auto gloo =
      c10::make_intrusive<Gloo>(store, options.rank, options.world_size, gloo_options);
  gloo->remember_sockets(before);
  return gloo;
}

void wait_over_gloo(c10d::Backend& backend, c10d::Work& work) {
  constexpr std::chrono::milliseconds kLook(250);
  const auto& gloo = dynamic_cast<const Gloo&>(backend);
  try {
    while (!work.isCompleted()) {
      try {
        work.wait(kLook);
      } catch (const std::exception&) {  // it failed, which is told below, or is not complete yet
        if (!work.isCompleted() && gloo.lost_a_connection()) {
          throw Error(ExitCode::kTrainingFailed,
                      fmt::format("a connection to another rank broke, expected all {} ranks to "
                                  "stay",
                                  backend.getSize()));
        }
      }
    }
    work.wait();
  } catch (...) {
    // Its destructor would wait for its threads, one of which may have such a message.
    c10::intrusive_ptr<c10d::Backend>::reclaim_copy(&backend).release();
    throw;
  }
}

}  // namespace ddp
