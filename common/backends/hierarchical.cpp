#include "common/backends/hierarchical.hpp"

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <cstring>

#include "common/backends/host_backend.hpp"
#include "common/backends/shm/shm_communicator.hpp"
#include "common/backends/shm/shm_kernels.hpp"
#include "common/backends/store_exchange.hpp"
#include "common/base/exit_codes.hpp"

namespace ddp {
namespace {

constexpr const char* kName = "hierarchical";
/// Of each rank, in gathers and scatters, which go through a buffer.
constexpr size_t kPieceBytes = size_t{1} << 20;
/// Of what goes from host to host at a time: those who wait for their leader see no progress
/// before, and one piece must come within --timeout.
constexpr size_t kBytesBetweenHosts = size_t{4} << 20;
constexpr std::chrono::milliseconds kMoreThanLeader{5000};

c10::intrusive_ptr<c10d::Store> part_of(const c10::intrusive_ptr<c10d::Store>& store,
                                        const std::string& prefix) {
  return c10::make_intrusive<c10d::PrefixStore>(prefix, store);
}

at::Tensor as_tensor(void* data, size_t count, at::ScalarType type = at::kByte) {
  return at::from_blob(data, {static_cast<int64_t>(count)}, type);
}

class HierarchicalCommunicator : public Communicator {
 public:
  /// @param local the ranks of this host, by local rank
  /// @param leaders the hosts' leaders, by host; only on a leader, and only with several hosts
  HierarchicalCommunicator(const BackendOptions& options, Topology topology,
                           std::unique_ptr<shm::Communicator> local,
                           c10::intrusive_ptr<c10d::Backend> leaders)
      : Communicator(options.rank, options.world_size),
        topology_(std::move(topology)),
        local_(std::move(local)),
        leaders_(std::move(leaders)) {}

  void barrier() override {
    local_->barrier();
    between_hosts("barrier", [&] { return leaders_->barrier(); });
    hand_down(nullptr, 0, DType::kUint8);
  }

  void all_reduce(void* data, size_t count, DType dtype, ReduceOp op) override {
    local_->all_reduce(data, count, dtype, op);
    if (topology_.hosts.size() == 1) {
      return;
    }
    for_pieces(data, count, dtype, [&](void* piece, size_t size) {
      if (is_floating(dtype) && (op == ReduceOp::kMin || op == ReduceOp::kMax)) {
        compare_between_hosts(piece, size, dtype, op);
      } else if (size > 0) {
        reduce_between_hosts(piece, size, dtype, op);
      }
      hand_down(piece, size, dtype);
    });
  }

  void broadcast(void* data, size_t count, DType dtype, int root) override {
    const auto host = std::ranges::find_if(topology_.hosts, [root](const std::vector<int>& ranks) {
      return std::ranges::count(ranks, root) > 0;
    });
    const auto root_host = static_cast<int>(host - topology_.hosts.begin());
    const bool is_here = root_host == topology_.host;
    if (is_here) {
      const auto root_local = std::ranges::find(*host, root) - host->begin();
      local_->broadcast(data, count, dtype, static_cast<int>(root_local));
    }
    for_pieces(data, count, dtype, [&](void* piece, size_t size) {
      if (size > 0) {
        between_hosts("broadcast", [&] {
          std::vector<at::Tensor> tensors{as_tensor(piece, size * element_bytes(dtype))};
          return leaders_->broadcast(tensors, {.rootRank = root_host});
        });
      }
      // On the root's host nothing is left to hand down, but the others must not be in the next
      // collective, where they would wait for their leader with less patience.
      hand_down(piece, is_here ? 0 : size, dtype);
    });
  }

  void all_gather(const void* input, void* const* outputs, const size_t* counts,
                  DType dtype) override {
    collect(input, outputs, only_count(counts) * element_bytes(dtype));
  }

  void gather(const void* input, void* const* outputs, size_t count, DType dtype,
              int root) override {
    collect(input, rank() == root ? outputs : nullptr, count * element_bytes(dtype));
  }

  void reduce_scatter(const void* const* inputs, void* output, const size_t* counts, DType dtype,
                      ReduceOp op) override {
    const auto ranks = static_cast<size_t>(world_size());
    const size_t count = only_count(counts);
    const size_t unit = element_bytes(dtype);
    const size_t most = kPieceBytes / unit;
    for (size_t begin = 0; begin < count; begin += most) {
      const size_t piece = std::min(most, count - begin);
      buffer_.resize(ranks * piece * unit);
      for (size_t r = 0; r < ranks; ++r) {
        std::memcpy(buffer_.data() + r * piece * unit,
                    static_cast<const std::byte*>(inputs[r]) + begin * unit, piece * unit);
      }
      all_reduce(buffer_.data(), ranks * piece, dtype, op);
      std::memcpy(static_cast<std::byte*>(output) + begin * unit,
                  buffer_.data() + static_cast<size_t>(rank()) * piece * unit, piece * unit);
    }
  }

  std::shared_ptr<void> allocate(size_t bytes) override { return local_->allocate(bytes); }

  std::string lost_rank() const override {
    const std::string here = local_->lost_rank();
    return here.empty() ? ddp::lost_rank(leaders_.get()) : here;
  }

  void close() override {
    local_->close();
    if (leaders_ != nullptr) {
      leaders_->shutdown();
    }
  }

 private:
  /// Runs on leaders only. @param body returns c10d's work, which is waited for
  template <typename Body>
  void between_hosts(const char* operation, const Body& body) {
    if (leaders_ == nullptr) {
      return;
    }
    try {
      wait_over_gloo(*leaders_, *body());
    } catch (const std::exception& error) {
      const auto* const from_torch = dynamic_cast<const c10::Error*>(&error);
      throw Error(
          ExitCode::kTrainingFailed,
          fmt::format("--backend hierarchical: {} between the hosts: {}", operation,
                      from_torch == nullptr ? error.what() : from_torch->what_without_backtrace()));
    }
  }

  /// Calls `body` with each piece, one at least.
  template <typename Body>
  static void for_pieces(void* data, size_t count, DType dtype, const Body& body) {
    size_t begin = 0;
    do {
      const size_t size = std::min(kBytesBetweenHosts / element_bytes(dtype), count - begin);
      body(static_cast<std::byte*>(data) + begin * element_bytes(dtype), size);
      begin += size;
    } while (begin < count);
  }

  /// From the leader to its host. A rank that waits for its leader, who waits for another host,
  /// must not be the first to give up: it would blame the leader. (Once a call has failed all do.)
  void hand_down(void* data, size_t count, DType dtype) {
    const std::chrono::milliseconds timeout = local_->timeout();
    local_->set_timeout(timeout + kMoreThanLeader);
    local_->broadcast(data, count, dtype, 0);
    local_->set_timeout(timeout);
  }

  void reduce_between_hosts(void* data, size_t count, DType dtype, ReduceOp op) {
    at::ScalarType type = kScalarTypes[static_cast<size_t>(dtype)];
    if (dtype == DType::kBool) {  // Gloo would add 1 and 1
      type = at::kByte;
      op = op == ReduceOp::kSum || op == ReduceOp::kMax ? ReduceOp::kMax : ReduceOp::kMin;
    }
    between_hosts("all_reduce", [&] {
      std::vector<at::Tensor> tensors{as_tensor(data, count, type)};
      c10d::AllreduceOptions options;
      options.reduceOp = kReduceOps[static_cast<size_t>(op)];
      return leaders_->allreduce(tensors, options);
    });
  }

  /// Gloo's minimum and maximum of NaN and a number depend on the order.
  void compare_between_hosts(void* data, size_t count, DType dtype, ReduceOp op) {
    if (leaders_ == nullptr || count == 0) {
      return;
    }
    const size_t bytes = count * element_bytes(dtype);
    std::vector<std::vector<at::Tensor>> all(1);
    for (size_t host = 0; host < topology_.hosts.size(); ++host) {
      all[0].push_back(at::empty({static_cast<int64_t>(bytes)}, at::kByte));
    }
    between_hosts("all_gather", [&] {
      std::vector<at::Tensor> own{as_tensor(data, bytes)};
      return leaders_->allgather(all, own);
    });
    // A pair at a time: the kernels take as many inputs as one host may have ranks.
    std::memcpy(data, all[0][0].const_data_ptr(), bytes);
    for (size_t host = 1; host < all[0].size(); ++host) {
      const void* const pair[] = {data, all[0][host].const_data_ptr()};
      shm::kernels().reduce({dtype, op, count, pair, {&data, 1}});
    }
  }

  /// Every rank's input, in pieces through a buffer, to `outputs` if there are any.
  void collect(const void* input, void* const* outputs, size_t bytes) {
    const size_t hosts = topology_.hosts.size();
    size_t places = 0;  // of every host, also of those with fewer ranks
    for (const std::vector<int>& ranks : topology_.hosts) {
      places = std::max(places, ranks.size());
    }
    for (size_t begin = 0; begin < bytes; begin += kPieceBytes) {
      const size_t piece = std::min(kPieceBytes, bytes - begin);
      buffer_.resize(hosts * places * piece);
      const auto place = [&](size_t host, size_t local) {
        return buffer_.data() + (host * places + local) * piece;
      };
      const auto own_host = static_cast<size_t>(topology_.host);
      std::vector<void*> own;
      for (size_t local = 0; local < topology_.local_ranks().size(); ++local) {
        own.push_back(place(own_host, local));
      }
      local_->gather(static_cast<const std::byte*>(input) + begin, own.data(), piece, DType::kUint8,
                     0);
      between_hosts("all_gather", [&] {
        std::vector<at::Tensor> ours{as_tensor(place(own_host, 0), places * piece).clone()};
        std::vector<std::vector<at::Tensor>> all(1);
        for (size_t host = 0; host < hosts; ++host) {
          all[0].push_back(as_tensor(place(host, 0), places * piece));
        }
        return leaders_->allgather(all, ours);
      });
      hand_down(buffer_.data(), buffer_.size(), DType::kUint8);
      for (size_t host = 0; host < hosts && outputs != nullptr; ++host) {
        for (size_t local = 0; local < topology_.hosts[host].size(); ++local) {
          const auto from = static_cast<size_t>(topology_.hosts[host][local]);
          std::memcpy(static_cast<std::byte*>(outputs[from]) + begin, place(host, local), piece);
        }
      }
    }
  }

  Topology topology_;
  std::unique_ptr<shm::Communicator> local_;
  c10::intrusive_ptr<c10d::Backend> leaders_;
  std::vector<std::byte> buffer_;
};

}  // namespace

Topology group_by_host(const std::vector<shm::HostIdentity>& identities, int rank) {
  Topology topology;
  for (size_t r = 0; r < identities.size(); ++r) {
    auto host = std::ranges::find_if(topology.hosts, [&](const std::vector<int>& ranks) {
      return shm::first_stranger({identities[static_cast<size_t>(ranks[0])], identities[r]})
          .empty();
    });
    if (host == topology.hosts.end()) {
      host = topology.hosts.insert(host, std::vector<int>{});
    }
    if (static_cast<int>(r) == rank) {
      topology.host = static_cast<int>(host - topology.hosts.begin());
      topology.local_rank = static_cast<int>(host->size());
    }
    host->push_back(static_cast<int>(r));
  }
  return topology;
}

Topology find_topology(const c10::intrusive_ptr<c10d::Store>& store, const BackendOptions& options,
                       const shm::HostIdentity& identity) {
  const Exchange exchange = exchange_through(part_of(store, "topology"), kName, options);
  std::vector<shm::HostIdentity> identities;
  for (const std::string& text : exchange(shm::to_text(identity))) {
    identities.push_back(shm::host_identity_from(text));
  }
  return group_by_host(identities, options.rank);
}

bool has_two_levels(const Topology& topology) {
  return topology.hosts.size() > 1 &&
         std::ranges::all_of(topology.hosts, [](const auto& ranks) { return ranks.size() > 1; });
}

c10::intrusive_ptr<c10d::Backend> make_hierarchical_backend(
    const c10::intrusive_ptr<c10d::Store>& store, const BackendOptions& options,
    const Topology& topology, const shm::HostIdentity& identity) {
  BackendOptions within = options;
  within.rank = topology.local_rank;
  within.world_size = static_cast<int>(topology.local_ranks().size());
  const std::string part = fmt::format("host/{}", topology.local_ranks().front());
  std::unique_ptr<shm::Communicator> local;
  std::string problem;
  try {
    local = shm::Communicator::connect({.rank = within.rank,
                                        .world_size = within.world_size,
                                        .timeout = options.timeout,
                                        .identity = identity,
                                        .names = topology.local_ranks()},
                                       exchange_through(part_of(store, part), kName, within));
  } catch (const shm::SegmentError& error) {
    problem = fmt::format("on host {} {}", identity.host_name, error.what());
  }
  const Exchange exchange = exchange_through(part_of(store, "outcome"), kName, options);
  for (const std::string& outcome : exchange(problem)) {
    if (!outcome.empty()) {
      let_others_read(*store, kName, options.rank, options.world_size, options.timeout);
      throw shm::SegmentError(outcome);
    }
  }
  c10::intrusive_ptr<c10d::Backend> leaders;
  if (topology.hosts.size() > 1 && topology.local_rank == 0) {
    BackendOptions between = options;
    between.rank = topology.host;
    between.world_size = static_cast<int>(topology.hosts.size());
    leaders = make_gloo_backend(part_of(store, "leaders"), between);
  }
  return make_host_backend(kName, std::make_unique<HierarchicalCommunicator>(
                                      options, topology, std::move(local), std::move(leaders)));
}

}  // namespace ddp
