#include "common/parallel/step_trace.hpp"

#include <algorithm>
#include <string_view>

namespace ddp {
namespace {

constexpr std::array<const char*, kPhases> kPhaseNames = {"data", "forward", "backward",
                                                          "optimizer"};

}  // namespace

void StepTrace::set_epoch(int64_t epoch) {
  epoch_ = epoch;
  step_ = 0;
}

void StepTrace::begin_step(Clock::time_point now) {
  Step& step = current();
  step.epoch = epoch_;
  step.step = step_;
  step.begin = now;
  step.spans.clear();
  step.collectives.clear();
  begin_span(kPhaseNames[static_cast<size_t>(Phase::kData)], now);
}

void StepTrace::begin_span(const char* name, Clock::time_point now) {
  std::vector<Span>& spans = current().spans;
  if (!spans.empty()) {
    if (std::string_view(spans.back().name) == name) {
      return;
    }
    spans.back().end = now;
  }
  spans.push_back({.name = name, .begin = now, .end = now});
}

void StepTrace::begin_phase(Phase phase, Clock::time_point now) {
  begin_span(kPhaseNames[static_cast<size_t>(phase)], now);
}

void StepTrace::add_wait(Clock::time_point begin, Clock::time_point end) {
  const std::vector<Span>& spans = current().spans;
  if (!spans.empty()) {  // else no step has begun
    const char* const phase = spans.back().name;
    begin_span("communication", begin);
    begin_span(phase, end);
  }
}

void StepTrace::add_collective(const char* kind, const torch::Tensor& tensor, const CallSite& site,
                               Clock::time_point begin, c10d::Work& work) {
  auto end = std::make_shared<std::atomic<Clock::rep>>(0);
  current().collectives.push_back({.kind = kind,
                                   .bytes = static_cast<int64_t>(tensor.nbytes()),
                                   .site = site,
                                   .begin = begin,
                                   .end = end});
  // Whoever ends the work calls this, before those who wait for it go on; at once if it is over.
  work.getFuture()->addCallback([end = std::move(end)](c10::ivalue::Future&) {
    end->store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
  });
}

void StepTrace::end_step(Clock::time_point now) {
  Step& step = current();
  step.spans.back().end = now;
  step.end = now;
  ++steps_done_;
  ++step_;
  begin_step(now);
}

std::vector<const StepTrace::Step*> StepTrace::steps() const {
  std::vector<const Step*> steps;
  for (size_t i = steps_done_ - std::min(steps_done_, kSteps); i < steps_done_; ++i) {
    steps.push_back(&steps_[i % steps_.size()]);
  }
  return steps;
}

}  // namespace ddp
