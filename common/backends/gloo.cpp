#include <sys/socket.h>
#include <sys/stat.h>

#include <filesystem>
// LibTorch ships ProcessGroupGloo.hpp without the gloo/*.h that it includes, which are empty in
// this build. Declarations do, because c10d holds Gloo's types only behind pointers: make none of
// them.
#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace gloo {
struct Context {
  void setTimeout(std::chrono::milliseconds timeout);
};
namespace rendezvous {
struct Store {
  virtual ~Store();
  virtual void set(const std::string& key, const std::vector<char>& data) = 0;
  virtual std::vector<char> get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys) = 0;
  virtual void wait(const std::vector<std::string>& keys,
                    const std::chrono::milliseconds& timeout) = 0;
};
}  // namespace rendezvous
namespace transport {
struct Device;
struct UnboundBuffer;
}  // namespace transport
}  // namespace gloo

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "common/backends/gloo.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/patience.hpp"
#include "common/base/process_exit.hpp"

namespace ddp {
namespace {

/// Connected TCP socket of this process.
struct Connection {
  int fd;
  ino_t inode;  ///< identifies the socket, because descriptors are reused
  bool operator==(const Connection&) const = default;
};

std::vector<Connection> connections() {
  std::vector<Connection> found;
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc/self/fd", error), end;
       !error && entry != end; entry.increment(error)) {
    const int fd = std::stoi(entry->path().filename().string());
    struct stat status {};
    sockaddr_storage peer{};
    socklen_t size = sizeof(peer);
    if (fstat(fd, &status) == 0 && S_ISSOCK(status.st_mode) &&
        getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) == 0 &&
        (peer.ss_family == AF_INET || peer.ss_family == AF_INET6)) {
      found.push_back({fd, status.st_ino});
    }
  }
  return found;
}

/// Note [Lost connections]: when a peer dies, Gloo fails the work that waits for it, except for
/// messages about to be sent: a write to a broken connection leaves its message in a queue for ever
/// (Pair::write() and signalException() in gloo/transport/tcp/pair.cc). The rank then waits for all
/// of --timeout, and so do the ranks that wait for this rank. But Gloo closes its end of the
/// connection. So a rank that has waited for a while checks that its first connections are still
/// open. In a run without faults they are, because no rank leaves before all depart().
class Gloo final : public c10d::ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;

  /// @param before connections of this process from before this object was made
  void remember_connections(const std::vector<Connection>& before) {
    connections_ = connections();
    std::erase_if(connections_, [&before](const Connection& connection) {
      return std::ranges::find(before, connection) != before.end();
    });
    if (connections_.size() + 1 != static_cast<size_t>(getSize())) {
      connections_.clear();  // some are not Gloo's: then only --timeout ends a wait
    }
  }

  bool lost_a_connection() const { return !std::ranges::all_of(connections_, is_open); }

  /// Makes Gloo's threads stop reading and writing soon, because their memory may be freed.
  void cut_connections() const {
    for (const Connection& connection : connections_) {
      if (is_open(connection)) {
        ::shutdown(connection.fd, SHUT_RDWR);
      }
    }
  }

 private:
  static bool is_open(const Connection& connection) {
    struct stat status {};
    return fstat(connection.fd, &status) == 0 && status.st_ino == connection.inode;
  }

  std::vector<Connection> connections_;  ///< a connection to each other rank
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    const BackendOptions& options) {
  const auto gloo_options = c10d::ProcessGroupGloo::Options::create();
  gloo_options->timeout = options.timeout;
  gloo_options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(options.address));
  const std::vector<Connection> before = connections();
  const auto gloo =
      c10::make_intrusive<Gloo>(store, options.rank, options.world_size, gloo_options);
  gloo->remember_connections(before);
  return gloo;
}

void wait_over_gloo(c10d::Backend& backend, c10d::Work& work, std::chrono::milliseconds timeout,
                    const std::function<bool()>& is_hopeless) {
  constexpr std::chrono::milliseconds kLook(250);
  const auto& gloo = dynamic_cast<const Gloo&>(backend);
  const auto is_complete_after = [&work](std::chrono::milliseconds time) {
    try {
      work.wait(time);
    } catch (const std::exception&) {
      // It failed, and work.wait() will throw again, or it is not complete yet.
    }
    return work.isCompleted();
  };
  try {
    Patience patience(timeout);
    while (!is_complete_after(kLook)) {
      const bool late = patience.is_over();
      // Gloo closes a broken connection a little before it fails the work, and its text says more.
      if (late || is_hopeless() || (gloo.lost_a_connection() && !is_complete_after(kLook))) {
        gloo.cut_connections();  // so the other ranks notice
        is_complete_after(std::chrono::milliseconds(100));  // so Gloo's threads notice
        if (late) {
          throw GlooTimeout();
        }
        throw Error(ExitCode::kTrainingFailed,
                    "a connection to another rank broke, expected it to stay until the end");
      }
    }
    work.wait();
  } catch (...) {
    // Leaked, because its destructor joins Gloo's threads, which may wait for such a message.
    c10::intrusive_ptr<c10d::Backend>::reclaim_copy(&backend).release();
    skip_destructors_at_exit();
    throw;
  }
}

}  // namespace ddp
