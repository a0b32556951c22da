#include "common/backends/shm/shm_collectives.hpp"

#include <unistd.h>

#include <cstring>
#include <fstream>

#include "common/backends/shm/shm_kernels.hpp"

namespace ddp::shm {
namespace {

constexpr size_t kControlBytes = 4096;
constexpr size_t kSlotsEnd = kControlBytes + 2 * Collectives::kSlotBytes;
/// Bytes of all mailboxes together, and of a mailbox. Larger mailboxes fall out of the caches; with
/// smaller mailboxes ranks meet more often.
constexpr size_t kMailboxesBytes = 32 << 20;
constexpr size_t kLargestMailboxBytes = 4 << 20;
constexpr size_t kSlotsReadBytes = 64 << 10;  // of all slots; for more, mailboxes are faster
constexpr size_t kTextBytes = 512;  // for a text of Segment::create(), errors included

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
    // Zeroed memory is a valid ControlPage, because it has only integers and lock-free atomics.
    pages.push_back(reinterpret_cast<ControlPage*>(part));
  }
  return pages;
}

/// Host name and boot id, because two hosts may both be called localhost.
std::string host_identity() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  return fmt::format("{} (boot id {})", name.data(), boot_id);
}

}  // namespace

size_t Collectives::part_bytes(int world_size) {
  return kSlotsEnd + mailbox_bytes(world_size);
}

std::unique_ptr<Collectives> Collectives::connect(int rank, int world_size,
                                                  std::chrono::milliseconds timeout,
                                                  const Exchange& exchange) {
  const std::vector<std::string> hosts = exchange(host_identity());
  const auto other = std::ranges::find_if(hosts, [&](const auto& its) { return its != hosts[0]; });
  if (other != hosts.end()) {
    throw SeveralHosts(fmt::format("rank {} is on {}, rank 0 on {}, expected all ranks on one host",
                                   other - hosts.begin(), *other, hosts[0]));
  }
  if (world_size > kMaxRanks) {
    throw SegmentError(fmt::format("world size is {}, expected at most {}", world_size, kMaxRanks));
  }
  const std::shared_ptr<Segment> segment =
      Segment::create(exchange, rank, world_size, part_bytes(world_size));
  auto collectives = std::make_unique<Collectives>(
      rank, segment->parts(), timeout, [segment](int peer) { return segment->is_held_by(peer); });
  collectives->barrier();
  return collectives;
}

Collectives::Collectives(int rank, const std::vector<std::byte*>& parts,
                         std::chrono::milliseconds timeout, std::function<bool(int)> is_alive)
    : Communicator(rank, static_cast<int>(parts.size())),
      own_(static_cast<size_t>(rank)),
      ranks_(parts.size()),
      parts_(parts),
      barrier_(rank, control_pages(parts), timeout, std::move(is_alive)) {}

std::byte* Collectives::slot(size_t rank, bool next) const {
  return parts_[rank] + kControlBytes + (barrier_.sequence() + next) % 2 * kSlotBytes;
}

std::byte* Collectives::mailbox(size_t rank) const {
  return parts_[rank] + kSlotsEnd;
}

void Collectives::barrier() {
  barrier_.begin({});
}

void Collectives::all_reduce(void* data, size_t count, DType dtype, ReduceOp op) {
  Call call{.operation = Operation::kAllReduce, .dtype = dtype, .reduce_op = op, .count = count};
  const size_t bytes = count * element_bytes(dtype);
  if (bytes <= std::min(kSlotBytes, kSlotsReadBytes / ranks_)) {
    stream(slot(own_, /*next=*/true), data, bytes);
    barrier_.begin(call);
    reduce_slots(data, count, dtype, op);
    return;
  }
  const Region* const region = find_region(data, bytes);
  if (region != nullptr) {
    const auto offset = static_cast<size_t>(static_cast<std::byte*>(data) - region->parts[own_]);
    call.region = offset % element_bytes(dtype) == 0 ? region->id : 0;
    call.region_offset = offset;
  }
  const bool in_place = barrier_.begin(call);
  if (ranks_ == 1) {
    return;
  }
  if (in_place) {
    reduce_in_place(*region, call.region_offset, count, dtype, op);
  } else {
    reduce_through_mailboxes(static_cast<std::byte*>(data), count, dtype, op);
  }
}

void Collectives::reduce_slots(void* data, size_t count, DType dtype, ReduceOp op) {
  Reduction reduction(dtype, op, count, ranks_, 1);
  reduction.outputs[0] = data;
  for (size_t r = 0; r < ranks_; ++r) {
    reduction.inputs[r] = r == own_ ? data : slot(r);
  }
  reduce(reduction);
}

void Collectives::reduce_in_place(const Region& region, size_t offset, size_t count, DType dtype,
                                  ReduceOp op) {
  // Stripes end where cache lines end, so that two ranks never write the same line.
  const size_t end = offset + count * element_bytes(dtype);
  const size_t first_line = offset / kLineBytes;
  const size_t lines = (end + kLineBytes - 1) / kLineBytes - first_line;
  const size_t lines_each = (lines + ranks_ - 1) / ranks_;
  const auto boundary = [&](size_t stripe) {
    return std::clamp((first_line + stripe * lines_each) * kLineBytes, offset, end);
  };
  const size_t own_count = (boundary(own_ + 1) - boundary(own_)) / element_bytes(dtype);
  Reduction reduction(dtype, op, own_count, ranks_, ranks_);
  for (size_t r = 0; r < ranks_; ++r) {
    reduction.inputs[r] = reduction.outputs[r] = region.parts[r] + boundary(own_);
  }
  reduce(reduction);
  barrier_.meet();
}

void Collectives::reduce_through_mailboxes(std::byte* data, size_t count, DType dtype,
                                           ReduceOp op) {
  const size_t unit = element_bytes(dtype);
  const size_t stripe_bytes = round_down(mailbox_bytes(world_size()) / ranks_, kLineBytes);
  const size_t bytes = count * unit;
  for (size_t begin = 0; begin < bytes; begin += stripe_bytes * ranks_) {
    const size_t piece = std::min(stripe_bytes * ranks_, bytes - begin);
    const size_t part = std::min(round_down(piece / ranks_ + kLineBytes, kLineBytes), stripe_bytes);
    const auto range = [&](size_t r) {
      return std::pair{std::min(r * part, piece), std::min((r + 1) * part, piece)};
    };
    std::byte* const here = data + begin;
    // A stripe begins at the same place of a mailbox whatever the piece's size. So its rank has
    // read the stripe before the last meeting, and it may be overwritten here.
    for (size_t step = 1; step < ranks_; ++step) {
      const size_t r = (own_ + step) % ranks_;
      const auto [from, to] = range(r);
      stream(mailbox(own_) + r * stripe_bytes, here + from, to - from);
    }
    barrier_.meet();
    const auto [from, to] = range(own_);
    Reduction reduction(dtype, op, (to - from) / unit, ranks_, 1);
    reduction.outputs[0] = here + from;
    for (size_t r = 0; r < ranks_; ++r) {
      reduction.inputs[r] = r == own_ ? here + from : mailbox(r) + own_ * stripe_bytes;
    }
    reduction.streamed_output = mailbox(own_) + own_ * stripe_bytes;
    reduce(reduction);
    barrier_.meet();
    for (size_t step = 1; step < ranks_; ++step) {
      const size_t r = (own_ + step) % ranks_;
      const auto [their_from, their_to] = range(r);
      std::memcpy(here + their_from, mailbox(r) + r * stripe_bytes, their_to - their_from);
    }
  }
}

void Collectives::broadcast(void* data, size_t bytes, int root) {
  std::array<void*, kMaxRanks> outputs{};
  outputs[static_cast<size_t>(root)] = data;
  exchange({.operation = Operation::kBroadcast, .root = static_cast<uint8_t>(root), .count = bytes},
           rank() == root ? data : nullptr, outputs.data());
}

void Collectives::all_gather(const void* input, void* const* outputs, size_t bytes) {
  exchange({.operation = Operation::kAllGather, .count = bytes}, input, outputs);
}

void Collectives::exchange(const Call& call, const void* input, void* const* outputs) {
  const size_t bytes = call.count;
  const auto* const source = static_cast<const std::byte*>(input);
  const auto collect = [&](size_t begin, size_t size, const auto& place_of) {
    for (size_t r = 0; r < ranks_; ++r) {
      if (outputs[r] != nullptr && outputs[r] != input && size > 0) {
        std::memcpy(static_cast<std::byte*>(outputs[r]) + begin,
                    r == own_ ? source + begin : place_of(r), size);
      }
    }
  };
  if (bytes <= kSlotBytes) {
    if (source != nullptr) {
      stream(slot(own_, /*next=*/true), source, bytes);
    }
    barrier_.begin(call);
    collect(0, bytes, [&](size_t r) { return slot(r); });
    return;
  }
  barrier_.begin(call);
  if (ranks_ == 1) {
    collect(0, bytes, [&](size_t) { return source; });
    return;
  }
  // The mailbox's halves take turns: a half is written while slow ranks still read the other half.
  const size_t half_bytes = round_down(mailbox_bytes(world_size()) / 2, kLineBytes);
  size_t half = 0;
  for (size_t begin = 0; begin < bytes; begin += half_bytes, half = 1 - half) {
    const size_t size = std::min(half_bytes, bytes - begin);
    if (source != nullptr) {
      stream(mailbox(own_) + half * half_bytes, source + begin, size);
    }
    barrier_.meet();
    collect(begin, size, [&](size_t r) { return mailbox(r) + half * half_bytes; });
  }
}

std::vector<std::string> Collectives::exchange_texts(const std::string& mine) {
  std::array<char, kTextBytes> text{};
  std::strncpy(text.data(), mine.c_str(), text.size() - 1);
  std::vector<std::array<char, kTextBytes>> texts(ranks_);
  std::array<void*, kMaxRanks> outputs;
  std::transform(texts.begin(), texts.end(), outputs.begin(), [](auto& one) { return one.data(); });
  all_gather(text.data(), outputs.data(), kTextBytes);
  std::vector<std::string> result;
  for (const auto& one : texts) {
    result.emplace_back(one.data());
  }
  return result;
}

std::shared_ptr<void> Collectives::allocate(size_t bytes) {
  const std::vector<std::string> sizes = exchange_texts(std::to_string(bytes));
  if (bytes == 0 || std::ranges::count(sizes, sizes[own_]) != world_size()) {
    return nullptr;
  }
  std::shared_ptr<Segment> segment;
  try {
    segment = Segment::create([this](const std::string& mine) { return exchange_texts(mine); },
                              rank(), world_size(), bytes);
  } catch (const SegmentError&) {
    return nullptr;  // on all ranks, which then use the mailboxes
  }
  add_region(segment->parts(), bytes, segment);
  return {segment, segment->part(rank())};
}

void Collectives::add_region(const std::vector<std::byte*>& parts, size_t bytes,
                             std::weak_ptr<const void> owner) {
  regions_.push_back({next_region_++, parts, bytes, std::move(owner)});
}

const Collectives::Region* Collectives::find_region(const void* data, size_t bytes) const {
  // Freed memory may be in use for other data.
  std::erase_if(regions_, [](const Region& region) { return region.owner.expired(); });
  for (const Region& region : regions_) {
    const auto begin = reinterpret_cast<uintptr_t>(region.parts[own_]);
    const auto at = reinterpret_cast<uintptr_t>(data);
    if (at >= begin && at + bytes <= begin + region.bytes) {
      return &region;
    }
  }
  return nullptr;
}

}  // namespace ddp::shm
