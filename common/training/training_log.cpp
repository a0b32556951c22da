#include "common/training/training_log.hpp"

#include <c10/core/CachingDeviceAllocator.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "common/base/exit_codes.hpp"
#include "common/base/standard_streams.hpp"
#include "common/fused/kernels.hpp"
#include "common/launch/cpu_share.hpp"
#include "common/launch/stop_request.hpp"
#include "common/model/flat_parameters.hpp"

namespace ddp {
namespace {

using nlohmann::json;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr auto kStepColumns = static_cast<int64_t>(sizeof(StepTimes) / sizeof(double));
/// Of --metrics: to write takes time in which caches grow cold, so it is not done every epoch.
constexpr size_t kStepsPerWrite = 4096;
constexpr int64_t kStepsPerGather = 1024;
constexpr int64_t kTraceBytesPerGather = 64 << 10;  // of each rank

StepTimer::Detail detail(const Options& options, const ProcessGroup* process_group) {
  if (!options.metrics.empty() || !options.trace.empty()) {
    return StepTimer::Detail::kAll;
  }
  // Of what a graph repeats the host times no part.
  const bool has_waits = process_group != nullptr && process_group->world_size() > 1 &&
                         !options.no_communication && options.speedup != "graph";
  return has_waits ? StepTimer::Detail::kSampledWaits : StepTimer::Detail::kSteps;
}

std::unique_ptr<StepTrace> make_trace(const Options& options, const torch::Device& device) {
  if (options.trace.empty()) {
    return nullptr;
  }
  if (!device.is_cpu()) {
    throw UsageError(fmt::format(
        "--trace: got device {}, expected --device cpu: what runs when on a GPU draws NVIDIA's "
        "nsys profile",
        device.str()));
  }
  return std::make_unique<StepTrace>();
}

bool all_finite(const torch::Tensor& tensor) {
  if (tensor.is_cpu() && tensor.is_contiguous() && tensor.scalar_type() == torch::kFloat32) {
    return fused::kernels().all_finite(tensor.const_data_ptr<float>(), tensor.numel());
  }
  // The sum is not finite if a term is not, and seldom else: a fraction of the time.
  return std::isfinite(tensor.sum(torch::kFloat32).item<double>()) ||
         tensor.isfinite().all().item<bool>();
}

int64_t parameter_count(const Mlp& model) {
  int64_t count = 0;
  for (const torch::Tensor& parameter : model->parameters()) {
    count += parameter.numel();
  }
  return count;
}

bool weights_are_finite(const Mlp& model) {
  return std::ranges::all_of(model->parameters(), all_finite);
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
      trace_(make_trace(options, device)),
      timer_(
          device, process_group, detail(options, process_group),
          [this](const StepTimes& times) { add_step(times); }, trace_.get()) {
  if (rank_ == 0) {
    initial_weights_ = std::make_unique<InitialWeights>(*model_, options.seed);
  }
  const int number = process_group == nullptr ? std::max<int>(device.index(), 0) : rank_;
  label_ = fmt::format("{}{}", device.is_cpu() ? "CPU" : "GPU", number);
  if (process_group != nullptr) {
    process_group->set_trace(trace_.get());  // which the destructor takes back
  }
  if (!options.check_finite || options.speedup == "graph") {
    return;  // nobody can look into a graph: what is not finite there shows in the next step's loss
  }
  if (world_size_ == 1) {
    flat_ = flatten_parameters(*model_);
  } else {
    // The last moment at which it can be told whose it is.
    process_group->before_all_reduce([this](const torch::Tensor& own) { expect_finite(own); });
  }
}

TrainingLog::~TrainingLog() {
  if (process_group_ != nullptr) {
    process_group_->set_trace(nullptr);
    process_group_->before_all_reduce({});
  }
}

torch::Tensor TrainingLog::gather_over_ranks(const torch::Tensor& values) const {
  return process_group_ == nullptr ? values.unsqueeze(0)
                                   : process_group_->all_gather(values.to(device_)).to(torch::kCPU);
}

torch::Tensor TrainingLog::gather_over_ranks(const std::vector<double>& values) const {
  return gather_over_ranks(torch::tensor(values, torch::kFloat64));
}

void TrainingLog::set_devices(const std::vector<torch::Device>& devices) {
  replicas_ = devices.size();
  gpus_.clear();
  for (const torch::Device& device : devices) {
    if (options_.verbose && device.is_cuda()) {
      gpus_[device.index()].watch_one(device.index());
    }
  }
}

void TrainingLog::begin_training(int64_t epochs_done) {
  if (rank_ != 0) {
    return;
  }
  if (!options_.metrics.empty()) {
    metrics_file_ = std::make_unique<MetricsFile>(options_.metrics, epochs_done);
  }
  if (!options_.trace.empty()) {
    trace_file_ = std::make_unique<TraceFile>(options_.trace);
  }
  if (!options_.quiet && !options_.verbose && draws_on_stderr()) {
    progress_bar_ = std::make_unique<ProgressBar>(options_.total_epochs, visible_steps_);
  }
}

void TrainingLog::print_order(const torch::Tensor& indices) const {
  constexpr int64_t kShown = 8;
  const int64_t* const first = indices.const_data_ptr<int64_t>();
  std::cout << fmt::format("[{}] epoch {} reads {}{}\n", label_, epoch_,
                           fmt::join(first, first + std::min(kShown, indices.numel()), ", "),
                           indices.numel() > kShown ? ", ..." : "")
            << std::flush;
}

void TrainingLog::begin_epoch(int64_t steps) {
  if (!options_.metrics.empty()) {
    // The page faults are taken here and not within steps that are timed: reserve() would not touch
    // the pages.
    const size_t before = unwritten_steps_.size();
    unwritten_steps_.resize(before + static_cast<size_t>(steps));
    unwritten_steps_.resize(before);
  }
  if (process_group_ != nullptr) {
    process_group_->pause_all_reduce(options_.no_communication);
  }
  step_losses_.clear();
  if (!options_.tensorboard.empty()) {
    step_losses_.reserve(static_cast<size_t>(steps));
  }
  if (trace_ != nullptr) {
    trace_->set_epoch(epoch_);
  }
  epoch_steps_ = 0;
  visible_steps_ = 0;
  if (progress_bar_ != nullptr) {
    progress_bar_->begin_epoch(epoch_, steps);
  }
  epoch_loss_ = 0;
  epoch_samples_ = 0;
  epoch_begin_ = process_times();
  timer_.begin_epoch(steps);
}

void TrainingLog::add_loss(const torch::Tensor& loss) {
  timer_.add_loss(loss);
  if (options_.check_finite) {
    expect_finite_loss();
  }
}

void TrainingLog::expect_finite_loss() const {
  const double loss = timer_.loss();
  if (std::isfinite(loss)) {
    return;
  }
  if (options_.speedup == "none") {  // else the step's update is over, and it has spread
    expect_finite_weights();
  }
  fail_in_step(fmt::format("the loss of rank {} is {:g}, expected a finite number", rank_, loss));
}

void TrainingLog::expect_finite_weights() const {
  for (const auto& parameter : model_->named_parameters()) {
    if (!all_finite(parameter.value())) {
      fail_in_step(fmt::format("parameter {} of rank {} is not finite", parameter.key(), rank_));
    }
  }
}

void TrainingLog::expect_finite_gradients() const {
  flat_->rebind_grads();
  expect_finite(flat_->grad);
}

void TrainingLog::expect_finite(const torch::Tensor& own_gradients) const {
  // What travels in half precision may have become infinite by that.
  const bool known = gradients_are_finite_ && own_gradients.scalar_type() == torch::kFloat32;
  if (known || all_finite(own_gradients)) {
    return;
  }
  expect_finite_weights();
  for (const auto& parameter : model_->named_parameters()) {
    // Those of other ranks that may be in there by now were finite.
    const torch::Tensor& gradient = parameter.value().grad();
    if (gradient.defined() && !all_finite(gradient)) {
      fail_in_step(fmt::format("the gradient of parameter {} of rank {} is not finite",
                               parameter.key(), rank_));
    }
  }
  fail_in_step(fmt::format("a gradient of rank {} is too large for {}", rank_,
                           options_.gradient_compression));
}

void TrainingLog::fail_in_step(const std::string& what) const {
  throw Error(ExitCode::kTrainingFailed,
              fmt::format("epoch {}, step {}: {}", epoch_, epoch_steps_, what));
}

void TrainingLog::end_batch(const Batch& batch) {
  if (batch.completes_step) {
    timer_.end_step(batch.step_samples_per_rank * world_size_);
    visible_steps_.store(++epoch_steps_, std::memory_order_relaxed);
    ++steps_;
    if (options_.check_weights_every > 0 && steps_ % options_.check_weights_every == 0) {
      check_weights();
      timer_.begin_step_anew();
    }
  } else {
    timer_.begin(Phase::kData);
  }
}

void TrainingLog::add_step(const StepTimes& times) {
  step_ms_.add(times.step_ms);
  samples_.add(times.samples);
  if (world_size_ > 1 && !std::isnan(times.exposed_comm_ms)) {
    busy_ms_.add(std::max(0.0, times.step_ms - times.exposed_comm_ms));
  }
  epoch_loss_ += times.loss * times.samples;
  epoch_samples_ += times.samples;
  if (!options_.metrics.empty()) {
    unwritten_steps_.push_back(times);
    unwritten_steps_.back().epoch = static_cast<double>(epoch_);
  }
  if (!options_.tensorboard.empty()) {
    step_losses_.push_back(static_cast<float>(times.loss));
  }
}

void TrainingLog::write_steps() {
  const torch::Tensor own = torch::from_blob(
      unwritten_steps_.data(), {static_cast<int64_t>(unwritten_steps_.size()), kStepColumns},
      torch::kFloat64);
  for (int64_t begin = 0; begin < own.size(0); begin += kStepsPerGather) {
    const int64_t end = std::min(begin + kStepsPerGather, own.size(0));
    const torch::Tensor of_ranks = gather_over_ranks(own.slice(0, begin, end));
    if (metrics_file_ != nullptr) {
      metrics_file_->append_steps(of_ranks.contiguous());
    }
  }
  unwritten_steps_.clear();
}

void TrainingLog::write_trace(const Dataset& dataset) {
  // A rank's text is too long for the store, and as long as it happens to be.
  std::string own = trace_events(*trace_, rank_);
  const auto bytes = static_cast<int64_t>(own.size());
  const torch::Tensor sizes = gather_over_ranks(torch::tensor({bytes}, torch::kInt64));
  const auto longest = sizes.max().item<int64_t>();
  own.resize(static_cast<size_t>(longest));
  const torch::Tensor text = torch::from_blob(own.data(), {longest}, torch::kUInt8);
  std::vector<std::string> events(static_cast<size_t>(world_size_));
  for (int64_t begin = 0; begin < longest; begin += kTraceBytesPerGather) {
    const int64_t end = std::min(begin + kTraceBytesPerGather, longest);
    const torch::Tensor pieces = gather_over_ranks(text.slice(0, begin, end)).contiguous();
    for (int rank = 0; rank_ == 0 && rank < world_size_; ++rank) {
      const auto size = std::clamp<int64_t>(sizes[rank].item<int64_t>() - begin, 0, end - begin);
      events[static_cast<size_t>(rank)].append(
          reinterpret_cast<const char*>(pieces[rank].const_data_ptr<uint8_t>()),
          static_cast<size_t>(size));
    }
  }
  if (trace_file_ != nullptr) {
    trace_file_->write(
        events,
        {{"program", options_.program},
         {"backend", process_group_ == nullptr ? json() : json(process_group_->backend_name())},
         {"world_size", world_size_},
         {"layers", dataset.layers},
         {"batch_per_rank", resolve_batch_per_rank(options_, world_size_)},
         {"bucket_mib", options_.bucket_mib},
         {"parameters", parameter_count(model_)}});
  }
}

void TrainingLog::before_snapshot() {
  if (options_.check_weights_every > 0) {
    check_weights();
  }
  write_steps();
}

void TrainingLog::end_epoch() {
  timer_.end_epoch();
  if (progress_bar_ != nullptr) {
    progress_bar_->hide();  // before the ranks meet below, after which the others print, too
  }
  for (auto& [index, monitor] : gpus_) {
    monitor.sample();
  }
  const ProcessTimes now = process_times();
  if (++epochs_done_ == 2) {
    usage_ = {};
  }
  epoch_ms_ = now.wall_ms - epoch_begin_.wall_ms;
  usage_.add(epoch_begin_, now);
  if (process_group_ != nullptr) {
    process_group_->pause_all_reduce(false);
  }
  if (unwritten_steps_.size() >= kStepsPerWrite) {
    write_steps();  // before the ranks meet below: the next epoch begins at one time on all
  }
  // Ranks may be signalled at different moments, or only one: the wish travels with the loss.
  const torch::Tensor sums =
      gather_over_ranks({epoch_loss_ / epoch_samples_, stop_request() == 0 ? 0.0 : 1.0,
                         weights_are_finite(model_) ? 0.0 : 1.0})
          .sum(0);
  const double loss = sums[0].item<double>() / static_cast<double>(world_size_);
  epoch_mean_loss_ = loss;
  stop_asked_ = sums[1].item<double>() > 0;
  if (!options_.quiet) {
    std::cout << fmt::format("[{}] Epoch {} | Batchsize: {} | Steps: {} | Loss: {:.4f}\n", label_,
                             epoch_, resolve_batch_per_rank(options_, world_size_), epoch_steps_,
                             loss)
              << std::flush;
  }
  const bool weights_finite = sums[2].item<double>() == 0;
  if (!std::isfinite(loss) || !weights_finite) {
    write_steps();
    throw Error(
        ExitCode::kTrainingFailed,
        fmt::format("training diverged in epoch {}: its loss is {:g}{}, expected finite numbers; a "
                    "smaller --lr may help",
                    epoch_, loss, weights_finite ? "" : ", and a weight is not finite"));
  }
}

void TrainingLog::check_weights() const {
  compare_weights(parameter_hash(*model_));
  // What is not finite spreads with the gradients, and may be the same on all ranks by now.
  if (!weights_are_finite(model_)) {
    throw Error(ExitCode::kTrainingFailed,
                fmt::format("after {} steps of epoch {} a weight is not finite on any rank, "
                            "expected finite numbers",
                            epoch_steps_, epoch_));
  }
}

void TrainingLog::compare_weights(const std::string& hash) const {
  if (expect_mirrored_) {
    expect_mirrored_();
  }
  if (process_group_ == nullptr) {
    return;
  }
  const auto half = [&hash](size_t begin) {
    return static_cast<int64_t>(std::stoull(hash.substr(begin, 16), nullptr, 16));
  };
  const torch::Tensor of_ranks =
      gather_over_ranks(torch::tensor({half(0), half(16)}, torch::kInt64));
  using Halves = std::pair<int64_t, int64_t>;
  std::vector<Halves> hashes;  // by rank
  std::map<Halves, size_t> counts;
  for (int rank = 0; rank < world_size_; ++rank) {
    const torch::Tensor halves = of_ranks[rank];
    hashes.emplace_back(halves[0].item<int64_t>(), halves[1].item<int64_t>());
    ++counts[hashes.back()];
  }
  if (counts.size() == 1) {
    return;
  }
  const auto digest = [](const Halves& halves) {
    return fmt::format("{:016x}", static_cast<uint64_t>(halves.first));
  };
  const auto most = std::ranges::max_element(counts, {}, &std::pair<const Halves, size_t>::second);
  const bool majority = 2 * most->second > hashes.size();
  std::string others;  // by rank: an order by hash would be another one on another processor
  for (size_t rank = 0; rank < hashes.size(); ++rank) {
    if (!majority || hashes[rank] != most->first) {
      others += fmt::format("{}rank {} has digest {}", others.empty() ? "" : ", ", rank,
                            digest(hashes[rank]));
    }
  }
  throw Error(
      ExitCode::kTrainingFailed,
      fmt::format("after {} steps of epoch {} the weights differ: {}, expected {}", epoch_steps_,
                  epoch_, others,
                  majority ? "the other ranks' " + digest(most->first) : "the same on all ranks"));
}

Evaluation TrainingLog::evaluate_over_ranks(const Dataset& dataset) {
  // Every rank evaluates its own contiguous part; together they are every sample once.
  const int64_t test_size = dataset.test.size();
  const int64_t begin = test_size * rank_ / world_size_;
  const int64_t end = test_size * (rank_ + 1) / world_size_;
  const Evaluation part = evaluate(model_, dataset.test.slice(begin, end), device_);
  const torch::Tensor sums = gather_over_ranks({part.loss_sum, part.correct, part.samples}).sum(0);
  return {.loss_sum = sums[0].item<double>(),
          .correct = sums[1].item<double>(),
          .samples = sums[2].item<double>()};
}

void TrainingLog::write_events(const Dataset& dataset, double learning_rate) {
  constexpr size_t kMostSteps = 100;  // of an epoch: a chart shows no more
  const Evaluation sums = evaluate_over_ranks(dataset);
  if (rank_ != 0) {
    return;
  }
  const int64_t first_step = epoch_ * epoch_steps_ + 1;
  if (event_file_ == nullptr) {
    event_file_ = std::make_unique<EventFile>(options_.tensorboard, first_step);
  }
  const size_t stride = (step_losses_.size() + kMostSteps - 1) / kMostSteps;
  for (size_t i = 0; i < step_losses_.size(); i += stride) {
    event_file_->add("loss/step of rank 0", first_step + static_cast<int64_t>(i), step_losses_[i]);
  }
  const int64_t last_step = first_step + epoch_steps_ - 1;
  event_file_->add("loss/train", last_step, epoch_mean_loss_);
  event_file_->add("loss/test", last_step, sums.loss_sum / sums.samples);
  if (dataset.classification()) {
    event_file_->add("accuracy/test", last_step, sums.correct / sums.samples);
  }
  event_file_->add("learning_rate", last_step, learning_rate);
  event_file_->add("samples_per_second", last_step, epoch_samples_ / epoch_ms_ * 1000);
  event_file_->flush();
}

TrainingLog::Result TrainingLog::result(const Dataset& dataset) {
  const std::string hash = parameter_hash(*model_);
  if (!options_.no_communication) {
    compare_weights(hash);
  }
  if (!weights_are_finite(model_)) {
    throw Error(ExitCode::kTrainingFailed,
                "a weight is not finite, expected finite numbers; a smaller --lr may help");
  }

  const Evaluation sums = evaluate_over_ranks(dataset);
  // The slowest rank's.
  const double step_ms =
      gather_over_ranks(std::vector<double>{step_ms_.median()}).max().item<double>();
  // Fewer samples than the global batch if the data has fewer.
  return {.moved = initial_weights_ == nullptr ? kNaN : initial_weights_->distance(),
          .loss = sums.loss_sum / sums.samples,
          .accuracy = dataset.classification() ? sums.correct / sums.samples : kNaN,
          .digest = hash.substr(0, 16),
          .step_ms = step_ms,
          .samples_per_second = samples_.median() / step_ms * 1000};
}

void TrainingLog::report(const Dataset& dataset) {
  const Result all = result(dataset);
  if (rank_ == 0) {
    const std::string accuracy =
        std::isnan(all.accuracy) ? "" : fmt::format(" | accuracy {:.4f}", all.accuracy);
    const std::string speed = steps_ == 0  // as when only evaluating
                                  ? ""
                                  : fmt::format(" | step {:.3f} ms | {:.0f} samples/s", all.step_ms,
                                                all.samples_per_second);
    std::cout << fmt::format("moved {:#.6g} | loss {:.4f}{} | digest {}{}\n", all.moved, all.loss,
                             accuracy, all.digest, speed)
              << std::flush;
  }
  name_slow_rank();
  if (options_.verbose && usage_.wall_ms > 0) {
    print_utilisation();
  }
  if (trace_ != nullptr) {
    write_trace(dataset);
  }
  if (options_.metrics.empty()) {
    return;
  }
  write_steps();
  const json last = summary(dataset, all);
  if (metrics_file_ != nullptr) {
    metrics_file_->append_summary(last);
  }
}

void TrainingLog::name_slow_rank() const {
  constexpr int64_t kFewestSteps = 100;
  constexpr double kSlower = 1.5;
  constexpr double kLeastExcessMs = 0.005;  // in a step of a few us a core's quirks are as much
  const torch::Tensor of_ranks = gather_over_ranks(
      std::vector<double>{busy_ms_.steps() < kFewestSteps ? kNaN : busy_ms_.median()});
  for (int rank = 0; rank_ == 0 && world_size_ > 1 && rank < world_size_; ++rank) {
    std::vector<double> others;
    for (int other = 0; other < world_size_; ++other) {
      if (other != rank) {
        others.push_back(of_ranks[other].item<double>());
      }
    }
    std::ranges::nth_element(others,
                             others.begin() + static_cast<std::ptrdiff_t>(others.size()) / 2);
    const double own_ms = of_ranks[rank].item<double>();
    const double others_ms = others[others.size() / 2];
    if (own_ms > kSlower * others_ms && own_ms > others_ms + kLeastExcessMs) {
      std::cerr << fmt::format(
          "{}: note: rank {} computes for {:.4f} ms in a step, the other ranks for {:.4f} ms: "
          "they wait for it\n",
          options_.program, rank, own_ms, others_ms);
    }
  }
}

/// A rank that spins while it waits counts as busy.
void TrainingLog::print_utilisation() {
  std::string text;
  for (auto& [index, monitor] : gpus_) {
    const std::optional<GpuReadings> readings = monitor.take();
    text += fmt::format(
        "[GPU{}] GPU busy {} of the time\n", process_group_ == nullptr ? index : rank_,
        readings ? fmt::format("{:.2f}", readings->utilisation_percent / 100) : "an unknown share");
  }
  const auto cores = static_cast<size_t>(options_.threads) * (device_.is_cpu() ? replicas_ : 1);
  const double waits = 1 - busy_ms_.median() / step_ms_.median();
  text += fmt::format("[{}] busy {:.2f} of {} core{}{}\n", label_, usage_.cpu_ms / usage_.wall_ms,
                      cores, cores == 1 ? "" : "s",
                      std::isnan(waits) ? ""
                                        : fmt::format(", waiting for others {:.2f} of a step",
                                                      std::max(0.0, waits)));
  std::cerr << text << std::flush;
}

double TrainingLog::peak_device_mib() const {
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto stats = c10::getDeviceAllocator(device_.type())->getDeviceStats(device_.index());
  return static_cast<double>(stats.reserved_bytes[kAll].peak) / (1 << 20);
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
      gather_over_ranks({peak_rss_mib(), startup_ms, usage_.cpu_ms, usage_.wall_ms,
                         device_.is_cuda() ? peak_device_mib() : kNaN, usage_.minor_faults,
                         usage_.major_faults, usage_.voluntary_switches,
                         usage_.involuntary_switches})
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
      {"device", c10::DeviceTypeName(device_.type(), /*lower_case=*/true)},
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
      {"steps", metrics_file_ == nullptr ? steps_ : metrics_file_->steps()},
      {"warmup_steps", step_ms_.warmup_steps()},
      {"step_ms", result.step_ms},
      {"samples_per_second", result.samples_per_second},
      {"moved", result.moved},
      {"loss", result.loss},
      {"accuracy", result.accuracy},
      {"digest", result.digest},
      {"parameters", parameter_count(model_)},
      {"communicates", !options_.no_communication},
      {"bytes_per_step",
       std::accumulate(all_reduce_bytes.begin(), all_reduce_bytes.end(), int64_t{0})},
      {"all_reduce_bytes", all_reduce_bytes},
      {"gather_bytes", timer_.gather_bytes()},
      {"peak_rss_mib", by_rank(0)},
      {"peak_device_mib", device_.is_cuda() ? json(by_rank(4)) : json::array()},
      {"startup_ms", by_rank(1)},
      {"cpu_time_ms", by_rank(2)},
      {"timed_wall_ms", by_rank(3)},
      {"minor_faults", by_rank(5)},
      {"major_faults", by_rank(6)},
      {"voluntary_switches", by_rank(7)},
      {"involuntary_switches", by_rank(8)},
      {"first_step_unix_ms", first_step_end ? json(std::chrono::duration_cast<milliseconds>(
                                                       first_step_end->time_since_epoch())
                                                       .count())
                                            : json()},
  };
}

}  // namespace ddp
