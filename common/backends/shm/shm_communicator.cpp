#include "common/backends/shm/shm_communicator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "common/backends/shm/shm_kernels.hpp"

namespace ddp::shm {
namespace {

constexpr size_t kLineBytes = 64;
constexpr size_t kControlBytes = 4096;
constexpr size_t kSlotsEnd = kControlBytes + 2 * Communicator::kSlotBytes;
/// Of all ranks, and of one. Larger ones fall out of the caches; smaller ones meet more often.
constexpr size_t kMailboxesBytes = 32 << 20;
constexpr size_t kLargestMailboxBytes = 4 << 20;
/// What a rank reads of all slots together before mailboxes are faster.
constexpr size_t kSlotsReadBytes = 64 << 10;
/// Long enough for what Segment::create() says, errors included.
constexpr size_t kTextBytes = 512;

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
    throw SegmentError(
        fmt::format("world size is {}, expected at most {}", settings.world_size, kMaxRanks));
  }
  const std::string stranger = first_stranger(identities);
  if (!stranger.empty()) {
    throw SegmentError(stranger + ", expected all ranks on one host");
  }
  const std::shared_ptr<Segment> segment = Segment::create(
      exchange, settings.rank, settings.world_size, part_bytes(settings.world_size), settings.ways);
  auto communicator = std::make_unique<Communicator>(
      settings.rank, segment->parts(), settings.timeout,
      [segment](int peer) { return segment->is_held_by(peer); }, settings.names);
  communicator->barrier();
  return communicator;
}

Communicator::Communicator(int rank, const std::vector<std::byte*>& parts,
                           std::chrono::milliseconds timeout, std::function<bool(int)> is_alive,
                           std::vector<int> names)
    : ddp::Communicator(rank, static_cast<int>(parts.size())),
      own_(static_cast<size_t>(rank)),
      ranks_(parts.size()),
      parts_(parts),
      barrier_(rank, control_pages(parts), timeout, std::move(is_alive), std::move(names)) {}

std::byte* Communicator::slot(size_t rank, bool next) const {
  return parts_[rank] + kControlBytes + (barrier_.sequence() + next) % 2 * kSlotBytes;
}

std::byte* Communicator::mailbox(size_t rank) const {
  return parts_[rank] + kSlotsEnd;
}

void Communicator::barrier() {
  barrier_.begin({});
}

void Communicator::all_reduce(void* data, size_t count, DType dtype, ReduceOp op) {
  Call call{.operation = Operation::kAllReduce, .dtype = dtype, .reduce_op = op, .count = count};
  const size_t bytes = count * element_bytes(dtype);
  if (bytes <= std::min(kSlotBytes, kSlotsReadBytes / ranks_)) {
    kernels().stream(slot(own_, /*next=*/true), data, bytes);
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

void Communicator::reduce_slots(void* data, size_t count, DType dtype, ReduceOp op) {
  std::array<const void*, kMaxRanks> inputs;
  for (size_t r = 0; r < ranks_; ++r) {
    inputs[r] = r == own_ ? data : slot(r);
  }
  kernels().reduce({dtype, op, count, {inputs.data(), ranks_}, {&data, 1}});
}

void Communicator::reduce_in_place(const Region& region, size_t offset, size_t count, DType dtype,
                                   ReduceOp op) {
  // Stripes end where lines of cache end: no line is written by two ranks.
  const size_t end = offset + count * element_bytes(dtype);
  const size_t first_line = offset / kLineBytes;
  const size_t lines = (end + kLineBytes - 1) / kLineBytes - first_line;
  const size_t lines_each = (lines + ranks_ - 1) / ranks_;
  const auto boundary = [&](size_t stripe) {
    return std::clamp((first_line + stripe * lines_each) * kLineBytes, offset, end);
  };
  std::array<void*, kMaxRanks> buffers;
  for (size_t r = 0; r < ranks_; ++r) {
    buffers[r] = region.parts[r] + boundary(own_);
  }
  const size_t own_count = (boundary(own_ + 1) - boundary(own_)) / element_bytes(dtype);
  kernels().reduce({dtype, op, own_count, {buffers.data(), ranks_}, {buffers.data(), ranks_}});
  barrier_.meet();
}

void Communicator::reduce_through_mailboxes(std::byte* data, size_t count, DType dtype,
                                            ReduceOp op) {
  const size_t unit = element_bytes(dtype);
  const size_t stripe_bytes = round_down(mailbox_bytes(world_size()) / ranks_, kLineBytes);
  const size_t bytes = count * unit;
  for (size_t begin = 0; begin < bytes; begin += stripe_bytes * ranks_) {
    const size_t piece = std::min(stripe_bytes * ranks_, bytes - begin);
    const size_t each = (piece / ranks_ + kLineBytes) / kLineBytes * kLineBytes;
    const size_t part = std::min(each, stripe_bytes);
    const auto range = [&](size_t r) {
      return std::pair{std::min(r * part, piece), std::min((r + 1) * part, piece)};
    };
    std::byte* const here = data + begin;
    // A stripe begins at the same place of a mailbox whatever the piece's size: what is written
    // into one here was read by its rank before the last meeting.
    for (size_t step = 1; step < ranks_; ++step) {
      const size_t r = (own_ + step) % ranks_;
      const auto [from, to] = range(r);
      kernels().stream(mailbox(own_) + r * stripe_bytes, here + from, to - from);
    }
    barrier_.meet();
    const auto [from, to] = range(own_);
    std::array<const void*, kMaxRanks> inputs;
    for (size_t r = 0; r < ranks_; ++r) {
      inputs[r] = r == own_ ? here + from : mailbox(r) + own_ * stripe_bytes;
    }
    void* output = here + from;
    std::byte* const streamed = mailbox(own_) + own_ * stripe_bytes;
    kernels().reduce(
        {dtype, op, (to - from) / unit, {inputs.data(), ranks_}, {&output, 1}, streamed});
    barrier_.meet();
    for (size_t step = 1; step < ranks_; ++step) {
      const size_t r = (own_ + step) % ranks_;
      const auto [their_from, their_to] = range(r);
      std::memcpy(here + their_from, mailbox(r) + r * stripe_bytes, their_to - their_from);
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

void Communicator::all_gather(const void* input, void* const* outputs, const size_t* counts,
                              DType dtype) {
  exchange({.operation = Operation::kAllGather,
            .dtype = dtype,
            .count = *std::max_element(counts, counts + ranks_)},
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
  // Of rank r's bytes [begin, begin + size), those that there are.
  const auto present = [&](size_t r, size_t begin, size_t size) {
    const size_t all = counts == nullptr ? bytes : counts[r] * unit;
    return std::min(begin + size, all) - std::min(begin, all);
  };
  const auto collect = [&](size_t begin, size_t size, const auto& place_of) {
    for (size_t r = 0; r < ranks_; ++r) {
      void* const output = outputs[r];
      const size_t part = present(r, begin, size);
      if (output == nullptr || part == 0) {
        continue;
      }
      if (r != own_) {
        std::memcpy(static_cast<std::byte*>(output) + begin, place_of(r), part);
      } else if (output != input) {
        std::memmove(static_cast<std::byte*>(output) + begin, source + begin, part);
      }
    }
  };
  if (bytes <= kSlotBytes) {
    if (source != nullptr) {
      kernels().stream(slot(own_, /*next=*/true), source, present(own_, 0, bytes));
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
  // The halves of the mailbox take turns: one is written while slow ranks still read the other.
  const size_t half_bytes = round_down(mailbox_bytes(world_size()) / 2, kLineBytes);
  size_t half = 0;
  for (size_t begin = 0; begin < bytes; begin += half_bytes, half = 1 - half) {
    const size_t size = std::min(half_bytes, bytes - begin);
    if (const size_t part = present(own_, begin, size); source != nullptr && part > 0) {
      kernels().stream(mailbox(own_) + half * half_bytes, source + begin, part);
    }
    barrier_.meet();
    collect(begin, size, [&](size_t r) { return mailbox(r) + half * half_bytes; });
  }
}

void Communicator::reduce_scatter(const void* const* inputs, void* output, const size_t* counts,
                                  DType dtype, ReduceOp op) {
  const size_t unit = element_bytes(dtype);
  const size_t longest = *std::max_element(counts, counts + ranks_);
  barrier_.begin(
      {.operation = Operation::kReduceScatter, .dtype = dtype, .reduce_op = op, .count = longest});
  if (ranks_ == 1) {
    if (longest > 0 && output != inputs[0]) {
      std::memmove(output, inputs[0], longest * unit);
    }
    return;
  }
  const size_t stripe_bytes = round_down(mailbox_bytes(world_size()) / 2 / ranks_, kLineBytes);
  size_t half = 0;
  for (size_t begin = 0; begin < longest * unit; begin += stripe_bytes, half = 1 - half) {
    const auto size = [&](size_t r) {
      const size_t bytes = counts[r] * unit;
      return std::min(begin + stripe_bytes, bytes) - std::min(begin, bytes);
    };
    const auto stripe = [&](size_t from, size_t to) {
      return mailbox(from) + (half * ranks_ + to) * stripe_bytes;
    };
    for (size_t step = 1; step < ranks_; ++step) {
      const size_t r = (own_ + step) % ranks_;
      if (size(r) > 0) {
        kernels().stream(stripe(own_, r), static_cast<const std::byte*>(inputs[r]) + begin,
                         size(r));
      }
    }
    barrier_.meet();
    if (size(own_) == 0) {
      continue;
    }
    std::array<const void*, kMaxRanks> pieces;
    for (size_t r = 0; r < ranks_; ++r) {
      pieces[r] = r == own_ ? static_cast<const std::byte*>(inputs[own_]) + begin : stripe(r, own_);
    }
    void* place = static_cast<std::byte*>(output) + begin;
    kernels().reduce({dtype, op, size(own_) / unit, {pieces.data(), ranks_}, {&place, 1}});
  }
}

std::shared_ptr<void> Communicator::allocate(size_t bytes) {
  const auto gather_all = [&](auto mine) {
    std::vector<decltype(mine)> all(ranks_);
    std::array<void*, kMaxRanks> outputs{};
    for (size_t r = 0; r < ranks_; ++r) {
      outputs[r] = &all[r];
    }
    exchange({.operation = Operation::kAllGather, .count = sizeof(mine)}, &mine, outputs.data());
    return all;
  };
  const std::vector<uint64_t> sizes = gather_all(static_cast<uint64_t>(bytes));
  if (bytes == 0 || std::ranges::count(sizes, bytes) != world_size()) {
    return nullptr;
  }
  const Exchange exchange_texts = [&](const std::string& mine) {
    std::array<char, kTextBytes> text{};
    std::strncpy(text.data(), mine.c_str(), text.size() - 1);
    std::vector<std::string> texts;
    for (const auto& theirs : gather_all(text)) {
      texts.emplace_back(theirs.data());
    }
    return texts;
  };
  std::shared_ptr<Segment> segment;
  try {
    segment = Segment::create(exchange_texts, rank(), world_size(), bytes);
  } catch (const SegmentError&) {
    return nullptr;  // on all ranks: without a region the mailboxes do
  }
  add_region(segment->parts(), bytes, segment);
  return {segment, segment->part(rank())};
}

void Communicator::add_region(const std::vector<std::byte*>& parts, size_t bytes,
                              std::weak_ptr<const void> owner) {
  regions_.push_back({next_region_++, parts, bytes, std::move(owner)});
}

const Communicator::Region* Communicator::find_region(const void* data, size_t bytes) const {
  // What was freed may be somebody else's memory by now.
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
