#include "common/training/step_clock.hpp"

#include <c10/core/Event.h>

#include <limits>

#include "common/base/percentile.hpp"
#include "common/device/device.hpp"

namespace ddp {
namespace {

constexpr int64_t kWarmupSteps = 20;

double to_ns(std::chrono::steady_clock::time_point moment) {
  return std::chrono::duration<double, std::nano>(moment.time_since_epoch()).count();
}

}  // namespace

StepClock::StepClock(const torch::Device& device) : device_(device) {
  begin_epoch();
}

void StepClock::begin_epoch() {
  epoch_count_ = 0;
  epoch_steps_.clear();
  if (!device_.is_cpu()) {
    synchronize(device_);
    losses_.clear();
    if (events_.empty()) {
      events_.emplace_back(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    }
    events_.front().record(current_stream(device_));
  }
  last_end_ = Clock::now();
}

void StepClock::end_step(const torch::Tensor& loss) {
  ++epoch_count_;
  if (device_.is_cpu()) {
    const Clock::time_point now = Clock::now();
    record(to_ns(now), std::chrono::duration<double, std::milli>(now - last_end_).count(),
           loss.item<double>());
    last_end_ = now;
  } else {
    const auto index = static_cast<size_t>(epoch_count_);
    if (events_.size() <= index) {
      events_.emplace_back(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    }
    events_[index].record(current_stream(device_));
    losses_.push_back(loss.detach().clone());  // the next replay of a graph overwrites the loss
  }
  if (!first_end_) {
    synchronize(device_);
    first_end_ = std::chrono::system_clock::now();
  }
}

const std::vector<Step>& StepClock::epoch_steps() {
  if (epoch_steps_.empty() && !losses_.empty()) {
    synchronize(device_);
    const torch::Tensor losses = torch::stack(losses_).to(torch::kCPU, torch::kFloat64);
    double end_ns = to_ns(last_end_);
    for (size_t i = 0; i < losses_.size(); ++i) {
      const double step_ms = events_[i].elapsedTime(events_[i + 1]);
      end_ns += step_ms * 1e6;
      record(end_ns, step_ms, losses.const_data_ptr<double>()[i]);
    }
  }
  return epoch_steps_;
}

void StepClock::record(double end_ns, double step_ms, double loss) {
  epoch_steps_.push_back({end_ns, step_ms, loss});
  const auto ms = static_cast<float>(step_ms);
  steps_ < kKept ? last_ms_.push_back(ms)
                 : void(last_ms_[static_cast<size_t>(steps_ % kKept)] = ms);
  ++steps_;
}

int64_t StepClock::warmup_steps() const {
  return std::min(kWarmupSteps, steps() / 2);
}

double StepClock::median_ms() const {
  return median({last_ms_.begin() + warmup_steps(), last_ms_.end()})
      .value_or(std::numeric_limits<double>::quiet_NaN());
}

}  // namespace ddp
