// simulator/engine.cpp - the ranks' clocks, and who meets whom.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>

#include "common/base/parse.hpp"
#include "common/base/refuse.hpp"
#include "simulator/simulator.hpp"

namespace ddp::sim {
namespace {

constexpr int kMaxRanks = 1024;
constexpr std::size_t kMaxCalls = 1'000'000;  // of a rank: more is a loop without an end

/// Thrown through a rank's program when another rank has failed.
struct Cancelled {};

/// One rank's part of a collective, or its end of a message.
struct Call {
  Kind kind = Kind::kBarrier;
  int64_t bytes = 0;
  int root = 0;  ///< of a collective that has one
  int peer = 0;  ///< of send and recv
  std::string name{};
  double issued_us = 0;
  double end_us = 0;
  bool is_done = false;
  bool is_waited_for = false;
  std::vector<float> values{};  ///< of a send that carries numbers, and of its recv once it is done
  std::span<float> target{};  ///< of a recv

  bool is_message() const { return kind == Kind::kSend || kind == Kind::kRecv; }
  bool meets(const Call& other) const {
    return kind == other.kind && bytes == other.bytes && root == other.root;
  }
  std::string text() const {
    if (is_message()) {
      return fmt::format("{} {} rank {} ({} bytes)", to_string(kind),
                         kind == Kind::kSend ? "to" : "from", peer, bytes);
    }
    if (kind == Kind::kBarrier) {
      return "barrier";
    }
    const bool has_root = kind == Kind::kBroadcast || kind == Kind::kReduce ||
                          kind == Kind::kGather || kind == Kind::kScatter;
    return fmt::format("{}{} of {} bytes", to_string(kind),
                       has_root ? fmt::format(" with root {}", root) : "", bytes);
  }
};

/// One direction of a rank's link: what waits for it, and since when it is free.
struct Lane {
  std::deque<std::size_t> queue;  ///< of the rank's calls
  double free_us = 0;
};

enum class State : uint8_t { kReady, kWaiting, kReturned };

struct Rank {
  std::vector<Call> calls;
  Lane out;
  Lane in;
  double now_us = 0;
  int64_t bytes = 0;
  std::size_t count = 0;  ///< of calls of any kind
  State state = State::kReady;
  std::size_t awaited = 0;  ///< while it waits
  RankRecord record;
  std::thread thread;
};

std::string ranks_text(const std::vector<int>& ranks) {
  std::vector<std::string> texts;
  for (std::size_t begin = 0; begin < ranks.size();) {
    std::size_t end = begin + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) {
      ++end;
    }
    texts.push_back(end - begin < 3
                        ? fmt::format("{}", fmt::join(&ranks[begin], &ranks[end - 1] + 1, ", "))
                        : fmt::format("{} to {}", ranks[begin], ranks[end - 1]));
    begin = end;
  }
  return fmt::format("rank{} {}", ranks.size() > 1 ? "s" : "", fmt::join(texts, ", "));
}

/// Ranks are threads of which one runs at a time: always the first that can, until it waits for
/// something that has no end yet. Their times do not depend on that order.
class Engine {
 public:
  Engine(int nprocs, const Network& network,
         const std::vector<std::pair<std::string, double>>& parameters)
      : network_(network), ranks_(static_cast<std::size_t>(nprocs)) {
    for (const auto& [name, value] : parameters) {
      parameters_[name] = value;
    }
  }

  Simulation run(const std::function<void()>& program);

  Rank& rank(int index) { return ranks_[static_cast<std::size_t>(index)]; }
  int world_size() const { return static_cast<int>(ranks_.size()); }

  void compute(int index, double us, const std::string& name) {
    Rank& self = counted(index);
    if (!(us >= 0) || !std::isfinite(us)) {
      refuse("compute: got {} us on rank {}, expected 0 or more", us, index);
    }
    self.record.compute.push_back({self.now_us, self.now_us + us, name});
    self.now_us += us;
  }

  Handle start(int index, Call call) {
    Rank& self = counted(index);
    if (call.bytes < 0) {
      refuse("{}: got {} bytes on rank {}, expected 0 or more", to_string(call.kind), call.bytes,
             index);
    }
    const int other = call.is_message() ? call.peer : call.root;
    if (other < 0 || other >= world_size() || (call.is_message() && other == index)) {
      refuse("{}: got {} {} on rank {}, expected {}0 to {}", to_string(call.kind),
             call.is_message() ? "rank" : "root", other, index,
             call.is_message() ? "another of " : "", world_size() - 1);
    }
    call.issued_us = self.now_us;
    const std::size_t number = self.calls.size();
    if (call.kind != Kind::kRecv) {
      self.out.queue.push_back(number);
    }
    if (call.kind != Kind::kSend) {
      self.in.queue.push_back(number);
    }
    self.calls.push_back(std::move(call));
    while (meet()) {
    }
    return Handle(number);
  }

  void wait(int index, std::size_t number) {
    Rank& self = counted(index);
    if (number >= self.calls.size() || self.calls[number].is_waited_for) {
      refuse("wait: got a handle on rank {} that {}, expected each once, on its own rank", index,
             number >= self.calls.size() ? "is not its own" : "was waited for before");
    }
    self.calls[number].is_waited_for = true;
    if (!self.calls[number].is_done) {
      self.state = State::kWaiting;
      self.awaited = number;
      give_turn_back(index);
    }
    const Call& call = self.calls[number];
    if (call.end_us > self.now_us) {
      self.record.waiting.push_back({self.now_us, call.end_us, call.name});
      self.now_us = call.end_us;
    }
    if (!call.target.empty()) {  // the sender may have told its size alone
      std::ranges::copy(call.values, call.target.begin());
    }
  }

  void change_memory(int index, int64_t bytes) {
    Rank& self = counted(index);
    if (self.bytes + bytes < 0) {
      throw Error(ExitCode::kTrainingFailed, fmt::format("rank {} frees {} bytes, but has only {}",
                                                         index, -bytes, self.bytes));
    }
    self.bytes += bytes;
    self.record.peak_bytes = std::max(self.record.peak_bytes, self.bytes);
    self.record.memory.push_back({self.now_us, self.bytes});
  }

  double parameter(const std::string& name, double initial) {
    asked_.insert(name);
    const auto found = parameters_.find(name);
    return found == parameters_.end() ? initial : found->second;
  }

  void complain(std::string what) { complaints_.push_back(std::move(what)); }

 private:
  Rank& counted(int index) {
    Rank& self = rank(index);
    if (++self.count > kMaxCalls) {
      throw Error(
          ExitCode::kTrainingFailed,
          fmt::format("rank {} made {} calls, expected a program that ends", index, kMaxCalls));
    }
    return self;
  }

  void thread_main(int index, const std::function<void()>& program);
  void give_turn_back(int index);
  void take_turns();
  void end_all();
  bool meet();
  bool meet_in_collective();
  bool meet_in_message(int sender);
  void finish(Rank& self, Call& call, double begin_us, double end_us);
  std::string deadlock() const;

  const Network& network_;
  std::vector<Rank> ranks_;
  std::map<std::string, double> parameters_;
  std::set<std::string> asked_;
  std::vector<std::string> complaints_;
  std::mutex mutex_;
  std::condition_variable turn_changed_;
  int turn_ = -1;  ///< the rank that runs; -1: none, the scheduler decides
  bool is_cancelled_ = false;
  std::exception_ptr error_;
};

thread_local Engine* engine = nullptr;
thread_local int own_rank = 0;

Engine& current() {
  if (engine == nullptr) {
    throw std::logic_error("ddp::sim was called outside of a rank's program");
  }
  return *engine;
}

void Engine::thread_main(int index, const std::function<void()>& program) {
  engine = this;
  own_rank = index;
  try {
    {
      std::unique_lock lock(mutex_);
      turn_changed_.wait(lock, [&] { return turn_ == index || is_cancelled_; });
      if (is_cancelled_) {
        return;
      }
    }
    program();
  } catch (const Cancelled&) {
    return;
  } catch (...) {
    error_ = error_ ? error_ : std::current_exception();  // only one rank runs
  }
  const std::lock_guard lock(mutex_);
  rank(index).state = State::kReturned;
  rank(index).record.end_us = rank(index).now_us;
  turn_ = -1;
  turn_changed_.notify_all();
}

void Engine::give_turn_back(int index) {
  std::unique_lock lock(mutex_);
  turn_ = -1;
  turn_changed_.notify_all();
  turn_changed_.wait(lock, [&] { return turn_ == index || is_cancelled_; });
  if (is_cancelled_) {
    throw Cancelled();
  }
}

/// Until no rank can go on.
void Engine::take_turns() {
  for (;;) {
    std::unique_lock lock(mutex_);
    const auto next = std::ranges::find_if(ranks_, [](const Rank& candidate) {
      return candidate.state == State::kReady ||
             (candidate.state == State::kWaiting && candidate.calls[candidate.awaited].is_done);
    });
    if (next == ranks_.end() || error_) {
      return;
    }
    next->state = State::kReady;
    turn_ = static_cast<int>(next - ranks_.begin());
    turn_changed_.notify_all();
    turn_changed_.wait(lock, [&] { return turn_ == -1; });
  }
}

void Engine::end_all() {
  {
    const std::lock_guard lock(mutex_);
    is_cancelled_ = true;
    turn_changed_.notify_all();
  }
  for (Rank& one : ranks_) {
    if (one.thread.joinable()) {
      one.thread.join();
    }
  }
}

void Engine::finish(Rank& self, Call& call, double begin_us, double end_us) {
  call.is_done = true;
  call.end_us = end_us;
  self.record.communication.push_back({begin_us, end_us, call.name});
  for (Lane* const lane : {call.kind == Kind::kRecv ? nullptr : &self.out,
                           call.kind == Kind::kSend ? nullptr : &self.in}) {
    if (lane != nullptr) {
      lane->queue.pop_front();
      lane->free_us = end_us;
    }
  }
}

/// @return whether a collective was next on every rank, and the same
bool Engine::meet_in_collective() {
  double begin_us = 0;
  const Call* first = nullptr;
  for (Rank& one : ranks_) {
    if (one.out.queue.empty() || one.in.queue.empty() ||
        one.out.queue.front() != one.in.queue.front()) {
      return false;
    }
    const Call& call = one.calls[one.out.queue.front()];
    first = first == nullptr ? &call : first;
    if (!call.meets(*first)) {
      return false;
    }
    begin_us = std::max({begin_us, call.issued_us, one.out.free_us, one.in.free_us});
  }
  const double end_us =
      begin_us +
      network_.collective_us(first->kind, static_cast<double>(first->bytes), world_size());
  for (int index = 0; index < world_size(); ++index) {
    Rank& one = rank(index);
    Call& call = one.calls[one.out.queue.front()];
    const Traffic traffic = Network::traffic(call.kind, static_cast<double>(call.bytes),
                                             world_size(), index, call.root);
    one.record.messages += traffic.messages;
    one.record.sent_bytes += traffic.bytes;
    finish(one, call, begin_us, end_us);
  }
  return true;
}

/// @return whether what `sender` sends next is what its receiver receives next
bool Engine::meet_in_message(int sender) {
  Rank& from = rank(sender);
  if (from.out.queue.empty()) {
    return false;
  }
  Call& sent = from.calls[from.out.queue.front()];
  if (sent.kind != Kind::kSend) {
    return false;
  }
  Rank& to = rank(sent.peer);
  if (to.in.queue.empty()) {
    return false;
  }
  Call& received = to.calls[to.in.queue.front()];
  if (received.kind != Kind::kRecv || received.peer != sender) {
    return false;
  }
  if (received.bytes != sent.bytes) {
    throw Error(ExitCode::kTrainingFailed,
                fmt::format("rank {} sends {} bytes to rank {}, which receives {}", sender,
                            sent.bytes, sent.peer, received.bytes));
  }
  const double begin_us =
      std::max({sent.issued_us, received.issued_us, from.out.free_us, to.in.free_us});
  const double end_us = begin_us + network_.message_us(static_cast<double>(sent.bytes));
  received.values = std::move(sent.values);
  sent.values.clear();
  from.record.messages += 1;
  from.record.sent_bytes += static_cast<double>(sent.bytes);
  finish(from, sent, begin_us, end_us);
  finish(to, received, begin_us, end_us);
  return true;
}

/// Lets those meet who stand at the head of their lanes. @return whether there were any
bool Engine::meet() {
  bool any = meet_in_collective();
  for (int index = 0; index < world_size(); ++index) {
    any = meet_in_message(index) || any;
  }
  return any;
}

std::string Engine::deadlock() const {
  double at_us = 0;
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  for (int index = 0; index < world_size(); ++index) {
    const Rank& one = ranks_[static_cast<std::size_t>(index)];
    std::string text = "returned";
    if (one.state == State::kWaiting) {
      at_us = std::max(at_us, one.now_us);
      const Call& call = one.calls[one.awaited];
      text = "waits for " + call.text();
      for (const Lane* const lane : {&one.out, &one.in}) {
        const bool uses_lane = std::ranges::find(lane->queue, one.awaited) != lane->queue.end();
        if (uses_lane && lane->queue.front() != one.awaited) {
          text += " behind its " + one.calls[lane->queue.front()].text();
          break;
        }
      }
    }
    const auto group =
        std::ranges::find(groups, text, [](const auto& entry) { return entry.first; });
    (group == groups.end() ? groups.emplace_back(text, std::vector<int>{}) : *group)
        .second.push_back(index);
  }
  std::vector<std::string> texts;
  for (auto& [text, ranks] : groups) {
    if (ranks.size() > 1 && text.starts_with("waits")) {
      text.replace(0, 5, "wait");
    }
    texts.push_back(fmt::format("{} {}", ranks_text(ranks), text));
  }
  return fmt::format("deadlock at {:.6g} us: {}", at_us, fmt::join(texts, "; "));
}

Simulation Engine::run(const std::function<void()>& program) {
  try {
    for (int index = 0; index < world_size(); ++index) {
      rank(index).thread = std::thread([this, index, &program] { thread_main(index, program); });
    }
    take_turns();
  } catch (...) {
    end_all();
    throw;
  }
  end_all();
  if (error_) {
    std::rethrow_exception(error_);
  }
  if (std::ranges::any_of(ranks_, [](const Rank& one) { return one.state == State::kWaiting; })) {
    throw Error(ExitCode::kTrainingFailed, deadlock());
  }
  for (const auto& [name, value] : parameters_) {
    if (!asked_.contains(name)) {
      refuse("--set: got {}, expected {}", quote(name),
             asked_.empty() ? "none: the program has no parameter"
                            : fmt::format("one of {}", fmt::join(asked_, ", ")));
    }
  }
  Simulation simulation;
  for (int index = 0; index < world_size(); ++index) {
    Rank& one = rank(index);
    for (const Call& call : one.calls) {
      if (!call.is_waited_for) {
        complaints_.push_back(fmt::format("rank {} never waited for its {}", index, call.text()));
        break;
      }
    }
    // In the order of time; of a send and a recv at once, which of them finished first here says
    // nothing.
    std::ranges::stable_sort(one.record.communication, [](const Span& left, const Span& right) {
      return std::pair(left.begin_us, right.name) < std::pair(right.begin_us, left.name);
    });
    simulation.ranks.push_back(std::move(one.record));
  }
  simulation.complaints = std::move(complaints_);
  return simulation;
}

Handle start(Kind kind, int64_t bytes, const std::string& name, int root = 0) {
  return current().start(own_rank, {.kind = kind, .bytes = bytes, .root = root, .name = name});
}

Handle start_message(Kind kind, int peer, int64_t bytes, std::span<const float> values,
                     std::span<float> target) {
  return current().start(own_rank, {.kind = kind,
                                    .bytes = bytes,
                                    .peer = peer,
                                    .name = to_string(kind),
                                    .values = {values.begin(), values.end()},
                                    .target = target});
}

}  // namespace

double RankRecord::waited_us() const {
  double sum = 0;
  for (const Span& span : waiting) {
    sum += span.end_us - span.begin_us;
  }
  return sum;
}

int my_rank() {
  current();
  return own_rank;
}
int world_size() {
  return current().world_size();
}
double now_us() {
  return current().rank(own_rank).now_us;
}
void compute(double us, const std::string& name) {
  current().compute(own_rank, us, name);
}
Handle all_reduce(int64_t bytes, const std::string& name) {
  return start(Kind::kAllReduce, bytes, name);
}
Handle reduce_scatter(int64_t bytes, const std::string& name) {
  return start(Kind::kReduceScatter, bytes, name);
}
Handle all_gather(int64_t bytes, const std::string& name) {
  return start(Kind::kAllGather, bytes, name);
}
Handle all_to_all(int64_t bytes, const std::string& name) {
  return start(Kind::kAllToAll, bytes, name);
}
Handle broadcast(int64_t bytes, int root, const std::string& name) {
  return start(Kind::kBroadcast, bytes, name, root);
}
Handle reduce(int64_t bytes, int root, const std::string& name) {
  return start(Kind::kReduce, bytes, name, root);
}
Handle gather(int64_t bytes, int root, const std::string& name) {
  return start(Kind::kGather, bytes, name, root);
}
Handle scatter(int64_t bytes, int root, const std::string& name) {
  return start(Kind::kScatter, bytes, name, root);
}
Handle barrier() {
  return start(Kind::kBarrier, 0, "barrier");
}
Handle send(int to, int64_t bytes) {
  return start_message(Kind::kSend, to, bytes, {}, {});
}
Handle recv(int from, int64_t bytes) {
  return start_message(Kind::kRecv, from, bytes, {}, {});
}
Handle send(int to, std::span<const float> values) {
  return start_message(Kind::kSend, to, static_cast<int64_t>(values.size_bytes()), values, {});
}
Handle recv(int from, std::span<float> values) {
  return start_message(Kind::kRecv, from, static_cast<int64_t>(values.size_bytes()), {}, values);
}
void wait(Handle handle) {
  current().wait(own_rank, handle.index());
}
void allocate(int64_t bytes) {
  if (bytes < 0) {
    refuse("allocate: got {} bytes, expected 0 or more", bytes);
  }
  current().change_memory(own_rank, bytes);
}
void free(int64_t bytes) {
  if (bytes < 0) {
    refuse("free: got {} bytes, expected 0 or more", bytes);
  }
  current().change_memory(own_rank, -bytes);
}
double parameter(const std::string& name, double initial) {
  return current().parameter(name, initial);
}
void check(bool holds, const std::string& what) {
  if (!holds) {
    current().complain(fmt::format("rank {}: not so: {}", own_rank, what));
  }
}

Simulation run_ranks(const std::function<void()>& rank, int nprocs, const Network& network,
                     const std::vector<std::pair<std::string, double>>& parameters) {
  if (nprocs < 1 || nprocs > kMaxRanks) {
    refuse("got {} ranks, expected 1 to {}", nprocs, kMaxRanks);
  }
  return Engine(nprocs, network, parameters).run(rank);
}

}  // namespace ddp::sim
