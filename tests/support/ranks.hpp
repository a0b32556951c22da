// tests/support/ranks.hpp - ranks that are made up, and what they would write with --metrics.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/run/metrics.hpp"
#include "common/base/scratch_folder.hpp"

namespace ddp::test {

/// What two or more ranks write that wait for each other in every step: as they go on in time.
class Ranks {
 public:
  explicit Ranks(std::size_t ranks) : end_ms_(ranks, 1e6) {}

  /// Every rank computes for a while, then all communicate.
  void step(const std::vector<double>& compute_ms, double communication_ms) {
    std::vector<double> ready_ms = end_ms_;
    for (std::size_t rank = 0; rank < end_ms_.size(); ++rank) {
      ready_ms[rank] += compute_ms[rank];
    }
    const double end_ms = std::ranges::max(ready_ms) + communication_ms;
    for (std::size_t rank = 0; rank < end_ms_.size(); ++rank) {
      write(rank, compute_ms[rank], end_ms - ready_ms[rank], end_ms + late_ms(rank));
    }
    ++steps_;
  }

  /// From now on this rank comes out of a step later than the others.
  void come_out_late(std::size_t rank, double ms) {
    late_rank_ = rank;
    late_ms_ = ms;
  }

  /// Something that is no part of a step, as what follows an epoch, for which all wait.
  void pause(double ms) { end_ms_.assign(end_ms_.size(), now_ms() + ms); }

  double now_ms() const { return std::ranges::max(end_ms_); }

  /// @param without a field that the rows then lack
  bench::StageMetrics read(bool one_host = true, const std::string& without = "",
                           int warmup_steps = 0, std::int64_t timed_steps = 1'000'000) const {
    const ddp::ScratchFolder folder("ddp-metrics-test");
    const std::string path = folder.path() + "/metrics.jsonl";
    {
      std::ofstream file(path);
      for (nlohmann::json row : rows_) {
        row.erase(without);
        file << row.dump() << '\n';
      }
      file << nlohmann::json{{"summary",
                              {{"warmup_steps", warmup_steps},
                               {"epochs", 1},
                               {"global_batch", 64},
                               {"moved", 1},
                               {"first_step_unix_ms", 1e12},
                               {"minor_faults", {1, 2}}}}}
                  .dump()
           << '\n';
    }
    return bench::read_metrics(path, static_cast<int>(end_ms_.size()), one_host, timed_steps);
  }

 private:
  double late_ms(std::size_t rank) const { return rank == late_rank_ ? late_ms_ : 0; }

  void write(std::size_t rank, double compute_ms, double wait_ms, double end_ms) {
    const double step_ms = end_ms - end_ms_[rank];
    rows_.push_back({{"rank", rank},
                     {"epoch", 0},
                     {"step", steps_},
                     {"end_ms", end_ms},
                     {"step_ms", step_ms},
                     {"data_ms", 0.1 * compute_ms},
                     {"forward_ms", 0.3 * compute_ms},
                     {"backward_ms", 0.4 * compute_ms},
                     {"exposed_comm_ms", wait_ms},
                     {"optimizer_ms", step_ms - 0.8 * compute_ms - wait_ms},
                     {"loss", 1}});
    end_ms_[rank] = end_ms;
  }

  std::vector<double> end_ms_;
  std::size_t steps_ = 0;
  std::vector<nlohmann::json> rows_;
  std::size_t late_rank_ = 0;
  double late_ms_ = 0;
};

}  // namespace ddp::test
