#include "common/training_log.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "common/cpu_share.hpp"
#include "common/exit_codes.hpp"
#include "common/flat_parameters.hpp"
#include "common/stop_request.hpp"

namespace ddp {
namespace {

using nlohmann::json;

constexpr size_t kWarmupSteps = 20;

/// At most half of the steps: a short run is still measured.
size_t warmup_steps(size_t steps) {
  return std::min(kWarmupSteps, steps / 2);
}

/// Not a number for no samples.
double median(std::vector<double> values) {
  if (values.empty()) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

/// JSON has no NaN.
json number(double value) {
  return std::isfinite(value) ? json(value) : json();
}

/// Of this program alone: getrusage() would also count what a launcher used before it executed us.
double peak_rss_mib() {
  std::ifstream in("/proc/self/status");
  for (std::string word; in >> word;) {
    double kib = 0;
    if (word == "VmHWM:" && in >> kib) {
      return kib / 1024.0;
    }
  }
  return std::numeric_limits<double>::quiet_NaN();
}

/// When this process was started, to the kernel's clock tick (usually 10 ms).
std::chrono::system_clock::time_point process_start() {
  std::ifstream in("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(in)), {});
  // The second field is the program's name in parentheses and may hold blanks; start time is the
  // 22nd.
  std::istringstream fields(text.substr(text.rfind(')') + 2));
  std::string field;
  for (int i = 3; i <= 22; ++i) {
    fields >> field;
  }
  timespec boot{};
  clock_gettime(CLOCK_BOOTTIME, &boot);
  const double since_boot_s = double(boot.tv_sec) + double(boot.tv_nsec) * 1e-9;
  const double started_s = std::stod(field) / double(sysconf(_SC_CLK_TCK));
  return std::chrono::system_clock::now() -
         std::chrono::microseconds(static_cast<int64_t>((since_boot_s - started_s) * 1e6));
}

double milliseconds_between(std::chrono::system_clock::time_point from,
                            std::chrono::system_clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
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
      initial_weights_(parameter_vector(*model_)) {
  const int number = process_group == nullptr ? std::max<int>(device.index(), 0) : rank_;
  label_ = (device.is_cuda() ? "GPU" : "CPU") + std::to_string(number);
  if (process_group_ != nullptr && !options.metrics.empty()) {
    process_group_->enable_wait_timer();
  }
}

TrainingLog::Mark TrainingLog::mark() const {
  Mark now;
  if (device_.is_cuda()) {
    const c10::impl::VirtualGuardImpl guard(device_.type());
    now.device.emplace(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    now.device->record(guard.getStream(device_));
  } else {
    now.host = std::chrono::steady_clock::now();
  }
  return now;
}

double TrainingLog::milliseconds(const Mark& from, const Mark& to) const {
  return device_.is_cuda() ? from.device->elapsedTime(*to.device)
                           : std::chrono::duration<double, std::milli>(to.host - from.host).count();
}

void TrainingLog::begin_epoch(int64_t epoch) {
  epoch_ = epoch;
  steps_.clear();
  if (process_group_ != nullptr) {
    process_group_->take_wait();  // what came before is no part of a step
  }
  if (process_group_ != nullptr) {
    process_group_->pause_all_reduce(options_.no_communication);
  }
  epoch_begin_ = read_clocks();
  step_ = {};
  step_.begin = mark();
  phase_ = Phase::kData;
  phase_begin_ = step_.begin.host;
}

void TrainingLog::begin(Phase phase) {
  if (options_.metrics.empty()) {
    return;
  }
  if (device_.is_cuda()) {
    step_.phases.emplace_back(phase, mark());
  } else {
    switch_phase(phase, std::chrono::steady_clock::now());
  }
}

void TrainingLog::switch_phase(Phase phase, std::chrono::steady_clock::time_point now) {
  step_.phase_ms[static_cast<size_t>(phase_)] +=
      std::chrono::duration<double, std::milli>(now - phase_begin_).count();
  phase_ = phase;
  phase_begin_ = now;
}

void TrainingLog::make_room(int64_t steps) {
  const auto needed = static_cast<size_t>(steps);
  if (steps_.empty() && steps_.capacity() < needed) {
    steps_.resize(needed);  // written to, so that the pages are there
    steps_.clear();
  }
}

void TrainingLog::end(const Batch& batch, const torch::Tensor& loss) {
  if (device_.is_cuda()) {
    step_.device_loss =
        step_.device_loss.defined() ? step_.device_loss + loss.detach() : loss.detach();
  } else {
    step_.loss += loss.item<double>();
  }
  if (!batch.completes_step) {
    begin(Phase::kData);
    return;
  }
  step_.samples = batch.step_samples_per_rank * world_size_;
  if (process_group_ != nullptr) {
    step_.wait = process_group_->take_wait();
    all_reduce_bytes_ = step_.wait.all_reduce_bytes;
    gather_bytes_ = step_.wait.gather_bytes;
  }
  Step next;
  step_.end = mark();
  if (device_.is_cuda()) {
    next.begin = mark();
  } else {
    switch_phase(Phase::kData, step_.end.host);
    next.begin.host = step_.end.host;
  }
  make_room(batch.epoch_steps);
  steps_.push_back(std::exchange(step_, std::move(next)));
  if (!first_step_end_) {
    if (device_.is_cuda()) {
      c10::impl::VirtualGuardImpl(device_.type()).synchronizeDevice(device_.index());
    }
    first_step_end_ = std::chrono::system_clock::now();
  }
}

TrainingLog::Usage TrainingLog::read_clocks() {
  const auto milliseconds_of = [](clockid_t clock) {
    timespec now{};
    clock_gettime(clock, &now);
    return double(now.tv_sec) * 1e3 + double(now.tv_nsec) * 1e-6;
  };
  return {milliseconds_of(CLOCK_PROCESS_CPUTIME_ID), milliseconds_of(CLOCK_MONOTONIC)};
}

void TrainingLog::add_usage() {
  const Usage now = read_clocks();
  const bool first_was_warmup = !rows_.empty() && rows_.front().epoch + 1 == epoch_;
  if (first_was_warmup) {
    usage_ = {};
  }
  usage_.cpu_ms += now.cpu_ms - epoch_begin_.cpu_ms;
  usage_.wall_ms += now.wall_ms - epoch_begin_.wall_ms;
}

TrainingLog::Row TrainingLog::to_row(const Step& step) const {
  Row row{.epoch = epoch_,
          .step_ms = milliseconds(step.begin, step.end),
          .samples = step.samples,
          .phase_ms = step.phase_ms,
          .exposed_comm_ms = step.wait.backward_ms() + step.wait.gather_ms(),
          .loss = device_.is_cuda() ? step.device_loss.item<double>() : step.loss};
  if (device_.is_cuda()) {
    Phase phase = Phase::kData;
    const Mark* from = &step.begin;
    for (const auto& [next_phase, mark] : step.phases) {
      row.phase_ms[static_cast<size_t>(phase)] += milliseconds(*from, mark);
      phase = next_phase;
      from = &mark;
    }
    row.phase_ms[static_cast<size_t>(phase)] += milliseconds(*from, step.end);
  }
  // The gradients are waited for at the end of backward, so it is backward's time that holds the
  // wait; a sharded optimizer's weights are part of its step.
  row.phase_ms[static_cast<size_t>(Phase::kBackward)] -= step.wait.backward_ms();
  row.phase_ms[static_cast<size_t>(Phase::kOptimizer)] -= step.wait.gather_ms();
  return row;
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

void TrainingLog::end_epoch() {
  if (device_.is_cuda()) {
    c10::impl::VirtualGuardImpl(device_.type()).synchronizeDevice(device_.index());
  }
  add_usage();
  if (process_group_ != nullptr) {
    process_group_->pause_all_reduce(false);
  }
  double loss_sum = 0;
  double samples = 0;
  for (const Step& step : steps_) {
    rows_.push_back(to_row(step));
    loss_sum += rows_.back().loss * step.samples;
    samples += step.samples;
  }
  // Ranks may be signalled at different moments, or only one of them: the wish travels with the
  // loss.
  double weights_sum = 0;  // not finite if one weight is not
  for (const torch::Tensor& parameter : model_->parameters()) {
    weights_sum += parameter.sum().item<double>();
  }
  const torch::Tensor sums = sum_over_ranks({loss_sum / samples, stop_request() == 0 ? 0.0 : 1.0,
                                             std::isfinite(weights_sum) ? 0.0 : 1.0});
  const double loss = sums[0].item<double>() / static_cast<double>(world_size_);
  stop_asked_ = sums[1].item<double>() > 0;
  if (!options_.quiet) {
    std::printf("[%s] Epoch %lld | Batchsize: %lld | Steps: %zu | Loss: %.4f\n", label_.c_str(),
                static_cast<long long>(epoch_),
                static_cast<long long>(resolve_batch_per_rank(options_, world_size_)),
                steps_.size(), loss);
    std::fflush(stdout);
  }
  steps_.clear();
  const bool weights_finite = sums[2].item<double>() == 0;
  if (!std::isfinite(loss) || !weights_finite) {
    std::ostringstream message;
    message << "training diverged in epoch " << epoch_ << ": its loss is " << loss
            << (weights_finite ? "" : ", and a weight is not finite")
            << ", expected finite numbers; a smaller --lr may help";
    throw Error(ExitCode::kTrainingFailed, message.str());
  }
}

double TrainingLog::slowest_median_step_ms() const {
  std::vector<double> step_ms;
  for (size_t i = warmup_steps(rows_.size()); i < rows_.size(); ++i) {
    step_ms.push_back(rows_[i].step_ms);
  }
  const torch::Tensor medians =
      gather_over_ranks(torch::tensor({median(std::move(step_ms))}, torch::kFloat64));
  return medians.max().item<double>();
}

double TrainingLog::median_step_samples() const {
  std::vector<double> samples;
  for (size_t i = warmup_steps(rows_.size()); i < rows_.size(); ++i) {
    samples.push_back(rows_[i].samples);
  }
  return median(std::move(samples));
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

void TrainingLog::report(const Dataset& dataset) {
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
  const double loss = (sums[0] / sums[2]).item<double>();
  const double accuracy = dataset.classification() ? (sums[1] / sums[2]).item<double>()
                                                   : std::numeric_limits<double>::quiet_NaN();

  const double step_ms = slowest_median_step_ms();
  const int64_t global_batch = resolve_global_batch(options_, world_size_);
  const double samples_per_second = median_step_samples() / step_ms * 1000;
  const std::string digest = hash.substr(0, 16);
  if (rank_ == 0) {
    char accuracy_text[32] = "";
    if (dataset.classification()) {
      std::snprintf(accuracy_text, sizeof(accuracy_text), " | accuracy %.4f", accuracy);
    }
    char speed_text[64] = "";  // nothing to say if no step was made, as when only evaluating
    if (!rows_.empty()) {
      std::snprintf(speed_text, sizeof(speed_text), " | step %.3f ms | %.0f samples/s", step_ms,
                    samples_per_second);
    }
    std::printf("moved %#.6g | loss %.4f%s | digest %s%s\n", moved, loss, accuracy_text,
                digest.c_str(), speed_text);
    std::fflush(stdout);
  }
  if (options_.metrics.empty()) {
    return;
  }
  const double startup_ms = first_step_end_
                                ? milliseconds_between(process_start(), *first_step_end_)
                                : std::numeric_limits<double>::quiet_NaN();
  const torch::Tensor per_rank = gather_over_ranks(
      torch::tensor({peak_rss_mib(), startup_ms, usage_.cpu_ms, usage_.wall_ms}, torch::kFloat64));
  const auto column = [&](int64_t index) {
    json values = json::array();
    for (int r = 0; r < world_size_; ++r) {
      values.push_back(number(per_rank[r][index].item<double>()));
    }
    return values;
  };
  const LaunchEnvironment environment =
      process_group_ == nullptr ? LaunchEnvironment{} : process_group_->environment();
  int64_t parameters = 0;
  for (const torch::Tensor& parameter : model_->parameters()) {
    parameters += parameter.numel();
  }
  const json summary = {
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
      {"global_batch", global_batch},
      {"accumulate", options_.accumulate},
      {"optimizer", options_.optimizer},
      {"threads", options_.threads},
      {"cores", format_cores(allowed_cores())},
      {"epochs", options_.total_epochs},
      {"steps", rows_.size()},
      {"warmup_steps", warmup_steps(rows_.size())},
      {"step_ms", number(step_ms)},
      {"samples_per_second", number(samples_per_second)},
      {"moved", number(moved)},
      {"loss", number(loss)},
      {"accuracy", number(accuracy)},
      {"loss_floor", number(dataset.loss_floor)},
      {"digest", digest},
      {"parameters", parameters},
      {"communicates", !options_.no_communication},
      {"bytes_per_step",
       std::accumulate(all_reduce_bytes_.begin(), all_reduce_bytes_.end(), int64_t{0})},
      {"all_reduce_bytes", all_reduce_bytes_},
      {"gather_bytes", gather_bytes_},
      {"peak_rss_mib", column(0)},
      {"startup_ms", column(1)},
      {"cpu_time_ms", column(2)},
      {"timed_wall_ms", column(3)},
      {"first_step_unix_ms", first_step_end_
                                 ? json(std::chrono::duration_cast<std::chrono::milliseconds>(
                                            first_step_end_->time_since_epoch())
                                            .count())
                                 : json()},
  };
  write_metrics(json{{"summary", summary}}.dump());
}

void TrainingLog::write_metrics(const std::string& summary) const {
  constexpr int64_t kColumns = 8;
  torch::Tensor table =
      torch::empty({static_cast<int64_t>(rows_.size()), kColumns}, torch::kFloat64);
  auto cells = table.accessor<double, 2>();
  for (size_t i = 0; i < rows_.size(); ++i) {
    const Row& row = rows_[i];
    const std::array<double, kColumns> values = {
        double(row.epoch), row.step_ms,         row.phase_ms[0], row.phase_ms[1],
        row.phase_ms[2],   row.exposed_comm_ms, row.phase_ms[3], row.loss};
    for (size_t c = 0; c < values.size(); ++c) {
      cells[static_cast<int64_t>(i)][static_cast<int64_t>(c)] = values[c];
    }
  }
  const torch::Tensor tables = gather_over_ranks(table);  // (world size, steps, columns)
  if (rank_ != 0) {
    return;
  }
  std::ofstream out(options_.metrics, std::ios::trunc);
  const auto all = tables.accessor<double, 3>();
  for (int64_t r = 0; r < tables.size(0); ++r) {
    for (int64_t s = 0; s < tables.size(1); ++s) {
      const auto row = all[r][s];
      // An ordered object, so that a line reads from cause to effect.
      const nlohmann::ordered_json line = {{"rank", r},
                                           {"epoch", static_cast<int64_t>(row[0])},
                                           {"step", s},
                                           {"step_ms", number(row[1])},
                                           {"data_ms", number(row[2])},
                                           {"forward_ms", number(row[3])},
                                           {"backward_ms", number(row[4])},
                                           {"exposed_comm_ms", number(row[5])},
                                           {"optimizer_ms", number(row[6])},
                                           {"loss", number(row[7])}};
      out << line.dump() << '\n';
    }
  }
  out << summary << '\n';
  out.close();
  if (!out) {
    throw Error(ExitCode::kTrainingFailed,
                "--metrics: cannot write " + options_.metrics + ", expected a writable file");
  }
}

}  // namespace ddp
