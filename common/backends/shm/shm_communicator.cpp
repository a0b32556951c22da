#include "common/backends/shm/shm_communicator.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "common/backends/shm/shm_kernels.hpp"

namespace ddp::shm {
namespace {

constexpr size_t kLineBytes = 64;
constexpr size_t kControlBytes = 4096;
constexpr size_t kSlotsEnd = kControlBytes + 2 * Communicator::kSlotBytes;
/// Of all ranks together, and of one. Larger ones fall out of the caches; smaller ones meet more
/// often.
constexpr size_t kMailboxesBytes = 32 << 20;
constexpr size_t kLargestMailboxBytes = 4 << 20;
/// What a rank reads of all slots together before mailboxes are faster.
constexpr size_t kSlotsReadBytes = 64 << 10;

size_t round_down(size_t bytes, size_t unit) {
  return bytes / unit * unit;
}

size_t mailbox_bytes(int world_size) {
  return world_size == 1
             ? 0
             : std::min(kLargestMailboxBytes, kMailboxesBytes / static_cast<size_t>(world_size));
}

std::vector<ControlPage*> control_pages(const std::vector<std::byte*>& parts) {
  std::vector<ControlPage*> pages;
  for (std::byte* const part : parts) {
    // Memory that is all zero is a ControlPage: it has nothing but integers and lock-free atomics.
    pages.push_back(reinterpret_cast<ControlPage*>(part));
  }
  return pages;
}

}  // namespace

size_t Communicator::part_bytes(int world_size) {
  return kSlotsEnd + mailbox_bytes(world_size);
}

std::unique_ptr<Communicator> Communicator::connect(const Settings& settings,
                                                    const Exchange& exchange) {
  std::vector<HostIdentity> identities;
  for (const std::string& text : exchange(to_text(settings.identity))) {
    identities.push_back(host_identity_from(text));
  }
  if (settings.world_size > kMaxRanks) {
    throw SegmentError("world size is " + std::to_string(settings.world_size) +
                       ", expected at most " + std::to_string(kMaxRanks));
  }
  const std::string stranger = first_stranger(identities);
  if (!stranger.empty()) {
    throw SegmentError(stranger + ", expected all ranks on one host");
  }
  const std::shared_ptr<Segment> segment = Segment::create(
      exchange, settings.rank, settings.world_size, part_bytes(settings.world_size), settings.ways);
  auto communicator = std::make_unique<Communicator>(
      settings.rank, segment->parts(), settings.timeout,
      wait_policy(settings.world_size, count_cpus(identities)),
      [segment](int peer) { return segment->is_held_by(peer); }, settings.names);
  communicator->barrier();
  return communicator;
}

Communicator::Communicator(int rank, const std::vector<std::byte*>& parts,
                           std::chrono::milliseconds timeout, WaitPolicy policy,
                           std::function<bool(int)> is_alive, std::vector<int> names)
    : parts_(parts),
      barrier_(rank, control_pages(parts), timeout, policy, std::move(is_alive), std::move(names)) {
}

std::byte* Communicator::slot(int rank) const {
  return parts_[static_cast<size_t>(rank)] + kControlBytes + sequence() % 2 * kSlotBytes;
}

std::byte* Communicator::mailbox(int rank) const {
  return parts_[static_cast<size_t>(rank)] + kSlotsEnd;
}

size_t Communicator::largest_in_slot() const {
  return std::min(kSlotBytes, kSlotsReadBytes / static_cast<size_t>(world_size()));
}

void Communicator::barrier() {
  barrier_.begin({});
}

void Communicator::all_reduce(void* data, size_t count, DType dtype, ReduceOp op) {
  Call call{.operation = Operation::kAllReduce, .dtype = dtype, .reduce_op = op, .count = count};
  const size_t bytes = count * element_bytes(dtype);
  if (bytes <= largest_in_slot()) {
    // The slot of the collective that begins now, which nobody reads any more: all have begun the
    // one before.
    std::byte* const own =
        parts_[static_cast<size_t>(rank())] + kControlBytes + (sequence() + 1) % 2 * kSlotBytes;
    kernels().stream(own, data, bytes);
    barrier_.begin(call);
    reduce_slots(data, count, dtype, op);
    return;
  }
  const Region* const region = find_region(data, bytes);
  if (region != nullptr) {
    const auto offset = static_cast<size_t>(static_cast<std::byte*>(data) -
                                            region->parts[static_cast<size_t>(rank())]);
    call.region = offset % element_bytes(dtype) == 0 ? region->id : 0;
    call.region_offset = offset;
  }
  const bool in_place = barrier_.begin(call);
  if (world_size() == 1) {
    return;
  }
  if (in_place) {
    reduce_in_place(*region, call.region_offset, count, dtype, op);
  } else {
    reduce_through_mailboxes(static_cast<std::byte*>(data), count, dtype, op);
  }
}

void Communicator::reduce_slots(void* data, size_t count, DType dtype, ReduceOp op) {
  std::array<const void*, kMaxRanks> inputs;
  for (int r = 0; r < world_size(); ++r) {
    inputs[static_cast<size_t>(r)] = r == rank() ? data : slot(r);
  }
  kernels().reduce({.dtype = dtype,
                    .op = op,
                    .count = count,
                    .inputs = inputs.data(),
                    .input_count = static_cast<size_t>(world_size()),
                    .outputs = &data,
                    .output_count = 1});
}

void Communicator::reduce_in_place(const Region& region, size_t offset, size_t count, DType dtype,
                                   ReduceOp op) {
  // Stripes end where lines of cache end: no line is written by two ranks.
  const size_t end = offset + count * element_bytes(dtype);
  const size_t first_line = offset / kLineBytes;
  const size_t lines = (end + kLineBytes - 1) / kLineBytes - first_line;
  const auto ranks = static_cast<size_t>(world_size());
  const size_t lines_each = (lines + ranks - 1) / ranks;
  const auto boundary = [&](size_t stripe) {
    return std::clamp((first_line + stripe * lines_each) * kLineBytes, offset, end);
  };
  const auto own = static_cast<size_t>(rank());
  std::array<void*, kMaxRanks> buffers;
  for (size_t r = 0; r < ranks; ++r) {
    buffers[r] = region.parts[r] + boundary(own);
  }
  kernels().reduce({.dtype = dtype,
                    .op = op,
                    .count = (boundary(own + 1) - boundary(own)) / element_bytes(dtype),
                    .inputs = buffers.data(),
                    .input_count = ranks,
                    .outputs = buffers.data(),
                    .output_count = ranks});
  barrier_.meet();
}

void Communicator::reduce_through_mailboxes(std::byte* data, size_t count, DType dtype,
                                            ReduceOp op) {
  const auto ranks = static_cast<size_t>(world_size());
  const auto own = static_cast<size_t>(rank());
  const size_t unit = element_bytes(dtype);
  const size_t stripe_bytes = round_down(mailbox_bytes(world_size()) / ranks, kLineBytes);
  const size_t bytes = count * unit;
  for (size_t begin = 0; begin < bytes; begin += stripe_bytes * ranks) {
    const size_t piece = std::min(stripe_bytes * ranks, bytes - begin);
    const size_t each = (piece / ranks + kLineBytes) / kLineBytes * kLineBytes;
    const size_t part = std::min(each, stripe_bytes);
    const auto range = [&](size_t r) {
      return std::pair{std::min(r * part, piece), std::min((r + 1) * part, piece)};
    };
    std::byte* const here = data + begin;
    // A stripe begins at the same place of a mailbox whatever the piece's size: what is written
    // into one here was read by its rank before the last meeting.
    for (size_t step = 1; step < ranks; ++step) {
      const size_t r = (own + step) % ranks;
      const auto [from, to] = range(r);
      kernels().stream(mailbox(rank()) + r * stripe_bytes, here + from, to - from);
    }
    barrier_.meet();
    const auto [from, to] = range(own);
    std::array<const void*, kMaxRanks> inputs;
    for (size_t r = 0; r < ranks; ++r) {
      inputs[r] = r == own ? here + from : mailbox(static_cast<int>(r)) + own * stripe_bytes;
    }
    void* output = here + from;
    kernels().reduce({.dtype = dtype,
                      .op = op,
                      .count = (to - from) / unit,
                      .inputs = inputs.data(),
                      .input_count = ranks,
                      .outputs = &output,
                      .output_count = 1,
                      .streamed_output = mailbox(rank()) + own * stripe_bytes});
    barrier_.meet();
    for (size_t step = 1; step < ranks; ++step) {
      const size_t r = (own + step) % ranks;
      const auto [their_from, their_to] = range(r);
      std::memcpy(here + their_from, mailbox(static_cast<int>(r)) + r * stripe_bytes,
                  their_to - their_from);
    }
  }
}

void Communicator::broadcast(void* data, size_t count, DType dtype, int root) {
  std::array<void*, kMaxRanks> outputs{};
  outputs[static_cast<size_t>(root)] = data;
  exchange({.operation = Operation::kBroadcast,
            .dtype = dtype,
            .root = static_cast<uint8_t>(root),
            .count = count},
           rank() == root ? data : nullptr, outputs.data());
}

void Communicator::all_gather(const void* input, void* const* outputs, size_t count, DType dtype) {
  exchange({.operation = Operation::kAllGather, .dtype = dtype, .count = count}, input, outputs);
}

void Communicator::all_gather(const void* input, void* const* outputs, const size_t* counts,
                              DType dtype) {
  exchange({.operation = Operation::kAllGather,
            .dtype = dtype,
            .count = *std::max_element(counts, counts + world_size())},
           input, outputs, counts);
}

void Communicator::gather(const void* input, void* const* outputs, size_t count, DType dtype,
                          int root) {
  const std::array<void*, kMaxRanks> none{};
  exchange({.operation = Operation::kGather,
            .dtype = dtype,
            .root = static_cast<uint8_t>(root),
            .count = count},
           input, rank() == root ? outputs : none.data());
}

void Communicator::exchange(const Call& call, const void* input, void* const* outputs,
                            const size_t* counts) {
  const size_t unit = element_bytes(call.dtype);
  const size_t bytes = call.count * unit;  // of the longest
  const auto* const source = static_cast<const std::byte*>(input);
  /// Of rank r's bytes [begin, begin + size), those that there are.
  const auto present = [&](int r, size_t begin, size_t size) {
    const size_t all = counts == nullptr ? bytes : counts[r] * unit;
    return std::min(begin + size, all) - std::min(begin, all);
  };
  const auto collect = [&](size_t begin, size_t size, const auto& place_of) {
    for (int r = 0; r < world_size(); ++r) {
      void* const output = outputs[r];
      const size_t part = present(r, begin, size);
      if (output == nullptr || part == 0) {
        continue;
      }
      if (r != rank()) {
        std::memcpy(static_cast<std::byte*>(output) + begin, place_of(r), part);
      } else if (output != input) {
        std::memmove(static_cast<std::byte*>(output) + begin, source + begin, part);
      }
    }
  };
  if (bytes <= kSlotBytes) {
    if (source != nullptr) {
      kernels().stream(
          parts_[static_cast<size_t>(rank())] + kControlBytes + (sequence() + 1) % 2 * kSlotBytes,
          source, present(rank(), 0, bytes));
    }
    barrier_.begin(call);
    collect(0, bytes, [&](int r) { return slot(r); });
    return;
  }
  barrier_.begin(call);
  if (world_size() == 1) {
    collect(0, bytes, [&](int) { return source; });
    return;
  }
  // The halves of the mailbox take turns: one is written while slow ranks still read the other.
  const size_t half_bytes = round_down(mailbox_bytes(world_size()) / 2, kLineBytes);
  size_t half = 0;
  for (size_t begin = 0; begin < bytes; begin += half_bytes, half = 1 - half) {
    const size_t size = std::min(half_bytes, bytes - begin);
    if (const size_t own = present(rank(), begin, size); source != nullptr && own > 0) {
      kernels().stream(mailbox(rank()) + half * half_bytes, source + begin, own);
    }
    barrier_.meet();
    collect(begin, size, [&](int r) { return mailbox(r) + half * half_bytes; });
  }
}

void Communicator::reduce_scatter(const void* const* inputs, void* output, size_t count,
                                  DType dtype, ReduceOp op) {
  std::array<size_t, kMaxRanks> counts{};
  counts.fill(count);
  reduce_scatter(inputs, output, counts.data(), dtype, op);
}

void Communicator::reduce_scatter(const void* const* inputs, void* output, const size_t* counts,
                                  DType dtype, ReduceOp op) {
  const auto ranks = static_cast<size_t>(world_size());
  const auto own = static_cast<size_t>(rank());
  const size_t unit = element_bytes(dtype);
  const size_t longest = *std::max_element(counts, counts + ranks);
  barrier_.begin(
      {.operation = Operation::kReduceScatter, .dtype = dtype, .reduce_op = op, .count = longest});
  if (ranks == 1) {
    if (longest > 0 && output != inputs[0]) {
      std::memmove(output, inputs[0], longest * unit);
    }
    return;
  }
  const size_t stripe_bytes = round_down(mailbox_bytes(world_size()) / 2 / ranks, kLineBytes);
  size_t half = 0;
  for (size_t begin = 0; begin < longest * unit; begin += stripe_bytes, half = 1 - half) {
    const auto size = [&](size_t r) {
      const size_t bytes = counts[r] * unit;
      return std::min(begin + stripe_bytes, bytes) - std::min(begin, bytes);
    };
    const auto stripe = [&](size_t from, size_t to) {
      return mailbox(static_cast<int>(from)) + (half * ranks + to) * stripe_bytes;
    };
    for (size_t step = 1; step < ranks; ++step) {
      const size_t r = (own + step) % ranks;
      if (size(r) > 0) {
        kernels().stream(stripe(own, r), static_cast<const std::byte*>(inputs[r]) + begin, size(r));
      }
    }
    barrier_.meet();
    if (size(own) == 0) {
      continue;
    }
    std::array<const void*, kMaxRanks> pieces;
    for (size_t r = 0; r < ranks; ++r) {
      pieces[r] = r == own ? static_cast<const std::byte*>(inputs[own]) + begin : stripe(r, own);
    }
    void* place = static_cast<std::byte*>(output) + begin;
    kernels().reduce({.dtype = dtype,
                      .op = op,
                      .count = size(own) / unit,
                      .inputs = pieces.data(),
                      .input_count = ranks,
                      .outputs = &place,
                      .output_count = 1});
  }
}

}  // namespace ddp::shm
