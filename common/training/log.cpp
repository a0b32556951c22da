#include "common/training/log.hpp"

#include <c10/core/CachingDeviceAllocator.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>

#include "common/base/exit_codes.hpp"
#include "common/base/parse.hpp"
#include "common/base/process_usage.hpp"
#include "common/model/flat_parameters.hpp"
#include "common/training/optimizer.hpp"

namespace ddp {
namespace {

using nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kStepsPerGather = 1024;

/// Largest memory that LibTorch has taken from the GPU.
double peak_device_mib(const torch::Device& device) {
  if (device.is_cpu()) {
    return kNaN;
  }
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  return static_cast<double>(stats.reserved_bytes[kAll].peak) / (1 << 20);
}

bool all_finite(const torch::Tensor& tensor) {
  // The sum is fast, and if it is finite, so are all elements.
  return std::isfinite(tensor.sum().item<double>()) || tensor.isfinite().all().item<bool>();
}

int64_t parameter_count(const torch::nn::Module& module) {
  int64_t count = 0;
  for (const torch::Tensor& parameter : module.parameters()) {
    count += parameter.numel();
  }
  return count;
}

}  // namespace

/// Doubles only, since ranks exchange it as a row of a tensor.
struct Log::RankReport {
  double median_ms;
  double peak_rss_mib;
  double peak_device_mib;
  double startup_ms;
  double busy_cores;
  double gpu_busy_percent;

  static constexpr int64_t kValues = 6;
};

Log::Log(const Options& options, const torch::nn::Module& module)
    : options_(options),
      module_(module),
      process_group_(find_default_process_group()),
      device_(module.parameters().front().device()),
      clock_(device_) {
  const int rank = process_group_ == nullptr ? 0 : process_group_->rank();
  const int world_size = process_group_ == nullptr ? 1 : process_group_->world_size();
  const int number = process_group_ == nullptr ? std::max<int>(device_.index(), 0) : rank;
  label_ = fmt::format("{}{}", device_.is_cpu() ? "CPU" : "GPU", number);
  if (rank == 0) {
    for (const torch::Tensor& parameter : module.parameters()) {
      initial_weights_.push_back(parameter.detach().to(torch::kCPU, parameter.scalar_type(),
                                                       /*non_blocking=*/false, /*copy=*/true));
    }
    if (!options.metrics.empty()) {
      metrics_file_ = std::make_unique<MetricsFile>(options.metrics);
    }
    if (!options.quiet && !options.verbose && stderr_is_terminal()) {
      progress_bar_ = std::make_unique<ProgressBar>(options.total_epochs);
    }
  }
  if (!options.trace.empty()) {
    trace_ = std::make_unique<Trace>(options.trace, rank, world_size, device_.is_cuda());
  }
  if (options.verbose && device_.is_cuda()) {
    gpu_monitor_ = std::make_unique<GpuMonitor>();
    gpu_monitor_->watch(device_.index(), 1);
  }
  busy_begin_ms_ = cpu_ms();
  begin_ = Clock::now();
  clock_.begin_epoch();
}

void Log::step(const torch::Tensor& loss) {
  clock_.end_step(loss);
  if (trace_) {
    trace_->end_step();
  }
  if (progress_bar_) {
    progress_bar_->draw(epoch_, clock_.steps_in_epoch());
  }
}

torch::Tensor Log::epoch_loss() {
  if (progress_bar_) {
    progress_bar_->hide();  // before the ranks meet, because other ranks print after that
  }
  double sum = 0;
  for (const Step& step : clock_.epoch_steps()) {
    sum += step.loss;
  }
  return torch::full({}, sum / static_cast<double>(clock_.steps_in_epoch()),
                     torch::TensorOptions(torch::kFloat64).device(device_));
}

void Log::epoch(int64_t epoch, const DataLoader& loader, const torch::Tensor& epoch_loss,
                const CallSite& site) {
  site_ = site.in("log.epoch");
  if (gpu_monitor_) {
    gpu_monitor_->sample();
  }
  const auto loss = epoch_loss.item<double>();
  clock_.epoch_steps();  // reads the device's times, also if the caller did not use epoch_loss()
  batch_size_ = loader.batch_size();
  global_batch_ = std::min(loader.samples_per_step(), loader.sampler().epoch_samples());
  if (options_.verbose) {
    constexpr int64_t kShown = 8;
    const torch::Tensor& read = loader.sampler().indices();
    const auto* const first = read.const_data_ptr<int64_t>();
    std::cout << fmt::format("[{}] epoch {} reads {}{}\n", label_, epoch,
                             fmt::join(first, first + std::min(kShown, read.numel()), ", "),
                             read.numel() > kShown ? ", ..." : "");
  }
  if (!options_.quiet) {
    std::cout << fmt::format("[{}] Epoch {} | Batchsize: {} | Steps: {} | Loss: {:.4f}\n", label_,
                             epoch, batch_size_, clock_.steps_in_epoch(), loss)
              << std::flush;
  }
  if (!options_.metrics.empty()) {
    if (metrics_file_ && metrics_file_->steps() == 0) {
      metrics_file_->keep_epochs(epoch);
    }
    epoch_ = epoch;
    write_steps();
  }
  const torch::NoGradGuard no_grad;
  if (!std::isfinite(loss) || !std::ranges::all_of(module_.parameters(), all_finite)) {
    throw Error(
        ExitCode::kTrainingFailed,
        fmt::format("training diverged in epoch {}: its loss is {:g}{}, expected finite "
                    "numbers; a smaller --lr may help",
                    epoch, loss, std::isfinite(loss) ? ", and a weight is not finite" : ""));
  }
  epoch_ = epoch + 1;
  if (epoch_ == options_.total_epochs) {
    if (trace_) {
      trace_->finish();
    }
    gather_ranks();
  }
  clock_.begin_epoch();
}

torch::Tensor Log::gather(const torch::Tensor& values) const {
  return process_group_ == nullptr
             ? values.unsqueeze(0)
             : process_group_->all_gather(values.to(device_), site_).to(torch::kCPU);
}

void Log::write_steps() {
  const std::vector<Step>& steps = clock_.epoch_steps();
  constexpr int64_t kNumbers = sizeof(Step) / sizeof(double);
  const torch::Tensor own =
      torch::from_blob(const_cast<Step*>(steps.data()),
                       {static_cast<int64_t>(steps.size()), kNumbers}, torch::kFloat64);
  for (const torch::Tensor& piece : own.split(kStepsPerGather)) {
    const torch::Tensor of_ranks = gather(piece);
    if (metrics_file_) {
      metrics_file_->append_steps(epoch_, of_ranks);
    }
  }
}

void Log::gather_ranks() {
  const auto first_end = clock_.first_step_end();
  const double wall_ms = std::chrono::duration<double, std::milli>(Clock::now() - begin_).count();
  const std::optional<GpuReadings> gpu = gpu_monitor_ ? gpu_monitor_->take() : std::nullopt;
  const RankReport own{
      .median_ms = clock_.median_ms(),
      .peak_rss_mib = peak_rss_mib(),
      .peak_device_mib = peak_device_mib(device_),
      .startup_ms =
          first_end
              ? std::chrono::duration<double, std::milli>(*first_end - process_start()).count()
              : kNaN,
      .busy_cores = (cpu_ms() - busy_begin_ms_) / wall_ms,
      .gpu_busy_percent = gpu ? gpu->utilisation_percent : kNaN};
  static_assert(sizeof(RankReport) == RankReport::kValues * sizeof(double));
  reports_ = gather(torch::tensor({own.median_ms, own.peak_rss_mib, own.peak_device_mib,
                                   own.startup_ms, own.busy_cores, own.gpu_busy_percent},
                                  torch::kFloat64));
}

double Log::moved() const {
  const torch::NoGradGuard no_grad;
  const std::vector<torch::Tensor> now = module_.parameters();
  double sum = 0;
  for (size_t i = 0; i < initial_weights_.size(); ++i) {
    sum += now[i]
               .detach()
               .to(torch::kCPU, torch::kFloat64)
               .sub_(initial_weights_[i])
               .square_()
               .sum()
               .item<double>();
  }
  return std::sqrt(sum);
}

void Log::report(const Evaluation& evaluation) {
  if (initial_weights_.empty()) {
    return;  // stage 04 on several nodes: only rank 0 reports
  }
  TORCH_CHECK(std::isfinite(evaluation.loss), "the loss of the test samples is ", evaluation.loss);
  const std::string digest = parameter_hash(module_).substr(0, 16);
  const double distance = moved();
  std::string line = fmt::format("moved {:#.6g} | loss {:.4f}", distance, evaluation.loss);
  if (!std::isnan(evaluation.accuracy)) {
    line += fmt::format(" | accuracy {:.4f}", evaluation.accuracy);
  }
  line += fmt::format(" | digest {}", digest);
  if (reports_.defined()) {  // undefined if the run only evaluated
    const auto step_ms = reports_.select(1, 0).max().item<double>();
    line += fmt::format(" | step {:.3f} ms | {:.0f} samples/s", step_ms,
                        static_cast<double>(global_batch_) / step_ms * 1000);
  }
  std::cout << line + "\n" << std::flush;
  if (options_.verbose && reports_.defined()) {
    print_utilisation();
  }
  if (metrics_file_) {
    if (!reports_.defined()) {
      metrics_file_->keep_epochs(options_.total_epochs);
    }
    write_summary(evaluation, distance, digest);
  }
}

/// Prints how busy each rank was. A rank that spins while it waits counts as busy.
void Log::print_utilisation() const {
  for (int64_t rank = 0; rank < reports_.size(0); ++rank) {
    const torch::Tensor row = reports_[rank].contiguous();
    RankReport values{};
    std::memcpy(&values, row.const_data_ptr<double>(), sizeof(values));
    std::string text =
        fmt::format("[{}{}] busy {:.2f} of {} core{}\n", device_.is_cpu() ? "CPU" : "GPU", rank,
                    values.busy_cores, options_.threads, options_.threads == 1 ? "" : "s");
    if (!std::isnan(values.gpu_busy_percent)) {
      text +=
          fmt::format("[GPU{}] GPU busy {:.2f} of the time\n", rank, values.gpu_busy_percent / 100);
    }
    std::cerr << text << std::flush;
  }
}

void Log::write_summary(const Evaluation& evaluation, double moved,
                        const std::string& digest) const {
  const auto by_rank = [&](int64_t value) {
    if (!reports_.defined()) {
      return std::vector<double>();
    }
    const torch::Tensor column = reports_.select(1, value).contiguous();
    return std::vector<double>(column.const_data_ptr<double>(),
                               column.const_data_ptr<double>() + column.numel());
  };
  const double step_ms = reports_.defined() ? reports_.select(1, 0).max().item<double>() : kNaN;
  const auto first_end = clock_.first_step_end();
  const LaunchEnvironment launch =
      process_group_ == nullptr ? LaunchEnvironment{} : process_group_->launch();
  using std::chrono::milliseconds;
  metrics_file_->append_summary({
      {"program", options_.program},
      {"launcher", launch.launcher},
      {"backend",
       process_group_ == nullptr ? ordered_json() : ordered_json(process_group_->backend_name())},
      {"device", c10::DeviceTypeName(device_.type(), /*lower_case=*/true)},
      {"dataset", printable(options_.dataset)},
      {"parameters", parameter_count(module_)},
      {"world_size", launch.world_size},
      {"nodes", launch.num_nodes},
      {"batch_size", batch_size_},
      {"global_batch", global_batch_},
      {"optimizer", options_.optimizer},
      {"learning_rate", resolve_learning_rate(options_)},
      {"threads", options_.threads},
      {"epochs", options_.total_epochs},
      {"steps", metrics_file_->steps()},
      {"warmup_steps", clock_.warmup_steps()},
      {"step_ms", step_ms},
      {"samples_per_second", static_cast<double>(global_batch_) / step_ms * 1000},
      {"moved", moved},
      {"loss", evaluation.loss},
      {"accuracy", evaluation.accuracy},
      {"digest", digest},
      {"communicates", !options_.no_communication},
      {"peak_rss_mib", by_rank(1)},
      {"peak_device_mib",
       device_.is_cpu() ? ordered_json(ordered_json::array()) : ordered_json(by_rank(2))},
      {"startup_ms", by_rank(3)},
      {"first_step_unix_ms",
       first_end
           ? ordered_json(
                 std::chrono::duration_cast<milliseconds>(first_end->time_since_epoch()).count())
           : ordered_json()},
  });
}

}  // namespace ddp
