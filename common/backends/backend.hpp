// common/backends/backend.hpp - one factory for every way to communicate.
#pragma once

#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

namespace ddp {

struct BackendOptions {
  int rank;
  int world_size;
  torch::Device device;
  std::chrono::milliseconds timeout;  ///< of every collective
  std::string address;  ///< of this host, as a number: where peers reach it
};

/// "auto" is NCCL for CUDA devices and Gloo for the CPU.
std::string resolve_backend(const std::string& name, const torch::Device& device);

/// Blocks until the other ranks are there, or throws when the timeout has passed.
/// @param name resolved: "gloo" or "nccl"
c10::intrusive_ptr<c10d::Backend> make_backend(const std::string& name,
                                               const c10::intrusive_ptr<c10d::Store>& store,
                                               const BackendOptions& options);

/// Gloo, LibTorch's own: TCP between processes, host memory.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    const BackendOptions& options);

}  // namespace ddp
