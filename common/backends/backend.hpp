// common/backends/backend.hpp - what the backend of a process group is made of.
#pragma once

#include <torch/types.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

namespace ddp {

struct BackendOptions {
  int rank;
  int world_size;
  torch::Device device;
  std::chrono::milliseconds timeout;  ///< limit of every collective; MPI has none
  std::string address;  ///< numeric address of this host, for its peers
};

}  // namespace ddp
