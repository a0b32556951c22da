// simulator/engine.cpp - the ranks' clocks, and their collectives and messages.
#include <fmt/ranges.h>

#include <cmath>
#include <deque>
#include <exception>
#include <ranges>
#include <semaphore>
#include <thread>

#include "common/base/exit_codes.hpp"
#include "common/base/parse.hpp"
#include "simulator/simulator.hpp"

namespace ddp::sim {

/// A rank's part of a collective, or its end of a message.
struct Call {
  const Operation* operation = &kBarrier;
  int64_t bytes = 0;
  int other = 0;  ///< root of a broadcast, or the other rank of a message
  std::vector<float> values{};  ///< values of a send, and of its recv once it is done
  std::span<float> target{};  ///< for a recv: memory for the values
  double issued_us = 0;
  std::optional<double> end_us{};  ///< set once it is done
  bool is_waited_for = false;

  bool is(const Operation& one) const { return operation == &one; }
  bool is_message() const { return is(kSend) || is(kRecv); }
  bool meets(const Call& call) const {
    return is(*call.operation) && bytes == call.bytes && other == call.other;
  }
  Traffic traffic(int ranks) const { return operation->traffic(ranks, static_cast<double>(bytes)); }
  std::string with_other(const char* name) const {
    return name + fmt::format(fmt::runtime(operation->of_other), other);
  }
  std::string text() const {
    return fmt::format("{} of {} bytes", with_other(operation->name), bytes);
  }
  std::string span_name() const { return with_other(is_message() ? "message" : operation->name); }
};

namespace {

/// Thrown through a rank's program to end it when no rank can go on.
struct Cancelled {};

/// Direction of a rank's link: the calls that wait for it, and the time since which it is free.
struct Lane {
  std::deque<Call*> queue;
  double free_us = 0;
  Call* head() const { return queue.empty() ? nullptr : queue.front(); }
};

struct Rank {
  std::deque<Call> calls;
  Lane out;
  Lane in;
  double now_us = 0;
  Call* awaited = nullptr;  ///< call that the rank waits for
  bool has_returned = false;
  RankRecord record;
  std::binary_semaphore may_run{0};
  std::thread thread;

  bool is_stuck() const { return awaited != nullptr && !awaited->end_us; }
};

class Engine;
thread_local Engine* engine = nullptr;  // engine of this thread's rank
thread_local int own_index = 0;

/// Runs ranks as threads, one at a time: always the first rank that can go on, until it waits for a
/// call that has no end yet. The ranks' times do not depend on that order.
class Engine {
 public:
  Engine(int nprocs, const Network& costs, const std::map<std::string, double>& parameters)
      : network(costs), ranks(static_cast<std::size_t>(nprocs)), given(parameters) {}

  Simulation run(const std::function<void()>& program) {
    for (int index = 0; index < world_size(); ++index) {
      rank(index).thread = std::thread([this, index, &program] { thread_main(index, program); });
    }
    const auto can_go_on = [](const Rank& one) { return !one.has_returned && !one.is_stuck(); };
    for (auto next = ranks.begin(); next != ranks.end() && !error_;
         next = std::ranges::find_if(ranks, can_go_on)) {
      next->may_run.release();
      turn_is_over_.acquire();
    }
    is_cancelled_ = true;  // ends ranks that wait for ever
    for (Rank& one : ranks) {
      one.may_run.release();
      one.thread.join();
    }
    if (error_) {
      std::rethrow_exception(error_);
    }
    if (std::ranges::any_of(ranks, &Rank::is_stuck)) {
      simulation.deadlock = deadlock();
    }
    const auto names = std::views::keys(simulation.parameters);
    for (const auto& [name, value] : given) {
      if (!simulation.parameters.contains(name) && simulation.deadlock.empty()) {
        refuse("--set: got {}, expected one of: {}", quote(name), fmt::join(names, ", "));
      }
    }
    for (Rank& one : ranks) {
      const auto lost = std::ranges::find(one.calls, false, &Call::is_waited_for);
      if (lost != one.calls.end()) {
        simulation.complaints.push_back(
            fmt::format("rank {} never waited for its {}", simulation.ranks.size(), lost->text()));
      }
      one.record.end_us = one.now_us;
      simulation.ranks.push_back(std::move(one.record));
    }
    return std::move(simulation);
  }

  Handle start(Call call) {
    Rank& self = rank(own_index);
    if (call.bytes < 0 || call.other < 0 || call.other >= world_size() ||
        (call.is_message() && call.other == own_index)) {
      refuse("rank {}: got {}, expected 0 bytes or more and {} 0 to {}", own_index, call.text(),
             call.is_message() ? "another rank of" : "a root from", world_size() - 1);
    }
    call.issued_us = self.now_us;
    Call& added = self.calls.emplace_back(std::move(call));
    if (!added.is(kRecv)) {
      self.out.queue.push_back(&added);
    }
    if (!added.is(kSend)) {
      self.in.queue.push_back(&added);
    }
    // Finishes calls at the heads of lanes as long as calls meet.
    for (bool any = true; any;) {
      any = meet_in_collective();
      for (int sender = 0; sender < world_size(); ++sender) {
        any = meet_in_message(sender) || any;
      }
    }
    return {&added};
  }

  void wait(Call& call) {
    Rank& self = rank(own_index);
    if (call.is_waited_for) {
      refuse("wait: got the handle of {} twice on rank {}", call.text(), own_index);
    }
    call.is_waited_for = true;
    if (!call.end_us) {
      self.awaited = &call;
      turn_is_over_.release();
      wait_for_turn(self);
      self.awaited = nullptr;
    }
    if (*call.end_us > self.now_us) {
      self.record.waiting.push_back({self.now_us, *call.end_us, call.span_name()});
      self.record.waited_us += *call.end_us - self.now_us;
      self.now_us = *call.end_us;
    }
    if (call.is(kRecv)) {
      std::ranges::copy(call.values, call.target.begin());
    }
  }

  Rank& rank(int index) { return ranks[static_cast<std::size_t>(index)]; }
  int world_size() const { return static_cast<int>(ranks.size()); }

  const Network& network;
  std::vector<Rank> ranks;
  const std::map<std::string, double>& given;  ///< parameters of --set
  Simulation simulation;

 private:
  void thread_main(int index, const std::function<void()>& program) {
    engine = this;
    own_index = index;
    Rank& self = rank(own_index);
    try {
      wait_for_turn(self);
      program();
      self.has_returned = true;
    } catch (const Cancelled&) {
      return;
    } catch (...) {
      error_ = std::current_exception();
    }
    turn_is_over_.release();
  }

  void wait_for_turn(Rank& self) {
    self.may_run.acquire();
    if (is_cancelled_) {
      throw Cancelled();
    }
  }

  void finish(int index, Call& call, double begin_us, double end_us) {
    Rank& self = rank(index);
    call.end_us = end_us;
    const Traffic sent = call.traffic(world_size());
    self.record.sent.messages += sent.messages;
    self.record.sent.bytes += sent.bytes;
    self.record.communication.push_back({begin_us, end_us, call.span_name()});
    for (Lane* const lane : {&self.out, &self.in}) {
      if (lane->head() == &call) {
        lane->queue.pop_front();
        lane->free_us = end_us;
      }
    }
  }

  /// @return true if the same collective was next on every rank
  bool meet_in_collective() {
    double begin_us = 0;
    std::vector<Call*> calls;
    for (Rank& one : ranks) {
      calls.push_back(one.out.head());
      if (calls.back() == nullptr || calls.back() != one.in.head() ||
          !calls.back()->meets(*calls.front())) {
        return false;
      }
      begin_us = std::max({begin_us, calls.back()->issued_us, one.out.free_us, one.in.free_us});
    }
    const double end_us = begin_us + network.us(calls.front()->traffic(world_size()));
    for (int index = 0; index < world_size(); ++index) {
      finish(index, *calls[static_cast<std::size_t>(index)], begin_us, end_us);
    }
    return true;
  }

  /// @return true if the next call of `sender` is a send and its receiver's next call is the recv
  bool meet_in_message(int sender) {
    Rank& from = rank(sender);
    Call* const sent = from.out.head();
    if (sent == nullptr || !sent->is(kSend)) {
      return false;
    }
    Rank& to = rank(sent->other);
    Call* const received = to.in.head();
    if (received == nullptr || !received->is(kRecv) || received->other != sender) {
      return false;
    }
    if (received->bytes != sent->bytes) {
      throw Error(ExitCode::kTrainingFailed,
                  fmt::format("rank {} sends {} bytes to rank {}, which receives {}", sender,
                              sent->bytes, sent->other, received->bytes));
    }
    const double begin_us =
        std::max({sent->issued_us, received->issued_us, from.out.free_us, to.in.free_us});
    const double end_us = begin_us + network.us(sent->traffic(world_size()));
    received->values = std::move(sent->values);
    finish(sender, *sent, begin_us, end_us);
    finish(sent->other, *received, begin_us, end_us);
    return true;
  }

  /// "deadlock at 500 us: rank 0 waits for barrier of 0 bytes; rank 1 returned"
  std::string deadlock() const {
    double at_us = 0;
    std::vector<std::string> texts;
    for (const Rank& one : ranks) {
      std::string text = "returned";
      if (one.is_stuck()) {
        at_us = std::max(at_us, one.now_us);
        const Call* const head = (one.awaited->is(kRecv) ? one.in : one.out).head();
        text = "waits for " + one.awaited->text() +
               (head == one.awaited ? "" : " behind its " + head->text());
      }
      texts.push_back(fmt::format("rank {} {}", texts.size(), text));
    }
    return fmt::format("deadlock at {:.6g} us: {}", at_us, fmt::join(texts, "; "));
  }

  std::binary_semaphore turn_is_over_{0};
  bool is_cancelled_ = false;
  std::exception_ptr error_;
};

Engine& current() {
  if (engine == nullptr) {
    throw std::logic_error("ddp::sim was called outside of a rank's program");
  }
  return *engine;
}

}  // namespace

int my_rank() {
  current();
  return own_index;
}
int world_size() {
  return current().world_size();
}
void compute(double us, const std::string& name) {
  Rank& self = current().rank(own_index);
  if (!(us >= 0) || !std::isfinite(us)) {
    refuse("compute: got {} us on rank {}, expected 0 or more", us, own_index);
  }
  self.record.compute.push_back({self.now_us, self.now_us + us, name});
  self.now_us += us;
}
Handle all_reduce(int64_t bytes) {
  return current().start({.operation = &kAllReduce, .bytes = bytes});
}
Handle reduce_scatter(int64_t bytes) {
  return current().start({.operation = &kReduceScatter, .bytes = bytes});
}
Handle all_gather(int64_t bytes) {
  return current().start({.operation = &kAllGather, .bytes = bytes});
}
Handle broadcast(int64_t bytes, int root) {
  return current().start({.operation = &kBroadcast, .bytes = bytes, .other = root});
}
Handle barrier() {
  return current().start({.operation = &kBarrier});
}
Handle send(int to, std::span<const float> values) {
  return current().start({.operation = &kSend,
                          .bytes = static_cast<int64_t>(values.size_bytes()),
                          .other = to,
                          .values = {values.begin(), values.end()}});
}
Handle recv(int from, std::span<float> values) {
  return current().start({.operation = &kRecv,
                          .bytes = static_cast<int64_t>(values.size_bytes()),
                          .other = from,
                          .target = values});
}
void wait(Handle handle) {
  current().wait(*handle.call);
}
double parameter(const std::string& name, double initial, const std::vector<double>& choices) {
  const auto found = current().given.find(name);
  const double value = found == current().given.end() ? initial : found->second;
  std::vector<double>& values = current().simulation.parameters[name] = {value, initial};
  values.insert(values.end(), choices.begin(), choices.end());
  return value;
}
void check(bool holds, const std::string& what) {
  if (!holds) {
    current().simulation.complaints.push_back(
        fmt::format("rank {}: check failed: {}", own_index, what));
  }
}

Simulation run_ranks(const std::function<void()>& rank, int nprocs, const Network& network,
                     const std::map<std::string, double>& parameters) {
  return Engine(nprocs, network, parameters).run(rank);
}

}  // namespace ddp::sim
