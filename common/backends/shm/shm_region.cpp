// Regions: memory of all ranks that all_reduce() works on where it is.
#include <algorithm>
#include <array>
#include <cstring>

#include "common/backends/shm/shm_communicator.hpp"

namespace ddp::shm {
namespace {

/// Long enough for what Segment::create() says, errors included.
constexpr size_t kTextBytes = 512;

}  // namespace

std::shared_ptr<void> Communicator::allocate(size_t bytes) {
  const auto ranks = static_cast<size_t>(world_size());
  const auto gather_all = [&](auto mine) {
    std::vector<decltype(mine)> all(ranks);
    std::array<void*, kMaxRanks> outputs{};
    for (size_t r = 0; r < ranks; ++r) {
      outputs[r] = &all[r];
    }
    all_gather(&mine, outputs.data(), sizeof(mine), DType::kUint8);
    return all;
  };
  const std::vector<uint64_t> sizes = gather_all(static_cast<uint64_t>(bytes));
  if (bytes == 0 || std::any_of(sizes.begin(), sizes.end(),
                                [bytes](uint64_t theirs) { return theirs != bytes; })) {
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
  regions_.erase(std::remove_if(regions_.begin(), regions_.end(),
                                [](const Region& region) { return region.owner.expired(); }),
                 regions_.end());
  for (const Region& region : regions_) {
    const auto begin = reinterpret_cast<uintptr_t>(region.parts[static_cast<size_t>(rank())]);
    const auto at = reinterpret_cast<uintptr_t>(data);
    if (at >= begin && at + bytes <= begin + region.bytes) {
      return &region;
    }
  }
  return nullptr;
}

}  // namespace ddp::shm
