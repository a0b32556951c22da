// simulator/simulator.hpp - runs a rank's program on simulated ranks: what a schedule of compute
// and communication would cost, without a GPU, a network or LibTorch.
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
#include "simulator/targets.hpp"

namespace ddp::sim {

/// Note [Simulated time]: every rank has a clock of its own, in microseconds, which compute() moves
/// and wait() moves to the end of what it waits for. A rank's communication is done in the order in
/// which the rank started it, one after the other: each rank has one lane out and one in, as a
/// communication stream over one link has. A collective needs both lanes of all ranks and begins
/// when the last of them is there; a message needs the sender's lane out and the receiver's lane
/// in, and begins when both have called. So every moment follows from the ranks' programs alone,
/// and two runs are the same to the last digit.

/// Something that was started, until wait() has waited for it.
struct [[nodiscard]] Handle {
  struct Call* call;
};

/// For a rank's program only; std::logic_error elsewhere. Bytes are of one rank's tensor as c10d's
/// call takes it: of all_gather what the rank gives, of reduce_scatter all its parts. UsageError
/// for what cannot be: negative times, no such rank.
int my_rank();
int world_size();

void compute(double us, const std::string& name = "compute");

Handle all_reduce(int64_t bytes, const std::string& name = "all_reduce");
Handle reduce_scatter(int64_t bytes, const std::string& name = "reduce_scatter");
Handle all_gather(int64_t bytes, const std::string& name = "all_gather");
Handle broadcast(int64_t bytes, int root = 0, const std::string& name = "broadcast");
Handle barrier();

/// One message of numbers, which are really moved: `values` are read now, and written by wait().
/// The k-th send to a rank meets that rank's k-th recv from here.
Handle send(int to, std::span<const float> values);
Handle recv(int from, std::span<float> values);

/// Every handle once: a result that nobody waits for is a mistake, and reported.
void wait(Handle handle);

/// A number of the program's own: `initial`, unless --set NAME=NUMBER says otherwise.
double parameter(const std::string& name, double initial);

/// Has the run fail if `holds` is false; `what` says what should hold.
void check(bool holds, const std::string& what);

/// Something that was computed, or waited for, or sent, from `begin_us` to `end_us`.
struct Span {
  double begin_us = 0;
  double end_us = 0;
  std::string name;
};

/// What one rank did.
struct RankRecord {
  std::vector<Span> compute;
  std::vector<Span> waiting;  ///< for communication that nothing hid
  std::vector<Span> communication;  ///< as it ran, over both lanes
  double end_us = 0;
  Traffic sent;
  double waited_us() const;
};

struct Simulation {
  std::vector<RankRecord> ranks;
  std::vector<std::string> complaints;  ///< checks that failed and handles that nobody waited for
};

/// Runs `rank` once for each of `nprocs` ranks.
/// @param parameters that --set gave @throws UsageError for one that the program does not ask for
/// @throws Error (1) "deadlock at ...", which names the ranks and what each waits for; or what a
/// rank threw
Simulation run_ranks(const std::function<void()>& rank, int nprocs, const Network& network,
                     const std::map<std::string, double>& parameters = {});

/// main() of a simulated program: reads the command line (--help has it), runs the ranks, draws
/// their lanes and decides.
/// @param nprocs unless --nprocs is given
/// @return 0 if every target is met, 1 if not or if a rank failed, 2 for a mistake on the command
/// line
int simulate(int argc, char** argv, const std::function<void()>& rank,
             std::initializer_list<Target> targets = {}, int nprocs = 2);

}  // namespace ddp::sim
