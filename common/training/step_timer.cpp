#include "common/training/step_timer.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

namespace ddp {
namespace {

constexpr int64_t kWarmupSteps = 20;
constexpr int64_t kWaitStride = 8;  // see Note [Sampled waits]

/// On the monotonic clock.
double to_ms(std::chrono::steady_clock::time_point moment) {
  return std::chrono::duration<double, std::milli>(moment.time_since_epoch()).count();
}

/// The sign, the exponent and the leading 10 bits of the mantissa.
constexpr uint64_t leading_bits(double value) {
  return std::bit_cast<uint64_t>(value) >> 42;
}
constexpr uint64_t kFirstBucket = leading_bits(0x1p-12);
constexpr uint64_t kBuckets = leading_bits(0x1p24) - kFirstBucket;

}  // namespace

StepMedian::StepMedian() : first_(kExactSteps), buckets_(kBuckets) {}

void StepMedian::add(double value) {
  if (steps_ < kExactSteps) {
    first_[static_cast<size_t>(steps_)] = value;
  }
  if (steps_ >= kWarmupSteps) {
    Bucket& bucket =
        buckets_[std::clamp(leading_bits(value), kFirstBucket, kFirstBucket + kBuckets - 1) -
                 kFirstBucket];
    ++bucket.values;
    bucket.sum += value;
  }
  ++steps_;
}

int64_t StepMedian::warmup_steps() const noexcept {
  return std::min(kWarmupSteps, steps_ / 2);
}

double StepMedian::mean_of(int64_t rank) const {
  auto bucket = buckets_.begin();
  while (rank >= bucket->values) {
    rank -= bucket->values;
    ++bucket;
  }
  return bucket->sum / static_cast<double>(bucket->values);
}

double StepMedian::median() const {
  const int64_t values = steps_ - warmup_steps();
  if (values == 0) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (steps_ > kExactSteps) {
    return (mean_of((values - 1) / 2) + mean_of(values / 2)) / 2;
  }
  std::vector<double> sorted(first_.begin() + warmup_steps(), first_.begin() + steps_);
  std::ranges::sort(sorted);
  return (sorted[(sorted.size() - 1) / 2] + sorted[sorted.size() / 2]) / 2;
}

StepTimer::StepTimer(const torch::Device& device, ProcessGroup* process_group, Detail detail,
                     Record record, StepTrace* trace)
    : device_(device),
      process_group_(process_group),
      detail_(detail),
      record_(std::move(record)),
      trace_(trace) {}

StepTimer::Mark StepTimer::mark() {
  Mark now;
  if (!device_.is_cpu()) {
    if (events_used_ == events_.size()) {
      events_.emplace_back(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    }
    c10::Event& event = events_[events_used_++];
    event.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
    now.device = &event;
  } else {
    now.host = std::chrono::steady_clock::now();
  }
  return now;
}

double StepTimer::milliseconds(const Mark& from, const Mark& to) const {
  return !device_.is_cpu() ? from.device->elapsedTime(*to.device)
                           : std::chrono::duration<double, std::milli>(to.host - from.host).count();
}

void StepTimer::wait_for_device() const {
  if (!device_.is_cpu()) {
    c10::impl::VirtualGuardImpl(device_.type()).synchronizeDevice(device_.index());
  }
}

void StepTimer::begin_epoch(int64_t steps) {
  steps_.clear();
  step_ = {};
  events_used_ = 0;
  if (!device_.is_cpu()) {
    steps_.reserve(static_cast<size_t>(steps));
    wait_for_device();
  }
  begin_step_anew();
  epoch_begin_ = step_.begin;
  if (!device_.is_cpu()) {
    epoch_begin_.host = std::chrono::steady_clock::now();
  }
}

void StepTimer::begin_step_anew() {
  if (process_group_ != nullptr) {
    process_group_->take_wait();  // what came before is no part of a step
  }
  step_.begin = mark();
  phase_ = Phase::kData;
  phase_begin_ = step_.begin.host;
  if (trace_ != nullptr) {
    trace_->begin_step(step_.begin.host);
  }
  choose_wait_timer();
}

void StepTimer::choose_wait_timer() {
  if (process_group_ != nullptr) {
    step_.wait_timed =
        detail_ == Detail::kAll || (detail_ == Detail::kSampledWaits &&
                                    (steps_done_ + steps_done_ / kWaitStride) % kWaitStride == 0);
    process_group_->enable_wait_timer(step_.wait_timed);
  }
}

void StepTimer::begin(Phase phase) {
  if (detail_ != Detail::kAll) {
    return;
  }
  if (!device_.is_cpu()) {
    if (step_.phases.empty() || step_.phases.back().first != phase) {
      step_.phases.emplace_back(phase, mark());
    }
  } else {
    const auto now = std::chrono::steady_clock::now();
    switch_phase(phase, now);
    if (trace_ != nullptr) {
      trace_->begin_phase(phase, now);
    }
  }
}

void StepTimer::switch_phase(Phase phase, std::chrono::steady_clock::time_point now) {
  step_.phase_ms[static_cast<size_t>(phase_)] +=
      std::chrono::duration<double, std::milli>(now - phase_begin_).count();
  phase_ = phase;
  phase_begin_ = now;
}

void StepTimer::add_loss(const torch::Tensor& loss) {
  step_.has_loss = true;
  if (!device_.is_cpu()) {
    step_.device_loss =
        step_.device_loss.defined() ? step_.device_loss + loss.detach() : loss.detach();
  } else {
    step_.loss += loss.item<double>();
  }
}

void StepTimer::end_step(double samples) {
  TORCH_CHECK(step_.has_loss, "Expected ddp::loss() to be called in every step, got none");
  step_.samples = samples;
  if (step_.wait_timed) {
    step_.wait = process_group_->take_wait();
    all_reduce_bytes_ = step_.wait.all_reduce_bytes;
    gather_bytes_ = step_.wait.gather_bytes;
  }
  step_.end = mark();
  if (!device_.is_cpu()) {
    steps_.push_back(std::exchange(step_, {}));
    step_.begin = steps_.back().end;
  } else {
    const auto now = step_.end.host;
    switch_phase(Phase::kData, now);
    if (trace_ != nullptr) {
      trace_->end_step(now);
    }
    record_(times_of(step_, to_ms(now), loss_of(step_)));
    // Only what has changed: a whole Step takes as long as a tenth of the shortest steps.
    step_.begin.host = now;
    step_.phase_ms = {};
    step_.loss = 0;
    step_.has_loss = false;
    if (step_.wait_timed) {
      step_.wait = {};
    }
  }
  if (steps_done_++ == 0) {
    wait_for_device();
    first_step_end_ = std::chrono::system_clock::now();
  }
  choose_wait_timer();
}

void StepTimer::end_epoch() {
  wait_for_device();
  if (!steps_.empty()) {
    std::vector<torch::Tensor> losses;
    for (const Step& step : steps_) {
      losses.push_back(step.device_loss);
    }
    const torch::Tensor on_host = torch::stack(losses).to(torch::kCPU, torch::kFloat64);
    double end_ms = to_ms(epoch_begin_.host);
    const Mark* last_end = &epoch_begin_;
    for (size_t i = 0; i < steps_.size(); ++i) {
      end_ms += milliseconds(*std::exchange(last_end, &steps_[i].end), steps_[i].end);
      record_(times_of(steps_[i], end_ms, on_host.const_data_ptr<double>()[i]));
    }
  }
  steps_.clear();
}

double StepTimer::loss_of(const Step& step) const {
  return !device_.is_cpu() ? step.device_loss.item<double>() : step.loss;
}

StepTimes StepTimer::times_of(const Step& step, double end_ms, double loss) const {
  const double backward_wait_ms = step.wait_timed ? step.wait.backward.total_ms() : 0;
  const double gather_wait_ms = step.wait_timed ? step.wait.gather.total_ms() : 0;
  StepTimes times{.step_ms = milliseconds(step.begin, step.end),
                  .end_ms = end_ms,
                  .phase_ms = step.phase_ms,
                  .exposed_comm_ms = process_group_ == nullptr || step.wait_timed
                                         ? backward_wait_ms + gather_wait_ms
                                         : std::numeric_limits<double>::quiet_NaN(),
                  .samples = step.samples,
                  .loss = loss};
  if (!device_.is_cpu()) {
    Phase phase = Phase::kData;
    const Mark* from = &step.begin;
    for (const auto& [next_phase, mark] : step.phases) {
      times.phase_ms[static_cast<size_t>(phase)] += milliseconds(*from, mark);
      phase = next_phase;
      from = &mark;
    }
    times.phase_ms[static_cast<size_t>(phase)] += milliseconds(*from, step.end);
  }
  // The gradients are waited for at the end of backward, so it is backward's time that holds the
  // wait; a sharded optimizer's weights are part of its step.
  times.phase_ms[static_cast<size_t>(Phase::kBackward)] -= backward_wait_ms;
  times.phase_ms[static_cast<size_t>(Phase::kOptimizer)] -= gather_wait_ms;
  return times;
}

}  // namespace ddp
