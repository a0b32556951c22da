#include "common/base/process_exit.hpp"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace ddp {
namespace {

using TrainEndActions = std::vector<std::function<void()>>;

std::atomic<bool> skips_destructors = false;

std::mutex explanation_mutex;  // in tests a rank is a thread
Explain explanation;

}  // namespace

void at_train_end(std::function<void()> action) {
  of_this_rank<TrainEndActions>().push_back(std::move(action));
}

void run_train_end_actions() {
  for (const auto& action : std::exchange(of_this_rank<TrainEndActions>(), {})) {
    action();
  }
}

void skip_destructors_at_exit() {
  skips_destructors = true;
}

int exit_code_of_process(int code) {
  if (skips_destructors) {
    std::fflush(nullptr);
    std::_Exit(code);
  }
  return code;
}

void explain_thread_errors(Explain explain) {
  const std::lock_guard<std::mutex> lock(explanation_mutex);
  explanation = std::move(explain);
}

Explain thread_error_explanation() {
  const std::lock_guard<std::mutex> lock(explanation_mutex);
  return explanation;
}

void wait_for_launcher() {
  std::this_thread::sleep_for(std::chrono::seconds(1));
}

}  // namespace ddp
