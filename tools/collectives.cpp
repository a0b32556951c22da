// collectives - the lab: runs one collective over a few ranks and prints every rank's tensor before
// and after it.
//
//   run:  build/bin/collectives all_reduce --nprocs 3
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/prctl.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <iostream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "common/base/command_line.hpp"
#include "common/base/refuse.hpp"
#include "common/launch/run_main.hpp"
#include "common/launch/spawn.hpp"
#include "common/parallel/process_group.hpp"

namespace ddp {
namespace {

constexpr int kMaxRanks = 16;  // of which a terminal still shows the tensors
constexpr int64_t kMaxSize = 64;
constexpr const char* kAutomatic = "auto";

/// What a collective takes, and where it can be had.
struct Collective {
  bool has_root = false;
  bool has_op = false;
  bool only_gloo = false;  ///< our own backends have what DistributedDataParallel needs
};

const std::vector<std::pair<std::string, Collective>> kCollectives = {
    {"broadcast", {.has_root = true}},
    {"all_reduce", {.has_op = true}},
    {"reduce", {.has_root = true, .has_op = true, .only_gloo = true}},
    {"all_gather", {}},
    {"gather", {.has_root = true}},
    {"scatter", {.has_root = true, .only_gloo = true}},
    {"reduce_scatter", {.has_op = true}},
    {"all_to_all", {.only_gloo = true}},
    {"send_recv", {.only_gloo = true}},
    {"barrier", {}},
};

const std::map<std::string, c10d::ReduceOp::RedOpType> kOps = {
    {"sum", c10d::ReduceOp::SUM},         {"mean", c10d::ReduceOp::AVG},
    {"product", c10d::ReduceOp::PRODUCT}, {"min", c10d::ReduceOp::MIN},
    {"max", c10d::ReduceOp::MAX},
};

struct LabOptions {
  std::string program;
  std::string name = "all_reduce";
  Collective collective;
  std::optional<int> nprocs;
  std::string backend = kAutomatic;
  int64_t size = 2;  ///< elements of the smallest tensor
  std::optional<int> root;
  std::string op;
};

LabOptions parse_lab_options(int argc, char** argv) {
  LabOptions options;
  options.program = program_name(argc > 0 ? argv[0] : nullptr);
  Choices names;
  for (const auto& [name, collective] : kCollectives) {
    names.push_back(name);
  }
  CommandLine line(options.program,
                   "Runs one collective over a few ranks and prints every rank's tensor before and "
                   "after it.",
                   "collectives " DDP_VERSION,
                   "Examples: collectives all_reduce --nprocs 3; collectives gather --root 1;\n"
                   "          mpirun -np 3 collectives all_gather --backend mpi\n"
                   "Exit codes: 0 done, 1 the collective failed, 2 command line or environment.",
                   40);
  OptionGroup group = line.group("Options");
  std::string name;
  group.value(
      "collective,--collective", "NAME", "", join(names),
      [&](const auto&, const auto& text) { name = check_choice("collective", text, names); });
  group.integer<std::optional<int>, int>("--nprocs", options.nprocs, 1, kMaxRanks, "2",
                                         "ranks; under a launcher those that it started");
  group.choice("--backend", options.backend, {kAutomatic, "shm", "hierarchical", "gloo", "mpi"},
               "what carries it; auto: as the stages, and gloo for what is gloo's alone");
  group.integer<int64_t, int64_t>("--size", options.size, 1, kMaxSize, "2",
                                  "elements of a rank's tensor, or of each of its parts");
  group.integer<std::optional<int>, int>(
      "--root", options.root, 0, kMaxRanks - 1, "0",
      "the rank that gives or gets; of broadcast, reduce, gather, scatter");
  Choices ops;
  for (const char* const op : {"sum", "mean", "product", "min", "max"}) {
    ops.push_back(op);
  }
  std::string op;
  group.value("--op", "NAME", "sum", "of all_reduce, reduce, reduce_scatter: " + join(ops),
              [&](const auto& option, const auto& text) { op = check_choice(option, text, ops); });
  line.require({"collective"}, "--help", "all_reduce --nprocs 3");
  line.parse_strictly(argc, argv);

  options.name = name;
  options.collective =
      std::ranges::find(kCollectives, name, [](const auto& entry) { return entry.first; })->second;
  if (options.root && !options.collective.has_root) {
    refuse("--root: got {}, expected none: {} has no root", *options.root, name);
  }
  if (!op.empty() && !options.collective.has_op) {
    refuse("--op: got {}, expected none: {} computes nothing", op, name);
  }
  options.op = op.empty() ? "sum" : op;
  if (options.collective.only_gloo && options.backend == kAutomatic) {
    options.backend = "gloo";
  }
  if (options.collective.only_gloo && options.backend != "gloo") {
    refuse("--backend: got {}, expected gloo: it alone has {} here", options.backend, name);
  }
  return options;
}

/// @throws UsageError if the world is not what the command line says or is not one for it
void check_world(const LabOptions& options, int world_size, const std::string& launcher) {
  if (world_size != options.nprocs.value_or(world_size)) {
    refuse("--nprocs: got {}, expected {}, what {} started", *options.nprocs, world_size, launcher);
  }
  if (world_size > kMaxRanks) {
    refuse("got {} ranks ({}), expected at most {}", world_size, launcher, kMaxRanks);
  }
  if (options.root.value_or(0) >= world_size) {
    refuse("--root: got {}, expected 0 to {}", *options.root, world_size - 1);
  }
  if (options.backend == "mpi" && launcher == "spawn") {
    refuse(
        "--backend: got mpi, expected mpirun to start the ranks: mpirun -np {} {} {} --backend mpi",
        world_size, options.program, options.name);
  }
}

/// "1 2 | 11 12": elements, with bars between what belongs to different ranks.
std::string as_text(const torch::Tensor& tensor, int64_t part) {
  std::vector<std::string> words;
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    if (i > 0 && i % part == 0) {
      words.emplace_back("|");
    }
    words.push_back(fmt::format("{:g}", tensor.const_data_ptr<float>()[i]));
  }
  return fmt::format("{}", fmt::join(words, " "));
}

/// What a rank tells rank 0 of a tensor when it has none, or one that means nothing.
constexpr const char* kNone = "-";
constexpr const char* kUnspecified = "(left undefined)";

struct BeforeAndAfter {
  std::string before;
  std::string after;
};

/// A rank of the job, and the tensors that it begins with.
class Lab {
 public:
  Lab(const LabOptions& options, const ProcessGroup& group)
      : options_(options),
        group_(group),
        rank_(group.rank()),
        world_size_(group.world_size()),
        root_(options.root.value_or(0)) {}

  BeforeAndAfter run() {
    const std::string& name = options_.name;
    if (name == "barrier") {
      return barrier();
    }
    const int64_t size = options_.size;
    // Elements of as many ranks, where each rank gives or gets a part of the tensor.
    const bool gives_parts =
        name == "reduce_scatter" || name == "all_to_all" || (name == "scatter" && rank_ == root_);
    const bool gives_nothing = name == "scatter" && rank_ != root_;
    const bool gets_parts =
        name == "all_gather" || name == "all_to_all" || (name == "gather" && rank_ == root_);
    torch::Tensor before = values(gives_parts ? size * world_size_ : size);
    torch::Tensor after = torch::full(gets_parts ? size * world_size_ : size, std::nan(""));
    BeforeAndAfter said{gives_nothing ? kNone : as_text(before, size), ""};
    call(before, after);
    const bool is_in_place = name == "broadcast" || name == "all_reduce" || name == "reduce";
    said.after = as_text(is_in_place ? before : after, size);
    if (rank_ != root_ && name == "gather") {
      said.after = kNone;
    }
    if (rank_ != root_ && name == "reduce") {
      said.after = kUnspecified;
    }
    return said;
  }

 private:
  /// Rank 0 has 1 2 3, rank 1 has 11 12 13: each number tells whose it was. In steps of 100 where
  /// 10 would not do.
  torch::Tensor values(int64_t count) const {
    int64_t step = 10;
    while (step < options_.size * world_size_) {
      step *= 10;
    }
    return torch::arange(1, count + 1, torch::kFloat) + static_cast<double>(step * rank_);
  }

  std::vector<torch::Tensor> parts(const torch::Tensor& tensor) const {
    return tensor.chunk(world_size_);
  }

  c10d::ReduceOp::RedOpType op() const {
    return divides_itself() ? c10d::ReduceOp::SUM : kOps.at(options_.op);
  }
  /// Where the backend has no mean, a rank divides the sum, as DistributedDataParallel does.
  bool divides_itself() const { return options_.op == "mean" && !group_.has_average(); }

  void call(torch::Tensor& before, torch::Tensor& after) const {
    const std::string& name = options_.name;
    c10d::ProcessGroup& c10d_group = *group_.c10d_group();
    std::vector<torch::Tensor> whole{before};
    std::vector<torch::Tensor> result{after};
    if (name == "broadcast") {
      group_.broadcast(before, root_);
    } else if (name == "all_reduce") {
      c10d::AllreduceOptions how;
      how.reduceOp = op();
      c10d_group.allreduce(whole, how)->wait();
    } else if (name == "reduce") {
      c10d::ReduceOptions how;
      how.reduceOp = op();
      how.rootRank = root_;
      c10d_group.reduce(whole, how)->wait();
    } else if (name == "all_gather") {
      std::vector<std::vector<torch::Tensor>> places{parts(after)};
      c10d_group.allgather(places, whole)->wait();
    } else if (name == "gather") {
      std::vector<std::vector<torch::Tensor>> places;
      if (rank_ == root_) {
        places.push_back(parts(after));
      }
      c10d::GatherOptions how;
      how.rootRank = root_;
      c10d_group.gather(places, whole, how)->wait();
    } else if (name == "scatter") {
      std::vector<std::vector<torch::Tensor>> gifts;
      if (rank_ == root_) {
        gifts.push_back(parts(before));
      }
      c10d::ScatterOptions how;
      how.rootRank = root_;
      c10d_group.scatter(result, gifts, how)->wait();
    } else if (name == "reduce_scatter") {
      std::vector<std::vector<torch::Tensor>> terms{parts(before)};
      c10d::ReduceScatterOptions how;
      how.reduceOp = op();
      c10d_group.reduce_scatter(result, terms, how)->wait();
    } else if (name == "all_to_all") {
      std::vector<int64_t> equal_parts;
      c10d_group.alltoall_base(after, before, equal_parts, equal_parts)->wait();
    } else if (world_size_ == 1) {  // send_recv to itself, which no backend carries
      after.copy_(before);
    } else {
      // Both are started before either is waited for: with all ranks in send() none would receive.
      const int next = (rank_ + 1) % world_size_;
      const int previous = (rank_ + world_size_ - 1) % world_size_;
      const auto sent = c10d_group.send(whole, next, /*tag=*/0);
      const auto received = c10d_group.recv(result, previous, /*tag=*/0);
      received->wait();
      sent->wait();
    }
    if (divides_itself() && options_.collective.has_op) {
      (name == "reduce_scatter" ? after : before).div_(world_size_);
    }
  }

  /// Each rank counts itself in the store before, and reads the count after.
  BeforeAndAfter barrier() const {
    const std::string key = group_.exchange_key("barrier");
    group_.store()->add(key, 1);
    group_.barrier();
    return {"has come",
            fmt::format("knows that {} of {} have", group_.store()->add(key, 0), world_size_)};
  }

  const LabOptions& options_;
  const ProcessGroup& group_;
  int rank_;
  int world_size_;
  int root_;
};

/// What one rank sends.
struct Sent {
  int64_t messages = 0;
  double bytes = 0;
};

/// By rank. Note [Ring and tree]: in a ring a rank sends to the next one only, and what is reduced
/// goes round in as many parts as there are ranks; a tree here is binomial: in each round whoever
/// has something sends it to one that has nothing, or the other way round.
/// @param bytes of one rank's tensor, or of each of its parts
std::vector<Sent> sent_in_ring(const std::string& name, int ranks, int root, double bytes) {
  const double n = ranks;
  std::vector<Sent> sent(static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    Sent& own = sent[static_cast<size_t>(rank)];
    const int from_root = (rank - root + ranks) % ranks;
    if (name == "all_reduce") {
      own = {2 * (ranks - 1), 2 * (n - 1) / n * bytes};
    } else if (name == "reduce_scatter" || name == "all_gather" || name == "all_to_all") {
      own = {ranks - 1, (n - 1) * bytes};
    } else if (name == "send_recv") {
      own = {ranks > 1 ? 1 : 0, ranks > 1 ? bytes : 0};
    } else if (name == "barrier") {
      own = {2 * (ranks - 1), 0};
    } else if (name == "broadcast" || name == "reduce") {
      // Along the ring from the root, or towards it: all but one send it on.
      const bool is_end = name == "broadcast" ? from_root == ranks - 1 : from_root == 0;
      own = {is_end ? 0 : 1, is_end ? 0 : bytes};
    }
  }
  return sent;
}

/// As above; empty where a tree is of no use, since every byte has another place to go.
std::vector<Sent> sent_in_tree(const std::string& name, int ranks, int root, double bytes) {
  const bool up = name == "reduce" || name == "all_reduce" || name == "gather" || name == "barrier";
  const bool down =
      name == "broadcast" || name == "all_reduce" || name == "scatter" || name == "barrier";
  if (!up && !down) {
    return {};
  }
  const bool carries_parts = name == "gather" || name == "scatter";
  std::vector<Sent> sent(static_cast<size_t>(ranks));
  for (int from_root = 1; from_root < ranks; ++from_root) {
    // Its parent is where its lowest bit is 0; below it are those that differ in lower bits.
    const int lowest_bit = from_root & -from_root;
    const int below = std::min(lowest_bit, ranks - from_root);
    const double size = name == "barrier" ? 0 : carries_parts ? below * bytes : bytes;
    Sent& own = sent[static_cast<size_t>((from_root + root) % ranks)];
    Sent& parent = sent[static_cast<size_t>((from_root - lowest_bit + root) % ranks)];
    for (Sent* const sender : {up ? &own : nullptr, down ? &parent : nullptr}) {
      if (sender != nullptr) {
        sender->messages += 1;
        sender->bytes += size;
      }
    }
  }
  return sent;
}

std::string counted(int64_t messages) {
  return fmt::format("{} message{}", messages, messages == 1 ? "" : "s");
}

/// "each rank 4 messages (10.7 bytes)", or by rank where they differ.
std::string described(const std::vector<Sent>& sent) {
  std::vector<std::string> texts;
  bool all_alike = true;
  for (size_t rank = 0; rank < sent.size(); ++rank) {
    const Sent& own = sent[rank];
    all_alike = all_alike && own.messages == sent[0].messages && own.bytes == sent[0].bytes;
    texts.push_back(
        fmt::format("rank {} {} ({:.4g} bytes)", rank, counted(own.messages), own.bytes));
  }
  return all_alike ? "each " + texts[0].replace(4, 2, "")
                   : fmt::format("{}", fmt::join(texts, ", "));
}

/// How many messages follow one another in a binomial tree.
int tree_depth(int ranks) {
  return static_cast<int>(std::bit_width(static_cast<unsigned>(ranks - 1)));
}

std::string traffic(const LabOptions& options, int ranks) {
  const int root = options.root.value_or(0);
  const double bytes = static_cast<double>(options.size) * sizeof(float);
  const std::string& name = options.name;
  std::vector<std::string> ways;
  if (name == "all_to_all" || name == "send_recv") {
    ways.push_back("directly: " + described(sent_in_ring(name, ranks, root, bytes)));
  } else if (name != "gather" && name != "scatter") {
    ways.push_back("in a ring: " + described(sent_in_ring(name, ranks, root, bytes)));
  }
  const std::vector<Sent> tree = sent_in_tree(name, ranks, root, bytes);
  if (!tree.empty()) {
    const int way = tree_depth(ranks) * (name == "all_reduce" || name == "barrier" ? 2 : 1);
    ways.push_back(fmt::format("in a tree, {} deep: {}", way, described(tree)));
  }
  return fmt::format("Sent {}.", fmt::join(ways, "; "));
}

std::string what_happened(const LabOptions& options, const ProcessGroup& group) {
  const int root = options.root.value_or(0);
  const std::string& name = options.name;
  const std::string divided =
      options.op == "mean" && !group.has_average() ? ", a sum that each rank divided" : "";
  if (name == "broadcast") {
    return fmt::format("Every rank now has what rank {} had.", root);
  }
  if (name == "all_reduce") {
    return fmt::format("Every rank now has the {} of all ranks' tensors, element by element{}.",
                       options.op, divided);
  }
  if (name == "reduce") {
    return fmt::format("Rank {} alone now has the {} of all ranks' tensors, element by element{}.",
                       root, options.op, divided);
  }
  if (name == "all_gather") {
    return "Every rank now has all ranks' tensors, one after the other.";
  }
  if (name == "gather") {
    return fmt::format("Rank {} alone now has all ranks' tensors, one after the other.", root);
  }
  if (name == "scatter") {
    return fmt::format("Rank r now has part r of what rank {} had.", root);
  }
  if (name == "reduce_scatter") {
    return fmt::format("Rank r now has part r of the {} of all ranks' tensors{}.", options.op,
                       divided);
  }
  if (name == "all_to_all") {
    return "Rank r now has part r of every rank's tensor, one after the other.";
  }
  if (name == "send_recv") {
    return group.world_size() == 1
               ? "The only rank kept its tensor."
               : "Every rank sent its tensor to the next rank, the last one to rank 0.";
  }
  return "No rank left before all had come.";
}

/// "[ 1  2 | 11 12]": numbers as wide as the widest of the column.
std::vector<std::string> column(const std::string& title, const std::vector<std::string>& texts) {
  const auto is_tensor = [](const std::string& text) {
    return text != kNone && text.find_first_not_of("0123456789.-+e| ") == std::string::npos;
  };
  size_t width = 0;
  std::vector<std::vector<std::string>> rows;  // words of tensors
  for (const std::string& text : texts) {
    std::vector<std::string>& words = rows.emplace_back();
    std::istringstream stream(is_tensor(text) ? text : "");
    for (std::string word; stream >> word;) {
      width = std::max(width, word.size());
      words.push_back(word);
    }
  }
  std::vector<std::string> lines{title};
  for (size_t row = 0; row < rows.size(); ++row) {
    std::string line;
    for (const std::string& word : rows[row]) {
      line += (line.empty() ? "" : " ") + (word == "|" ? word : fmt::format("{:>{}}", word, width));
    }
    lines.push_back(rows[row].empty() ? texts[row] : "[" + line + "]");
  }
  size_t widest = 0;
  for (const std::string& line : lines) {
    widest = std::max(widest, line.size());
  }
  for (std::string& line : lines) {
    line.resize(widest, ' ');
  }
  return lines;
}

std::string report(const LabOptions& options, const ProcessGroup& group,
                   const std::vector<std::string>& texts) {
  const auto ranks = static_cast<int>(texts.size());
  std::vector<std::string> befores;
  std::vector<std::string> afters;
  for (const std::string& text : texts) {
    const size_t newline = text.find('\n');
    befores.push_back(text.substr(0, newline));
    afters.push_back(text.substr(newline + 1));
  }
  const std::vector<std::string> before = column("before", befores);
  const std::vector<std::string> after = column("after", afters);
  std::string table = fmt::format("{}{}, {} rank{}, backend {}\n\n", options.name,
                                  options.collective.has_op ? " " + options.op : "", ranks,
                                  ranks == 1 ? "" : "s", group.backend_name());
  for (int row = 0; row <= ranks; ++row) {
    std::string line =
        fmt::format("{:<4}  {}  {}", row == 0 ? "rank" : std::to_string(row - 1),
                    before[static_cast<size_t>(row)], after[static_cast<size_t>(row)]);
    line.erase(line.find_last_not_of(' ') + 1);
    table += line + "\n";
  }
  return table + "\n" + what_happened(options, group) + "\n" + traffic(options, ranks) + "\n";
}

void run_rank(const LabOptions& options, const LaunchEnvironment& environment) {
  check_world(options, environment.world_size, environment.launcher);
  ProcessGroupOptions group_options;
  group_options.backend = options.backend;
  group_options.settings = fmt::format("collective {}\nsize {}\nroot {}\nop {}", options.name,
                                       options.size, options.root.value_or(0), options.op);
  init_process_group(environment, torch::kCPU, group_options);
  const ProcessGroup& group = default_process_group();
  const BeforeAndAfter own = Lab(options, group).run();
  std::vector<std::string> texts;
  group.verify("tensors", own.before + "\n" + own.after,
               [&](const std::vector<std::string>& all) { return texts = all, std::string(); });
  if (environment.rank == 0) {
    std::cout << report(options, group, texts) << std::flush;
  }
  destroy_process_group();
}

int run(int argc, char** argv, std::string& who) {
  const LabOptions options = parse_lab_options(argc, argv);
  Options stage;
  stage.program = options.program;
  stage.launch = Launch::kLauncher;
  const LaunchEnvironment environment = read_launch_environment(stage);
  if (environment.launcher == "none") {
    const int ranks = options.nprocs.value_or(2);
    check_world(options, ranks, "spawn");
    return start_ranks(options.program, {argv, argv + argc}, ranks);
  }
  if (environment.launcher == "spawn") {
    // It was executed as /proc/self/exe, and would be called "exe" in ps and top.
    prctl(PR_SET_NAME, options.program.c_str());
  }
  if (environment.world_size > 1) {
    who = fmt::format("[rank {}] ", environment.rank);
  }
  run_rank(options, environment);
  return static_cast<int>(ExitCode::kDone);
}

}  // namespace
}  // namespace ddp

int main(int argc, char** argv) {
  return ddp::internal::guarded(argc, argv,
                                [&](std::string& who) { return ddp::run(argc, argv, who); });
}
