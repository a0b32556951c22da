#include "simulator/network.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "bench/report/communication_model.hpp"
#include "bench/report/micro_results.hpp"
#include "common/base/parse.hpp"
#include "common/base/refuse.hpp"

namespace ddp::sim {
namespace {

constexpr double kMib = 1024.0 * 1024.0;

const bench::AlphaBetaRegime& regime_of(const bench::CommunicationModel& model, double bytes) {
  const bench::AlphaBetaRegime* regime = &model.regimes.front();
  for (const bench::AlphaBetaRegime& next : model.regimes) {
    regime = static_cast<double>(next.from_bytes) <= bytes ? &next : regime;
  }
  return *regime;
}

}  // namespace

const char* to_string(Kind kind) {
  constexpr std::array<const char*, kKinds> kNames = {
      "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce",
      "gather",     "scatter",        "barrier",    "send",       "recv"};
  return kNames.at(static_cast<std::size_t>(kind));
}

Network::Network(double alpha_us, double beta_us_per_mib, bench::AllReduceAlgorithm algorithm) {
  model_.algorithm = algorithm;
  model_.regimes = {{.from_bytes = 0, .alpha_us = alpha_us, .beta_us_per_mib = beta_us_per_mib}};
}

Network::Network(bench::CommunicationModel model) : model_(std::move(model)) {
  if (!model_.algorithm) {
    const double ranks = model_.world_sizes.front();
    model_.algorithm = bench::AllReduceAlgorithm::kRing;
    for (bench::AlphaBetaRegime& regime : model_.regimes) {
      regime.alpha_us /= 2 * (ranks - 1);
      regime.beta_us_per_mib /= 2 * (ranks - 1) / ranks;
    }
  }
}

double Network::message_us(double bytes) const {
  const bench::AlphaBetaRegime& regime = regime_of(model_, bytes);
  return regime.alpha_us + bytes / kMib * regime.beta_us_per_mib;
}

double Network::collective_us(Kind kind, double bytes, int ranks) const {
  const double n = ranks;
  const auto all_reduce_us = [&](double whole) {
    return model_.predict_us(whole, ranks).value_or(std::nan(""));
  };
  if (ranks == 1) {
    return 0;
  }
  switch (kind) {
    case Kind::kAllReduce:
      return all_reduce_us(bytes);
    case Kind::kBarrier:
      return all_reduce_us(0);
    case Kind::kReduceScatter:
      return all_reduce_us(bytes) / 2;
    case Kind::kAllGather:
      return all_reduce_us(n * bytes) / 2;
    case Kind::kAllToAll:
      return (n - 1) * message_us(bytes / n);
    case Kind::kBroadcast:
    case Kind::kReduce: {
      const bench::AlphaBetaRegime& regime = regime_of(model_, bytes);
      const bool is_ring = model_.algorithm == bench::AllReduceAlgorithm::kRing;
      return (is_ring ? n - 1 : std::log2(n)) * regime.alpha_us +
             bytes / kMib * regime.beta_us_per_mib;
    }
    case Kind::kGather:
    case Kind::kScatter:
      return (n - 1) * message_us(bytes);
    case Kind::kSend:
    case Kind::kRecv:
      break;
  }
  return message_us(bytes);
}

Traffic Network::traffic(Kind kind, double bytes, int ranks, int rank, int root) {
  const double n = ranks;
  const int64_t others = ranks - 1;
  const bool is_root = rank == root;
  const int from_root = (rank - root + ranks) % ranks;
  switch (kind) {
    case Kind::kAllReduce:
      return {2 * others, 2 * (n - 1) / n * bytes};
    case Kind::kReduceScatter:
    case Kind::kAllToAll:
      return {others, (n - 1) / n * bytes};
    case Kind::kAllGather:
      return {others, (n - 1) * bytes};
    case Kind::kBroadcast:
      return from_root == ranks - 1 ? Traffic{} : Traffic{1, bytes};
    case Kind::kReduce:
      return is_root ? Traffic{} : Traffic{1, bytes};
    case Kind::kGather:
      return is_root ? Traffic{} : Traffic{1, bytes};
    case Kind::kScatter:
      return is_root ? Traffic{others, (n - 1) * bytes} : Traffic{};
    case Kind::kBarrier:
      return {2 * others, 0};
    case Kind::kSend:
      return {1, bytes};
    case Kind::kRecv:
      break;
  }
  return {};
}

std::string Network::text() const {
  std::vector<std::string> regimes;
  for (const bench::AlphaBetaRegime& regime : model_.regimes) {
    regimes.push_back(
        fmt::format("{}alpha {:.6g} us, beta {:.6g} us/MiB",
                    regime.from_bytes == 0 ? "" : fmt::format("from {} bytes ", regime.from_bytes),
                    regime.alpha_us, regime.beta_us_per_mib));
  }
  return fmt::format("{}, {}", fmt::join(regimes, "; "),
                     model_.algorithm == bench::AllReduceAlgorithm::kRing ? "ring" : "tree");
}

Network read_network(const std::string& path, const std::string& backend) {
  std::vector<bench::AllReduceSample> samples;
  std::set<std::string> backends;
  for (const bench::AllReduceSample& sample : bench::read_micro_results(path).all_reduce) {
    backends.insert(sample.backend);
    if (backend.empty() || sample.backend == backend) {
      samples.push_back(sample);
    }
  }
  if (backend.empty() && backends.size() > 1) {
    refuse("--network: {} has sweeps of {}, expected --backend to choose one", quote(path),
           fmt::join(backends, ", "));
  }
  const std::vector<bench::CommunicationModel> models = bench::fit_communication_models(samples);
  if (models.empty()) {
    refuse("--network: {} has {} usable all-reduces{}, expected a sweep of three sizes or more",
           quote(path), samples.size(), backend.empty() ? "" : " over " + backend);
  }
  return Network(models.front());
}

}  // namespace ddp::sim
