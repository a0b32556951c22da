#include "bench/micro/team.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "common/backends/backend.hpp"
#include "common/backends/device.hpp"
#include "common/base/exit_codes.hpp"

namespace ddp::micro {

constexpr const char* kDismissed = "dismissed";

Team::Team(const MicroOptions& options, LaunchEnvironment environment)
    : options_(options),
      environment_(std::move(environment)),
      device_(set_device(options.stage, environment_.local_rank)) {
  if (world_size() == 1) {
    lockstep_ = std::make_unique<Lockstep>(device_);
    return;
  }
  if (options.backends.size() > 1 && environment_.launcher != "spawn") {
    throw UsageError(
        fmt::format("--backends: got {} under {}, expected one where a launcher starts the ranks",
                    options.backends.size(), environment_.launcher));
  }
  for (const std::string& name : options.backends) {
    std::string backend = resolve_backend(name, device_);
    if (name == "auto") {
      open(name);  // what it is may depend on what the ranks find when they connect
      backend = group_->backend_name();
    }
    if (std::ranges::find(backends_, backend) == backends_.end()) {
      backends_.push_back(backend);
    }
  }
  if (group_ == nullptr) {
    open(backends_.front());
  }
}

/// Each group has a part of its own in the store that all share.
void Team::open(const std::string& backend) {
  if (const std::unique_ptr<ProcessGroup> previous = std::move(group_)) {
    lockstep_.reset();
    destroy_process_group(*previous);
    environment_.store.prefix += "/next";
  }
  const Options options = stage_options(options_, backend);
  // No make_unique: a process group can be neither copied nor moved.
  group_.reset(new ProcessGroup(create_process_group(options, environment_, device_)));
  const auto timeout_ms = static_cast<std::int64_t>(options.timeout_seconds * 1e3);
  lockstep_ = std::make_unique<Lockstep>(*group_, std::chrono::milliseconds(timeout_ms));
}

void Team::carry_out(const Entry& entry, std::int64_t iterations, const ReportSeries& report) {
  if (!entry.backend.empty() && entry.backend != group_->backend_name()) {
    open(entry.backend);
  }
  const Exercise exercise = entry.make(*this);
  const Series series = measure(
      exercise, *lockstep_, options_.min_seconds, iterations,
      options_.repetitions * options_.passes > 1 ? kMinIterationsOfOneOfSeveral : kMinIterations);
  if (report) {
    report(series, exercise);
  }
}

void Team::lead(const std::vector<Entry>& entries, size_t index, std::int64_t iterations,
                const ReportSeries& report) {
  lockstep_->from_rank0(fmt::format("{} {}", index, iterations));
  carry_out(entries[index], iterations, report);
}

void Team::follow(const std::vector<Entry>& entries) {
  for (std::string order; (order = lockstep_->from_rank0("")) != kDismissed;) {
    std::istringstream text(order);
    size_t index = 0;
    std::int64_t iterations = 0;
    text >> index >> iterations;
    try {
      carry_out(entries.at(index), iterations, {});
    } catch (const WrongResult&) {
      // Rank 0 threw too, and reports it.
    }
  }
}

void Team::leave() {
  if (rank() == 0) {
    lockstep_->from_rank0(kDismissed);
  }
  lockstep_.reset();
  if (group_ != nullptr) {
    destroy_process_group(*group_);
  }
}

}  // namespace ddp::micro
