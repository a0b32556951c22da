#include "common/training/log.hpp"

#include <c10/core/CachingDeviceAllocator.h>
#include <fmt/ranges.h>

#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "common/base/exit_codes.hpp"
#include "common/base/parse.hpp"
#include "common/base/process.hpp"
#include "common/model/flat_parameters.hpp"

namespace ddp {
namespace {

using nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

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

/// Fields of RankReport, in the order in which ranks exchange them.
constexpr double RankReport::*kRankFields[] = {
    &RankReport::median_ms,  &RankReport::peak_rss_mib, &RankReport::peak_device_mib,
    &RankReport::startup_ms, &RankReport::busy_cores,   &RankReport::gpu_busy_percent};
static_assert(sizeof(RankReport) == std::size(kRankFields) * sizeof(double));

double ms_between(auto begin, auto end) {
  return std::chrono::duration<double, std::milli>(end - begin).count();
}

/// Distance between the weights now and before, on the host.
double distance(const std::vector<torch::Tensor>& now, const std::vector<torch::Tensor>& before) {
  const torch::NoGradGuard no_grad;
  double sum = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    const torch::Tensor weight = now[i].detach().to(torch::kCPU, torch::kFloat64);
    sum += weight.sub_(before[i]).square_().sum().item<double>();
  }
  return std::sqrt(sum);
}

/// @throws Error (1) if the loss or a weight is not finite
void check_divergence(int64_t epoch, double loss, const torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  if (!std::isfinite(loss) || !std::ranges::all_of(module.parameters(), all_finite)) {
    throw Error(
        ExitCode::kTrainingFailed,
        fmt::format("training diverged in epoch {}: its loss is {:g}{}, expected finite "
                    "numbers; a smaller --lr may help",
                    epoch, loss, std::isfinite(loss) ? ", and a weight is not finite" : ""));
  }
}

void print_order(const std::string& label, int64_t epoch, const torch::Tensor& indices) {
  constexpr int64_t kShown = 8;
  const auto* const first = indices.const_data_ptr<int64_t>();
  std::cout << fmt::format("[{}] epoch {} reads {}{}\n", label, epoch,
                           fmt::join(first, first + std::min(kShown, indices.numel()), ", "),
                           indices.numel() > kShown ? ", ..." : "");
}

/// Prints how busy each rank was. A rank that spins while it waits counts as busy.
void print_utilisation(const std::vector<RankReport>& ranks, const char* kind, int threads) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    std::cerr << fmt::format("[{}{}] busy {:.2f} of {} core{}\n", kind, rank,
                             ranks[rank].busy_cores, threads, threads == 1 ? "" : "s");
    if (!std::isnan(ranks[rank].gpu_busy_percent)) {
      std::cerr << fmt::format("[GPU{}] GPU busy {:.2f} of the time\n", rank,
                               ranks[rank].gpu_busy_percent / 100);
    }
  }
}

std::string last_line(const RunSummary& run) {
  std::string line = fmt::format("moved {:#.6g} | loss {:.4f}", run.moved, run.evaluation.loss);
  if (!std::isnan(run.evaluation.accuracy)) {
    line += fmt::format(" | accuracy {:.4f}", run.evaluation.accuracy);
  }
  line += fmt::format(" | digest {}", run.digest);
  if (!run.ranks.empty()) {
    line += fmt::format(" | step {:.3f} ms | {:.0f} samples/s", run.step_ms(),
                        run.samples_per_second());
  }
  return line + "\n";
}

}  // namespace

double RunSummary::step_ms() const {
  double slowest = ranks.empty() ? kNaN : 0;
  for (const RankReport& rank : ranks) {
    slowest = rank.median_ms > slowest ? rank.median_ms : slowest;
  }
  return slowest;
}

double RunSummary::samples_per_second() const {
  return static_cast<double>(global_batch) / step_ms() * 1000;
}

Log::Log(const Options& options, const torch::nn::Module& module)
    : options_(options),
      module_(module),
      group_(world()),
      device_(module.parameters().front().device()),
      clock_(device_) {
  const int rank = group_.rank();
  const bool is_alone = group_.backend_name().empty();
  const int number = is_alone ? std::max<int>(device_.index(), 0) : rank;
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
    trace_ = std::make_unique<Trace>(options.trace, rank, group_.world_size(), device_.is_cuda());
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
  summary_.batch_size = loader.batch_size();
  summary_.global_batch = std::min(loader.samples_per_step(), loader.sampler().epoch_samples());
  if (options_.verbose) {
    print_order(label_, epoch, loader.sampler().indices());
  }
  if (!options_.quiet) {
    std::cout << fmt::format("[{}] Epoch {} | Batchsize: {} | Steps: {} | Loss: {:.4f}\n", label_,
                             epoch, loader.batch_size(), clock_.steps_in_epoch(), loss)
              << std::flush;
  }
  if (!options_.metrics.empty()) {
    if (metrics_file_ && metrics_file_->steps() == 0) {
      metrics_file_->keep_epochs(epoch);
    }
    epoch_ = epoch;
    write_steps();
  }
  check_divergence(epoch, loss, module_);
  epoch_ = epoch + 1;
  if (epoch_ == options_.total_epochs) {
    if (trace_) {
      trace_->finish();
    }
    gather_reports();
  }
  clock_.begin_epoch();
}

torch::Tensor Log::gather(const torch::Tensor& values) const {
  return group_.all_gather(values.to(device_), site_).to(torch::kCPU);
}

void Log::write_steps() {
  std::vector<double> numbers;
  for (const Step& step : clock_.epoch_steps()) {
    numbers.insert(numbers.end(), {step.end_ns, step.step_ms, step.loss});
  }
  for (const torch::Tensor& piece :
       torch::tensor(numbers, torch::kFloat64).view({-1, 3}).split(/*split_size=*/1024)) {
    const torch::Tensor of_ranks = gather(piece);
    if (metrics_file_) {
      metrics_file_->append_steps(epoch_, of_ranks);
    }
  }
}

void Log::gather_reports() {
  const auto first_end = clock_.first_step_end();
  const std::optional<GpuReadings> gpu = gpu_monitor_ ? gpu_monitor_->take() : std::nullopt;
  const RankReport own{.median_ms = clock_.median_ms(),
                       .peak_rss_mib = peak_rss_mib(),
                       .peak_device_mib = peak_device_mib(device_),
                       .startup_ms = first_end ? ms_between(process_start(), *first_end) : kNaN,
                       .busy_cores = (cpu_ms() - busy_begin_ms_) / ms_between(begin_, Clock::now()),
                       .gpu_busy_percent = gpu ? gpu->utilisation_percent : kNaN};
  std::vector<double> numbers;
  for (const auto field : kRankFields) {
    numbers.push_back(own.*field);
  }
  const torch::Tensor of_ranks = gather(torch::tensor(numbers, torch::kFloat64));
  for (int64_t rank = 0; rank < of_ranks.size(0); ++rank) {
    RankReport& report = summary_.ranks.emplace_back();
    int64_t column = 0;
    for (const auto field : kRankFields) {
      report.*field = of_ranks[rank][column++].item<double>();
    }
  }
}

void Log::report(const Evaluation& evaluation) {
  if (initial_weights_.empty()) {
    return;  // stage 04 on several nodes: only rank 0 reports
  }
  TORCH_CHECK(std::isfinite(evaluation.loss), "the loss of the test samples is ", evaluation.loss);
  summary_.evaluation = evaluation;
  summary_.moved = distance(module_.parameters(), initial_weights_);
  summary_.digest = parameter_hash(module_).substr(0, 16);
  std::cout << last_line(summary_) << std::flush;
  if (options_.verbose) {
    print_utilisation(summary_.ranks, device_.is_cpu() ? "CPU" : "GPU", options_.threads);
  }
  if (metrics_file_) {
    if (summary_.ranks.empty()) {
      metrics_file_->keep_epochs(options_.total_epochs);
    }
    write_summary();
  }
}

void Log::write_summary() const {
  const auto by_rank = [&](double RankReport::*field) {
    std::vector<double> values;
    std::ranges::transform(summary_.ranks, std::back_inserter(values), field);
    return values;
  };
  const LaunchEnvironment& launch = group_.launch();
  const std::string backend = group_.backend_name();
  ordered_json fields = {
      {"program", options_.program},
      {"launcher", launch.launcher},
      {"backend", backend.empty() ? ordered_json() : ordered_json(backend)},
      {"device", c10::DeviceTypeName(device_.type(), /*lower_case=*/true)},
      {"dataset", printable(options_.dataset)},
      {"communicates", !options_.no_communication},
      {"parameters", parameter_count(module_)},
      {"world_size", launch.world_size},
      {"nodes", launch.num_nodes},
      {"batch_size", summary_.batch_size},
      {"global_batch", summary_.global_batch},
      {"steps", metrics_file_->steps()},
      {"warmup_steps", clock_.warmup_steps()},
      {"step_ms", summary_.step_ms()},
      {"samples_per_second", summary_.samples_per_second()},
      {"moved", summary_.moved},
      {"loss", summary_.evaluation.loss},
      {"accuracy", summary_.evaluation.accuracy},
      {"digest", summary_.digest},
      {"peak_rss_mib", by_rank(&RankReport::peak_rss_mib)},
      {"peak_device_mib",
       device_.is_cpu() ? std::vector<double>() : by_rank(&RankReport::peak_device_mib)},
      {"startup_ms", by_rank(&RankReport::startup_ms)},
  };
  for (const Setting& setting : options_.settings) {
    if (!setting.reported.empty()) {
      const ordered_json value = ordered_json::parse(setting.text, nullptr, /*exceptions=*/false);
      fields[setting.reported] = value.is_discarded() ? ordered_json(setting.text) : value;
    }
  }
  metrics_file_->append_summary(fields);
}

}  // namespace ddp
