// common/backends/gloo.hpp - LibTorch's Gloo, and waits that notice broken connections.
#pragma once

#include <functional>
#include <stdexcept>

#include "common/backends/backend.hpp"

namespace ddp {

/// LibTorch's own Gloo: TCP between processes, host memory.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    const BackendOptions& options);

/// wait_over_gloo() reached its limit.
struct GlooTimeout : std::runtime_error {
  GlooTimeout()
      : std::runtime_error("--timeout is over, no rank is late, the ranks may make other calls") {}
};

/// Blocks until the work of a backend by make_gloo_backend() is complete.
/// @throws the work's exception, or Error soon after a connection broke: Note [Lost connections]
/// @throws GlooTimeout after `timeout`
/// @param is_hopeless called several times per second: true ends the wait by an Error
void wait_over_gloo(c10d::Backend& backend, c10d::Work& work, std::chrono::milliseconds timeout,
                    const std::function<bool()>& is_hopeless);

}  // namespace ddp
