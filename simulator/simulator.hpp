// simulator/simulator.hpp - runs a rank's program on simulated ranks, to find the cost of a
// schedule of compute and communication without a GPU, a network or LibTorch.
//
//   void rank() {
//     compute(300, "backward");
//     wait(all_reduce(4 << 20));
//   }
//   int main(int argc, char** argv) { return simulate(argc, argv, rank, {step_us <= 1500}); }
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "simulator/network.hpp"

namespace ddp::sim {

/// Note [Simulated time]: every rank has its own clock, in microseconds. compute() moves the clock,
/// and wait() moves it to the end of the awaited call. A rank's communication runs in the order in
/// which the rank started it, call after call: each rank has a lane out and a lane in, like a
/// communication stream over a link. A collective needs both lanes of all ranks, and begins when
/// the last rank is there. A message needs the sender's lane out and the receiver's lane in, and
/// begins when both ranks have called. So all times follow only from the ranks' programs, and two
/// runs are equal to the last digit.

/// Started communication, until wait() has waited for it.
struct [[nodiscard]] Handle {
  struct Call* call;
};

/// Only for a rank's program; elsewhere these functions throw std::logic_error. Bytes are the size
/// of one rank's input tensor, as in c10d's call: for all_gather the rank's own tensor, for
/// reduce_scatter all its parts. UsageError for negative times and unknown ranks.
int my_rank();
int world_size();

void compute(double us, const std::string& name = "compute");

Handle all_reduce(int64_t bytes);
Handle reduce_scatter(int64_t bytes);
Handle all_gather(int64_t bytes);
Handle broadcast(int64_t bytes, int root = 0);
Handle barrier();

/// Message of numbers, which are copied: send() reads `values`, and the receiver's wait() writes
/// them. The k-th send to a rank meets that rank's k-th recv from here.
Handle send(int to, std::span<const float> values);
Handle recv(int from, std::span<float> values);

/// Waits for a handle. Call it once for every handle: a handle without wait() is reported.
void wait(Handle handle);

/// Parameter of the program: `initial`, or the number of --set NAME=NUMBER.
/// @param choices values for the page of --html, besides the present one, its half and its double
double parameter(const std::string& name, double initial, const std::vector<double>& choices = {});

/// Lets the run fail if `holds` is false. @param what condition, for the message
void check(bool holds, const std::string& what);

/// Work, wait or communication from `begin_us` to `end_us`.
struct Span {
  double begin_us = 0;
  double end_us = 0;
  std::string name;  ///< "forward", "all_reduce", "message to rank 1"
};

struct RankRecord {
  std::vector<Span> compute;
  std::vector<Span> waiting;  ///< waits for communication
  std::vector<Span> communication;  ///< communication over both lanes
  double end_us = 0;
  Traffic sent;
  double waited_us = 0;
};

struct Simulation {
  std::vector<RankRecord> ranks;  ///< until the deadlock, if there is one
  std::map<std::string, std::vector<double>> parameters;  ///< value, then choices for the page
  std::vector<std::string> complaints;  ///< failed checks, and handles without wait()
  std::string deadlock;  ///< "deadlock at ...", with the call that each rank waits for; or empty
};

/// Runs `rank` once for each of `nprocs` ranks. @param parameters from --set
/// @throws UsageError for a parameter that the program does not have, or the exception of a rank
Simulation run_ranks(const std::function<void()>& rank, int nprocs, const Network& network,
                     const std::map<std::string, double>& parameters = {});

struct Quantity;

/// Target of a run: "step_us <= 900".
struct Target {
  const Quantity& quantity;
  std::string relation;  ///< "<=", ">=" or "=="
  double bound;

  /// Compares with a tolerance of 1e-12, because sums in another order round differently.
  bool is_met(const Simulation& simulation) const;
};

/// Number of a finished run: the largest value of the ranks.
struct Quantity {
  const char* name;
  double (*of_rank)(const RankRecord& rank);

  double of(const Simulation& simulation) const;
  Target operator<=(double bound) const { return {*this, "<=", bound}; }
  Target operator>=(double bound) const { return {*this, ">=", bound}; }
  Target operator==(double bound) const { return {*this, "==", bound}; }
};

inline constexpr Quantity step_us{"step_us", [](const RankRecord& rank) { return rank.end_us; }};
inline constexpr Quantity waited_us{"waited_us",
                                    [](const RankRecord& rank) { return rank.waited_us; }};
inline constexpr Quantity messages{"messages",
                                   [](const RankRecord& rank) { return rank.sent.messages; }};
inline constexpr Quantity sent_bytes{"sent_bytes",
                                     [](const RankRecord& rank) { return rank.sent.bytes; }};

/// Writes a page that draws the program's runs, with sliders for settings around these ones.
void write_page(const std::string& file, const std::function<void()>& rank, const Network& network,
                const Simulation& simulation);

/// main() of a simulated program: reads the command line (see --help), runs the ranks, draws their
/// lanes and checks the targets, unless --nprocs, --set, --alpha-us or --beta-us-per-mib make the
/// numbers others than the program's own. @param nprocs number of ranks without --nprocs
/// @return 0 if every target is met, 1 if a target is missed or a rank failed, 2 for usage
int simulate(int argc, char** argv, const std::function<void()>& rank,
             std::initializer_list<Target> targets = {}, int nprocs = 2);

}  // namespace ddp::sim
