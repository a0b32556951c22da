// bench/report/predict.hpp - a step on paper: memory and time by part, from the work that it has
// and the rates of a machine. `bench predict` prints it; docs/cost_of_a_step.md derives it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/report/record.hpp"
#include "bench/report/step_cost.hpp"

namespace ddp::bench {

/// A training of stage 03.
struct Job {
  std::vector<std::int64_t> layers;
  std::int64_t batch_per_rank = 0;
  int world_size = 2;
  /// "weak": each further rank brings its batch; "strong": they divide one
  std::string scaling = "weak";
  std::string optimizer = "sgd";
  Gradients gradients{};
};

/// What each rank can do while all are busy.
struct Rates {
  double gflops = 0;
  std::vector<MemoryRate> memory;
  CommunicationModel network;  ///< of one rank not asked
  DDP_FIELDS(gflops, memory, network);
};

/// Milliseconds of a rank. Nothing but these is counted: no call of an operator, no data, no rank
/// that comes late.
struct StepTimes {
  double arithmetic = 0;  ///< at the rate of a large matrix product
  double weight_traffic = 0;  ///< weights read forward and backward, gradients written
  double forward = 0;  ///< with backward as long as the larger one of these two
  double backward = 0;
  double update = 0;  ///< its memory traffic
  double communication = 0;  ///< one collective after the other, alone
  double hidden = 0;  ///< at most: each all-reduce from where backward has its bucket complete
  double exposed = 0;  ///< the rest
  double step = 0;  ///< with so much hidden
  double step_without_overlap = 0;  ///< as bench predicts its runs
  DDP_FIELDS(arithmetic, weight_traffic, forward, backward, update, communication, hidden, exposed,
             step, step_without_overlap);
};

struct StepPrediction {
  Job job;
  Rates rates;
  std::int64_t parameters = 0;
  double flops = 0;  ///< of a step, over all ranks
  StepMemory memory;
  std::vector<double> bucket_bytes;  ///< in the order in which they start; one rank sends none
  double sent_bytes = 0;  ///< of a rank, in a ring
  StepTimes times;
  std::string bound;  ///< as bound_by() says
  /// From so many samples per rank on it is not bound by communication; none: up to a million it
  /// is, or there is one rank.
  std::optional<std::int64_t> least_batch;
  double one_rank_step_ms = 0;  ///< with the batch that one rank would have, at the same rates
  double speedup = 1;  ///< samples a second over those of one rank
};

/// @throws UsageError if the network's model says nothing of so many ranks
StepPrediction predict_from_rates(const Job& job, const Rates& rates);

}  // namespace ddp::bench
