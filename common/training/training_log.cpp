#include "common/training/training_log.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "common/base/exit_codes.hpp"
#include "common/launch/cpu_share.hpp"
#include "common/launch/stop_request.hpp"
#include "common/model/flat_parameters.hpp"
#include "common/training/metrics_file.hpp"

namespace ddp {
namespace {

using nlohmann::json;

constexpr size_t kWarmupSteps = 20;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// At most half of the steps: a short run is still measured.
size_t warmup_steps(size_t steps) {
  return std::min(kWarmupSteps, steps / 2);
}

/// Of one member of the steps after the warm-up; not a number for no steps.
double median(const std::vector<StepTimes>& steps, double StepTimes::*member) {
  if (steps.empty()) {
    return kNaN;
  }
  std::vector<double> values;
  for (size_t i = warmup_steps(steps.size()); i < steps.size(); ++i) {
    values.push_back(steps[i].*member);
  }
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
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
  label_ = (device.is_cuda() ? "GPU" : "CPU") + std::to_string(number);
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

void TrainingLog::add_usage() {
  const ProcessTimes now = process_times();
  const bool first_was_warmup = !steps_.empty() && steps_.front().epoch + 1 == epoch_;
  if (first_was_warmup) {
    usage_ = {};
  }
  usage_.cpu_ms += now.cpu_ms - epoch_begin_.cpu_ms;
  usage_.wall_ms += now.wall_ms - epoch_begin_.wall_ms;
}

torch::Tensor TrainingLog::sum_over_ranks(std::vector<double> values) const {
  torch::Tensor sums = torch::tensor(values, torch::kFloat64).to(device_);
  if (process_group_ != nullptr) {
    process_group_->all_reduce(sums);
  }
  return sums.to(torch::kCPU);
}

torch::Tensor TrainingLog::gather_over_ranks(const torch::Tensor& rows) const {
  return process_group_ == nullptr ? rows.unsqueeze(0)
                                   : process_group_->all_gather(rows.to(device_)).to(torch::kCPU);
}

bool TrainingLog::weights_are_finite() const {
  double sum = 0;  // not finite if one weight is not
  for (const torch::Tensor& parameter : model_->parameters()) {
    sum += parameter.sum().item<double>();
  }
  return std::isfinite(sum);
}

void TrainingLog::end_epoch() {
  const std::vector<StepTimes> steps = timer_.end_epoch(epoch_);
  add_usage();
  if (process_group_ != nullptr) {
    process_group_->pause_all_reduce(false);
  }
  double loss_sum = 0;
  double samples = 0;
  for (const StepTimes& step : steps) {
    loss_sum += step.loss * step.samples;
    samples += step.samples;
  }
  steps_.insert(steps_.end(), steps.begin(), steps.end());
  // Ranks may be signalled at different moments, or only one of them: the wish travels with the
  // loss.
  const torch::Tensor sums = sum_over_ranks(
      {loss_sum / samples, stop_request() == 0 ? 0.0 : 1.0, weights_are_finite() ? 0.0 : 1.0});
  const double loss = sums[0].item<double>() / static_cast<double>(world_size_);
  stop_asked_ = sums[1].item<double>() > 0;
  if (!options_.quiet) {
    std::printf("[%s] Epoch %lld | Batchsize: %lld | Steps: %zu | Loss: %.4f\n", label_.c_str(),
                static_cast<long long>(epoch_),
                static_cast<long long>(resolve_batch_per_rank(options_, world_size_)), steps.size(),
                loss);
    std::fflush(stdout);
  }
  const bool weights_finite = sums[2].item<double>() == 0;
  if (!std::isfinite(loss) || !weights_finite) {
    std::ostringstream message;
    message << "training diverged in epoch " << epoch_ << ": its loss is " << loss
            << (weights_finite ? "" : ", and a weight is not finite")
            << ", expected finite numbers; a smaller --lr may help";
    throw Error(ExitCode::kTrainingFailed, message.str());
  }
}

void TrainingLog::check_weights(double moved, const std::string& hash) const {
  if (!std::isfinite(moved)) {
    throw Error(ExitCode::kTrainingFailed,
                "the weights moved by " + std::to_string(moved) +
                    ", expected a finite distance; a smaller --lr may help");
  }
  if (process_group_ != nullptr && !options_.no_communication) {
    const std::string first = process_group_->share("final weights", hash);
    if (first != hash) {
      throw Error(ExitCode::kTrainingFailed, "weights of rank " + std::to_string(rank_) +
                                                 " have digest " + hash.substr(0, 16) +
                                                 ", expected rank 0's " + first.substr(0, 16));
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
  const int64_t samples = test_size * (rank_ + 1) / world_size_ - begin;
  const Evaluation part = evaluate(model_, dataset.test.input.narrow(0, begin, samples),
                                   dataset.test.target.narrow(0, begin, samples), device_);
  const torch::Tensor sums = sum_over_ranks({part.loss_sum, part.correct, part.samples});

  // The slowest rank's.
  const double step_ms =
      gather_over_ranks(torch::tensor({median(steps_, &StepTimes::step_ms)}, torch::kFloat64))
          .max()
          .item<double>();
  // Fewer samples than the global batch if the data has fewer.
  return {.moved = moved,
          .loss = (sums[0] / sums[2]).item<double>(),
          .accuracy = dataset.classification() ? (sums[1] / sums[2]).item<double>() : kNaN,
          .hash = hash,
          .step_ms = step_ms,
          .samples_per_second = median(steps_, &StepTimes::samples) / step_ms * 1000};
}

void TrainingLog::print(const Result& result) const {
  char accuracy[32] = "";
  if (!std::isnan(result.accuracy)) {
    std::snprintf(accuracy, sizeof(accuracy), " | accuracy %.4f", result.accuracy);
  }
  char speed[64] = "";  // nothing to say if no step was made, as when only evaluating
  if (!steps_.empty()) {
    std::snprintf(speed, sizeof(speed), " | step %.3f ms | %.0f samples/s", result.step_ms,
                  result.samples_per_second);
  }
  std::printf("moved %#.6g | loss %.4f%s | digest %s%s\n", result.moved, result.loss, accuracy,
              result.hash.substr(0, 16).c_str(), speed);
  std::fflush(stdout);
}

void TrainingLog::report(const Dataset& dataset) {
  const Result all = result(dataset);
  if (rank_ == 0) {
    print(all);
  }
  if (options_.metrics.empty()) {
    return;
  }
  const json last = summary(dataset, all);
  const torch::Tensor tables = gather_over_ranks(to_table(steps_));
  if (rank_ == 0) {
    write_metrics(options_.metrics, tables, last);
  }
}

json TrainingLog::summary(const Dataset& dataset, const Result& result) const {
  using Milliseconds = std::chrono::duration<double, std::milli>;
  const auto first_step_end = timer_.first_step_end();
  const double startup_ms =
      first_step_end ? Milliseconds(*first_step_end - process_start()).count() : kNaN;
  const torch::Tensor per_rank = gather_over_ranks(
      torch::tensor({peak_rss_mib(), startup_ms, usage_.cpu_ms, usage_.wall_ms}, torch::kFloat64));
  const auto column = [&](int64_t index) {
    json values = json::array();
    for (int r = 0; r < world_size_; ++r) {
      values.push_back(finite_or_null(per_rank[r][index].item<double>()));
    }
    return values;
  };
  const LaunchEnvironment environment =
      process_group_ == nullptr ? LaunchEnvironment{} : process_group_->environment();
  int64_t parameters = 0;
  for (const torch::Tensor& parameter : model_->parameters()) {
    parameters += parameter.numel();
  }
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
      {"step_ms", finite_or_null(result.step_ms)},
      {"samples_per_second", finite_or_null(result.samples_per_second)},
      {"moved", finite_or_null(result.moved)},
      {"loss", finite_or_null(result.loss)},
      {"accuracy", finite_or_null(result.accuracy)},
      {"loss_floor", finite_or_null(dataset.loss_floor)},
      {"digest", result.hash.substr(0, 16)},
      {"parameters", parameters},
      {"communicates", !options_.no_communication},
      {"bytes_per_step",
       std::accumulate(all_reduce_bytes.begin(), all_reduce_bytes.end(), int64_t{0})},
      {"all_reduce_bytes", all_reduce_bytes},
      {"gather_bytes", timer_.gather_bytes()},
      {"peak_rss_mib", column(0)},
      {"startup_ms", column(1)},
      {"cpu_time_ms", column(2)},
      {"timed_wall_ms", column(3)},
      {"first_step_unix_ms", first_step_end
                                 ? json(std::chrono::duration_cast<std::chrono::milliseconds>(
                                            first_step_end->time_since_epoch())
                                            .count())
                                 : json()},
  };
}

}  // namespace ddp
