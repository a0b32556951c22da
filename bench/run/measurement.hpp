// bench/run/measurement.hpp - the programs' runs: each once to compare weights, then timed ones.
#pragma once

#include "bench/run/child_process.hpp"
#include "bench/run/plan.hpp"
#include "bench/run/results.hpp"

namespace ddp::bench {

/// Stands for a number of epochs that only the parity runs tell.
inline constexpr std::int64_t kUnknownEpochs = -1;

/// What the timed steps of one run are taken to last, besides its start, until they are chosen.
inline constexpr double kTimedStepsSeconds = 0.3;

/// Of the run that is compared with stage 01's, with the same batch at all world sizes.
RunLength parity_length(const Configuration& configuration);

/// Of a timed run, with kUnknownEpochs.
RunLength timed_length(const Configuration& configuration);

/// Runs a configuration's program and reads what it measured. A run that ends with exit code 75,
/// "try again later", is tried again.
StageRun run_stage(const Configuration& configuration, const RunLength& length, const Plan& plan,
                   Session& session);

/// Trains every configuration with the same data, batch and seed, and compares `moved` with
/// stage 01's. Nothing is timed in there.
/// @throws UsageError if stage 01 refuses the options
Measurements check_parity(const Plan& plan, Session& session);

/// Chooses how long the timed runs are, before the first of them.
void choose_lengths(const Settings& settings, double used_s, Measurements& measurements);

/// Lowers the repetitions until the timed runs end within --budget, but not below what an interval
/// needs, and not what the user has asked for.
/// @param later_s what follows after them
void keep_to_budget(Plan& plan, double used_s, double later_s, Measurements& measurements);

/// Runs what is left of the configurations: in each block every configuration once that takes part
/// in it, in an order drawn from the seed, so that two runs of one block lie close together in time
/// and can be compared as a pair. It leaves out the last blocks where they would not end within
/// --budget, unless the user has asked for that many.
/// @param used_s what has passed since the start of the command
/// @param later_s what follows after them
void measure(const Plan& plan, Session& session, double used_s, double later_s,
             Measurements& measurements);

}  // namespace ddp::bench
