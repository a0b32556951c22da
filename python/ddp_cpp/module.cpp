// python/ddp_cpp/module.cpp - the backend shm for Python's torch.distributed.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <pybind11/chrono.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "common/backends/registry.hpp"

namespace {

c10::intrusive_ptr<c10d::Backend> make_shm(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                           int world_size, std::chrono::milliseconds timeout) {
  // A group that was destroyed has left its keys: under torchrun the next one has the same store.
  const int64_t round = store->add("round/" + std::to_string(rank), 1);
  return ddp::make_backend(ddp::kShm,
                           c10::make_intrusive<c10d::PrefixStore>(std::to_string(round), store),
                           {rank, world_size, torch::kCPU, timeout, ""});
}

}  // namespace

PYBIND11_MODULE(_C, module) {
  // Without Python's lock while it waits for the other ranks.
  module.def("make_shm", torch::wrap_pybind_function_no_gil(make_shm));
}
