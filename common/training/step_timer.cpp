#include "common/training/step_timer.hpp"

namespace ddp {

StepTimer::StepTimer(const torch::Device& device, ProcessGroup* process_group, bool with_phases)
    : device_(device), process_group_(process_group), with_phases_(with_phases) {
  if (process_group_ != nullptr && with_phases) {
    process_group_->enable_wait_timer();
  }
}

StepTimer::Mark StepTimer::mark() const {
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

double StepTimer::milliseconds(const Mark& from, const Mark& to) const {
  return device_.is_cuda() ? from.device->elapsedTime(*to.device)
                           : std::chrono::duration<double, std::milli>(to.host - from.host).count();
}

void StepTimer::wait_for_device() const {
  if (device_.is_cuda()) {
    c10::impl::VirtualGuardImpl(device_.type()).synchronizeDevice(device_.index());
  }
}

void StepTimer::begin_epoch() {
  if (process_group_ != nullptr) {
    process_group_->take_wait();  // what came before is no part of a step
  }
  steps_.clear();
  step_ = {};
  step_.begin = mark();
  phase_ = Phase::kData;
  phase_begin_ = step_.begin.host;
}

void StepTimer::begin(Phase phase) {
  if (!with_phases_) {
    return;
  }
  if (device_.is_cuda()) {
    if (step_.phases.empty() || step_.phases.back().first != phase) {
      step_.phases.emplace_back(phase, mark());
    }
  } else {
    switch_phase(phase, std::chrono::steady_clock::now());
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
  if (device_.is_cuda()) {
    step_.device_loss =
        step_.device_loss.defined() ? step_.device_loss + loss.detach() : loss.detach();
  } else {
    step_.loss += loss.item<double>();
  }
}

void StepTimer::end_step(double samples, int64_t epoch_steps) {
  TORCH_CHECK(step_.has_loss, "Expected ddp::loss() to be called in every step, got none");
  step_.samples = samples;
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
  if (steps_.empty() && steps_.capacity() < static_cast<size_t>(epoch_steps)) {
    steps_.resize(static_cast<size_t>(epoch_steps));  // written to, so that the pages are there
    steps_.clear();
  }
  steps_.push_back(std::exchange(step_, std::move(next)));
  if (!first_step_end_) {
    wait_for_device();
    first_step_end_ = std::chrono::system_clock::now();
  }
}

std::vector<StepTimes> StepTimer::end_epoch(int64_t epoch) {
  wait_for_device();
  std::vector<StepTimes> times;
  times.reserve(steps_.size());
  for (const Step& step : steps_) {
    times.push_back(times_of(step, epoch));
  }
  steps_.clear();
  return times;
}

StepTimes StepTimer::times_of(const Step& step, int64_t epoch) const {
  const double backward_wait_ms = step.wait.backward.total_ms();
  const double gather_wait_ms = step.wait.gather.total_ms();
  StepTimes times{.epoch = static_cast<double>(epoch),
                  .step_ms = milliseconds(step.begin, step.end),
                  .phase_ms = step.phase_ms,
                  .exposed_comm_ms = backward_wait_ms + gather_wait_ms,
                  .samples = step.samples,
                  .loss = device_.is_cuda() ? step.device_loss.item<double>() : step.loss};
  if (device_.is_cuda()) {
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
