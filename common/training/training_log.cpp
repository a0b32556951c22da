#include "common/training/training_log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "common/base/exit_codes.hpp"
#include "common/launch/cpu_share.hpp"
#include "common/launch/stop_request.hpp"
#include "common/model/flat_parameters.hpp"

namespace ddp {
namespace {

using nlohmann::json;

constexpr size_t kWarmupSteps = 20;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr auto kStepColumns = static_cast<int64_t>(sizeof(StepTimes) / sizeof(double));

/// At most half of the steps: a short run is still measured.
size_t warmup_steps(size_t steps) {
  return std::min(kWarmupSteps, steps / 2);
}

/// Of one member of the steps after the warm-up; not a number for no steps.
double median(const std::vector<StepTimes>& steps, double StepTimes::*member) {
  std::vector<double> values;
  for (size_t i = warmup_steps(steps.size()); i < steps.size(); ++i) {
    values.push_back(steps[i].*member);
  }
  if (values.empty()) {
    return kNaN;
  }
  std::ranges::sort(values);
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

/// Not finite if one weight is not.
double sum_of_weights(const Mlp& model) {
  double sum = 0;
  for (const torch::Tensor& parameter : model->parameters()) {
    sum += parameter.sum().item<double>();
  }
  return sum;
}

}  // namespace

TrainingLog::TrainingLog(const Options& options, Mlp model, const torch::Device& device,
                         ProcessGroup* process_group)
    : options_(options),
      model_(std::move(model)),
      device_(device),
      process_group_(process_group),
      rank_(process_group == nullptr ? 0 : process_group->rank()),
      world_size_(process_group == nullptr ? 1 : process_group->world_size()),
      initial_weights_(parameter_vector(*model_)),
      timer_(device, process_group, /*with_phases=*/!options.metrics.empty()) {
  const int number = process_group == nullptr ? std::max<int>(device.index(), 0) : rank_;
  label_ = fmt::format("{}{}", device.is_cuda() ? "GPU" : "CPU", number);
}

torch::Tensor TrainingLog::gather_over_ranks(const torch::Tensor& values) const {
  return process_group_ == nullptr ? values.unsqueeze(0)
                                   : process_group_->all_gather(values.to(device_)).to(torch::kCPU);
}

torch::Tensor TrainingLog::gather_over_ranks(const std::vector<double>& values) const {
  return gather_over_ranks(torch::tensor(values, torch::kFloat64));
}

void TrainingLog::begin_epoch() {
  if (process_group_ != nullptr) {
    process_group_->pause_all_reduce(options_.no_communication);
  }
  epoch_begin_ = process_times();
  timer_.begin_epoch();
}

void TrainingLog::end_batch(const Batch& batch) {
  if (batch.completes_step) {
    timer_.end_step(batch.step_samples_per_rank * world_size_, batch.epoch_steps);
  } else {
    timer_.begin(Phase::kData);
  }
}

void TrainingLog::end_epoch() {
  const std::vector<StepTimes> steps = timer_.end_epoch(epoch_);
  steps_.insert(steps_.end(), steps.begin(), steps.end());
  const ProcessTimes now = process_times();
  if (++epochs_done_ == 2) {
    usage_ = {};
  }
  usage_.cpu_ms += now.cpu_ms - epoch_begin_.cpu_ms;
  usage_.wall_ms += now.wall_ms - epoch_begin_.wall_ms;
  if (process_group_ != nullptr) {
    process_group_->pause_all_reduce(false);
  }
  double loss_sum = 0;
  double samples = 0;
  for (const StepTimes& step : steps) {
    loss_sum += step.loss * step.samples;
    samples += step.samples;
  }
  // Ranks may be signalled at different moments, or only one: the wish travels with the loss.
  const torch::Tensor sums = gather_over_ranks({loss_sum / samples, stop_request() == 0 ? 0.0 : 1.0,
                                                std::isfinite(sum_of_weights(model_)) ? 0.0 : 1.0})
                                 .sum(0);
  const double loss = sums[0].item<double>() / static_cast<double>(world_size_);
  stop_asked_ = sums[1].item<double>() > 0;
  if (!options_.quiet) {
    std::cout << fmt::format("[{}] Epoch {} | Batchsize: {} | Steps: {} | Loss: {:.4f}\n", label_,
                             epoch_, resolve_batch_per_rank(options_, world_size_), steps.size(),
                             loss)
              << std::flush;
  }
  const bool weights_finite = sums[2].item<double>() == 0;
  if (!std::isfinite(loss) || !weights_finite) {
    throw Error(
        ExitCode::kTrainingFailed,
        fmt::format("training diverged in epoch {}: its loss is {:g}{}, expected finite numbers; a "
                    "smaller --lr may help",
                    epoch_, loss, weights_finite ? "" : ", and a weight is not finite"));
  }
}

void TrainingLog::check_weights(double moved, const std::string& hash) const {
  if (!std::isfinite(moved)) {
    throw Error(ExitCode::kTrainingFailed,
                fmt::format("the weights moved by {:f}, expected a finite distance; a smaller --lr "
                            "may help",
                            moved));
  }
  if (process_group_ != nullptr && !options_.no_communication) {
    const std::string first = process_group_->share("final weights", hash);
    if (first != hash) {
      throw Error(ExitCode::kTrainingFailed,
                  fmt::format("weights of rank {} have digest {}, expected rank 0's {}", rank_,
                              hash.substr(0, 16), first.substr(0, 16)));
    }
  }
}

TrainingLog::Result TrainingLog::result(const Dataset& dataset) {
  const double moved = (parameter_vector(*model_) - initial_weights_).norm().item<double>();
  const std::string hash = parameter_hash(*model_);
  check_weights(moved, hash);

  // Every rank evaluates its own contiguous part; together they are every sample once.
  const int64_t test_size = dataset.test.size();
  const int64_t begin = test_size * rank_ / world_size_;
  const int64_t end = test_size * (rank_ + 1) / world_size_;
  const Evaluation part = evaluate(model_, dataset.test.input.slice(0, begin, end),
                                   dataset.test.target.slice(0, begin, end), device_);
  const torch::Tensor sums = gather_over_ranks({part.loss_sum, part.correct, part.samples}).sum(0);

  // The slowest rank's.
  const double step_ms =
      gather_over_ranks({median(steps_, &StepTimes::step_ms)}).max().item<double>();
  // Fewer samples than the global batch if the data has fewer.
  return {.moved = moved,
          .loss = (sums[0] / sums[2]).item<double>(),
          .accuracy = dataset.classification() ? (sums[1] / sums[2]).item<double>() : kNaN,
          .digest = hash.substr(0, 16),
          .step_ms = step_ms,
          .samples_per_second = median(steps_, &StepTimes::samples) / step_ms * 1000};
}

void TrainingLog::report(const Dataset& dataset) {
  const Result all = result(dataset);
  if (rank_ == 0) {
    const std::string accuracy =
        std::isnan(all.accuracy) ? "" : fmt::format(" | accuracy {:.4f}", all.accuracy);
    const std::string speed = steps_.empty()  // as when only evaluating
                                  ? ""
                                  : fmt::format(" | step {:.3f} ms | {:.0f} samples/s", all.step_ms,
                                                all.samples_per_second);
    std::cout << fmt::format("moved {:#.6g} | loss {:.4f}{} | digest {}{}\n", all.moved, all.loss,
                             accuracy, all.digest, speed)
              << std::flush;
  }
  if (options_.metrics.empty()) {
    return;
  }
  const json last = summary(dataset, all);
  const torch::Tensor steps_of_ranks = gather_over_ranks(torch::from_blob(
      steps_.data(), {static_cast<int64_t>(steps_.size()), kStepColumns}, torch::kFloat64));
  if (rank_ == 0) {
    write_metrics(steps_of_ranks, last);
  }
}

void TrainingLog::write_metrics(const torch::Tensor& steps_of_ranks, const json& summary) const {
  std::ofstream out(options_.metrics, std::ios::trunc);
  const double* row = steps_of_ranks.const_data_ptr<double>();
  for (int rank = 0; rank < world_size_; ++rank) {
    for (int64_t step = 0; step < steps_of_ranks.size(1); ++step, row += kStepColumns) {
      StepTimes times;
      std::memcpy(static_cast<void*>(&times), row, sizeof(times));
      // Ordered, so that a line reads from cause to effect. What is not finite becomes null.
      const nlohmann::ordered_json line = {{"rank", rank},
                                           {"epoch", static_cast<int64_t>(times.epoch)},
                                           {"step", step},
                                           {"step_ms", times.step_ms},
                                           {"data_ms", times.phase_ms[0]},
                                           {"forward_ms", times.phase_ms[1]},
                                           {"backward_ms", times.phase_ms[2]},
                                           {"exposed_comm_ms", times.exposed_comm_ms},
                                           {"optimizer_ms", times.phase_ms[3]},
                                           {"loss", times.loss}};
      out << line.dump() << '\n';
    }
  }
  out << json{{"summary", summary}}.dump() << '\n';
  out.close();
  if (!out) {
    throw Error(ExitCode::kTrainingFailed,
                "--metrics: cannot write " + options_.metrics + ", expected a writable file");
  }
}

json TrainingLog::summary(const Dataset& dataset, const Result& result) const {
  using std::chrono::milliseconds;
  const auto first_step_end = timer_.first_step_end();
  const double startup_ms =
      first_step_end
          ? std::chrono::duration<double, std::milli>(*first_step_end - process_start()).count()
          : kNaN;
  // (values, ranks)
  const torch::Tensor of_ranks =
      gather_over_ranks({peak_rss_mib(), startup_ms, usage_.cpu_ms, usage_.wall_ms})
          .t()
          .contiguous();
  const auto by_rank = [&](int64_t value) {
    const double* const first = of_ranks[value].const_data_ptr<double>();
    return std::vector<double>(first, first + world_size_);
  };
  const LaunchEnvironment environment =
      process_group_ == nullptr ? LaunchEnvironment{} : process_group_->environment();
  const std::vector<int64_t> all_reduce_bytes = timer_.all_reduce_bytes().vec();
  return {
      {"program", options_.program},
      {"launcher", environment.launcher},
      {"backend", process_group_ == nullptr ? json() : json(process_group_->backend_name())},
      {"speedup", options_.speedup},
      {"bucket_mib", options_.bucket_mib},
      {"gradient_compression", options_.gradient_compression},
      {"shard_optimizer", options_.shard_optimizer},
      {"device", device_.is_cuda() ? "cuda" : "cpu"},
      {"dataset", dataset.name},
      {"layers", dataset.layers},
      {"world_size", world_size_},
      {"local_world_size", environment.local_world_size},
      {"nodes", environment.num_nodes},
      {"batch_per_rank", resolve_batch_per_rank(options_, world_size_)},
      {"global_batch", resolve_global_batch(options_, world_size_)},
      {"accumulate", options_.accumulate},
      {"optimizer", options_.optimizer},
      {"threads", options_.threads},
      {"cores", format_cores(allowed_cores())},
      {"epochs", options_.total_epochs},
      {"steps", steps_.size()},
      {"warmup_steps", warmup_steps(steps_.size())},
      {"step_ms", result.step_ms},
      {"samples_per_second", result.samples_per_second},
      {"moved", result.moved},
      {"loss", result.loss},
      {"accuracy", result.accuracy},
      {"loss_floor", dataset.loss_floor},
      {"digest", result.digest},
      {"parameters", initial_weights_.numel()},
      {"communicates", !options_.no_communication},
      {"bytes_per_step",
       std::accumulate(all_reduce_bytes.begin(), all_reduce_bytes.end(), int64_t{0})},
      {"all_reduce_bytes", all_reduce_bytes},
      {"gather_bytes", timer_.gather_bytes()},
      {"peak_rss_mib", by_rank(0)},
      {"startup_ms", by_rank(1)},
      {"cpu_time_ms", by_rank(2)},
      {"timed_wall_ms", by_rank(3)},
      {"first_step_unix_ms", first_step_end ? json(std::chrono::duration_cast<milliseconds>(
                                                       first_step_end->time_since_epoch())
                                                       .count())
                                            : json()},
  };
}

}  // namespace ddp
