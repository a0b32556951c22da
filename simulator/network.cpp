#include "simulator/network.hpp"

#include <array>

namespace ddp::sim {

const char* to_string(Kind kind) {
  constexpr std::array<const char*, 7> kNames = {
      "all_reduce", "reduce_scatter", "all_gather", "broadcast", "barrier", "send", "recv"};
  return kNames.at(static_cast<std::size_t>(kind));
}

Traffic traffic(Kind kind, int64_t bytes, int ranks) {
  const auto b = static_cast<double>(bytes);
  const int64_t others = ranks - 1;
  const double n = ranks;
  switch (kind) {
    case Kind::kAllReduce:
      return {2 * others, 2 * (n - 1) / n * b};
    case Kind::kReduceScatter:
      return {others, (n - 1) / n * b};
    case Kind::kAllGather:
      return {others, (n - 1) * b};
    case Kind::kBroadcast:
      return {others, others == 0 ? 0 : b};
    case Kind::kBarrier:
      return {2 * others, 0};
    case Kind::kSend:
      return {1, b};
    case Kind::kRecv:
      break;
  }
  return {};
}

}  // namespace ddp::sim
