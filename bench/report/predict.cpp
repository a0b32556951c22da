#include "bench/report/predict.hpp"

#include <algorithm>
#include <numeric>

#include "bench/report/analysis.hpp"
#include "bench/report/communication_model.hpp"
#include "common/base/refuse.hpp"

namespace ddp::bench {
namespace {

double milliseconds(double amount, double giga_per_second) {
  return amount / (giga_per_second * 1e9) * 1e3;
}

double memory_ms(const Rates& rates, double bytes, double working_set_bytes) {
  const std::optional<double> gbps = memory_gbps(rates.memory, working_set_bytes);
  return milliseconds(bytes, gbps.value());
}

/// @throws UsageError
double all_reduce_ms(const Rates& rates, double bytes, int world_size) {
  const std::optional<double> ms = all_reduces_ms(rates.network, {bytes}, world_size);
  if (!ms) {
    refuse(
        "--ranks {}: the all-reduces were measured with {} ranks alone, which tells no "
        "algorithm, expected --ranks {} or --network",
        world_size, rates.network.world_sizes.front(), rates.network.world_sizes.front());
  }
  return *ms;
}

/// Of an all_reduce, what sums gradients: all, or the half that a sharded optimizer's
/// reduce_scatter is. The rest sends weights, in its all_gather.
double summing_part(const Gradients& gradients) {
  return gradients.shard_optimizer ? 0.5 : 1;
}

StepTimes time_step(const Job& job, const Rates& rates) {
  const std::vector<std::int64_t>& layers = job.layers;
  const auto batch = static_cast<double>(job.batch_per_rank);
  const double parameters = parameter_bytes(layers);
  const double flop = step_flop(layers, batch);
  StepTimes times;
  times.arithmetic = milliseconds(flop, rates.gflops);
  // What step_bytes() has beside SGD's update.
  times.weight_traffic =
      memory_ms(rates, step_bytes(layers) - updated_values("sgd") * parameters, 2 * parameters);
  const double ms_per_flop = std::max(times.arithmetic, times.weight_traffic) / flop;
  times.forward = forward_flop(layers, batch) * ms_per_flop;

  const std::vector<Bucket> buckets = count_buckets(layers, job.gradients, job.world_size);
  double part = 0;
  double whole = 0;
  double gather_ms = 0;  // behind the update, where nothing hides it
  double now_ms = times.forward;
  double sent_ms = 0;  // the end of what has been sent
  auto bucket = buckets.begin();
  for (std::size_t layer = layers.size() - 1; layer-- > 0;) {
    now_ms += backward_flop(layers, layer, batch) * ms_per_flop;
    for (; bucket != buckets.end() && bucket->layer == layer; ++bucket) {
      part += bucket->part_bytes;
      whole += bucket->weight_bytes;
      if (job.world_size == 1) {
        continue;
      }
      const double summing = summing_part(job.gradients);
      const double sum_ms = summing * all_reduce_ms(rates, bucket->bytes, job.world_size);
      const double weights_ms =
          (1 - summing) * all_reduce_ms(rates, bucket->weight_bytes, job.world_size);
      sent_ms = std::max(sent_ms, now_ms) + sum_ms;
      gather_ms += weights_ms;
      times.communication += sum_ms + weights_ms;
    }
  }
  times.backward = now_ms - times.forward;
  const double updated = part / whole * parameters;
  times.update = memory_ms(rates, updated_values(job.optimizer) * updated,
                           (2 + kept_values(job.optimizer)) * updated);
  times.exposed = std::max(0.0, sent_ms - now_ms) + gather_ms;
  times.hidden = std::max(0.0, times.communication - times.exposed);
  const double work_ms = times.forward + times.backward + times.update;
  times.step = work_ms + times.exposed;
  times.step_without_overlap = work_ms + times.communication;
  return times;
}

/// As of a run that was measured to take as long.
std::string bound_of(const Job& job, const StepTimes& times) {
  Run run;
  run.launcher = "spawn";
  run.world_size = job.world_size;
  run.step_ms.median = times.step;
  run.phases_ms[kExposedComm] = times.exposed;
  run.floor.compute_ms = times.arithmetic;
  run.floor.memory_ms = times.weight_traffic + times.update;
  run.floor_ms = std::max(*run.floor.compute_ms, *run.floor.memory_ms);
  return bound_by(run).value();
}

/// More samples only lengthen what communication hides behind, so that it can be searched.
std::optional<std::int64_t> least_batch(Job job, const Rates& rates) {
  const auto is_enough = [&](std::int64_t batch) {
    job.batch_per_rank = batch;
    return bound_of(job, time_step(job, rates)) != "communication";
  };
  if (job.world_size == 1 || !is_enough(kLargestWidth)) {
    return std::nullopt;
  }
  std::int64_t enough = kLargestWidth;
  for (std::int64_t too_few = 0; enough - too_few > 1;) {
    const std::int64_t middle = std::midpoint(too_few, enough);
    (is_enough(middle) ? enough : too_few) = middle;
  }
  return enough;
}

}  // namespace

StepPrediction predict_from_rates(const Job& job, const Rates& rates) {
  StepPrediction prediction;
  prediction.job = job;
  prediction.rates = rates;
  prediction.parameters = count_parameters(job.layers);
  const auto batch = static_cast<double>(job.batch_per_rank);
  prediction.flops = step_flop(job.layers, batch * job.world_size);
  prediction.memory = count_memory(job.layers, batch, job.optimizer, job.gradients, job.world_size);
  if (job.world_size > 1) {
    const std::vector<Bucket> buckets = count_buckets(job.layers, job.gradients, job.world_size);
    prediction.bucket_bytes = bytes_of(buckets);
    const double summing = summing_part(job.gradients);
    for (const Bucket& bucket : buckets) {
      prediction.sent_bytes += bus_factor(job.world_size) *
                               (summing * bucket.bytes + (1 - summing) * bucket.weight_bytes);
    }
  }
  prediction.times = time_step(job, rates);
  prediction.bound = bound_of(job, prediction.times);
  prediction.least_batch = least_batch(job, rates);
  Job one = job;
  one.world_size = 1;
  one.batch_per_rank *= job.scaling == "strong" ? job.world_size : 1;
  prediction.one_rank_step_ms = time_step(one, rates).step;
  prediction.speedup = prediction.one_rank_step_ms / prediction.times.step *
                       (job.scaling == "strong" ? 1 : job.world_size);
  return prediction;
}

}  // namespace ddp::bench
