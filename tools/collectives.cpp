// collectives - the lab: runs a collective over a few ranks and prints every rank's tensor before
// and after it.
//
//   run:  build/bin/collectives all_reduce --nprocs 3
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "common/base/command_line.hpp"
#include "common/base/refuse.hpp"
#include "common/launch/run_main.hpp"
#include "common/launch/spawn.hpp"
#include "common/parallel/agreement.hpp"
#include "common/parallel/process_group.hpp"

namespace ddp {
namespace {

constexpr int kMaxRanks = 16;  // a terminal has room for their tensors
constexpr int64_t kMaxSize = 64;

enum : unsigned {
  kRoot = 1,
  kOp = 2,
  kOnlyGloo = 4,  // our own backends have only the collectives for DistributedDataParallel
};

struct Collective {
  const char* name;
  const char* sentence;
  unsigned traits;

  bool has_root() const { return (traits & kRoot) != 0; }
  bool has_op() const { return (traits & kOp) != 0; }
  bool only_gloo() const { return (traits & kOnlyGloo) != 0; }
};

constexpr Collective kCollectives[] = {
    {"broadcast", "Every rank now has what rank {root} had.", kRoot},
    {"all_reduce", "Every rank now has the {op} of all ranks' tensors, element by element.", kOp},
    {"reduce", "Rank {root} alone now has the {op} of all ranks' tensors, element by element.",
     kRoot | kOp | kOnlyGloo},
    {"all_gather", "Every rank now has all ranks' tensors, one after the other.", 0},
    {"gather", "Rank {root} alone now has all ranks' tensors, one after the other.",
     kRoot | kOnlyGloo},
    {"scatter", "Rank r now has part r of what rank {root} had.", kRoot | kOnlyGloo},
    {"reduce_scatter", "Rank r now has part r of the {op} of all ranks' tensors.", kOp | kOnlyGloo},
    {"all_to_all", "Rank r now has part r of every rank's tensor, one after the other.", kOnlyGloo},
    {"send_recv", "Every rank sent its tensor to the next rank, the last one to rank 0.",
     kOnlyGloo},
    {"barrier", "No rank left before all had come.", 0},
};

struct LabOptions {
  std::string program;
  Collective collective;
  std::optional<int> nprocs;
  std::string backend = "auto";
  int64_t size = 2;  ///< elements of the smallest tensor
  std::optional<int> root;
  std::string op;
};

LabOptions parse_lab_options(int argc, char** argv) {
  LabOptions options;
  options.program = program_name();
  Choices names;
  for (const Collective& collective : kCollectives) {
    names.emplace_back(collective.name);
  }
  const Choices ops = {"sum", "mean", "product", "min", "max"};
  CommandLine line(options.program,
                   "Runs a collective over a few ranks and prints every rank's tensor before and "
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
                                         "number of ranks; a launcher gives its own number");
  group.choice("--backend", options.backend, {"auto", "shm", "gloo", "mpi"},
               "library for the collective; auto: as in the stages, or gloo if only gloo has it");
  group.integer<int64_t, int64_t>("--size", options.size, 1, kMaxSize, "2",
                                  "elements of a rank's tensor, or of each part of it");
  group.integer<std::optional<int>, int>(
      "--root", options.root, 0, kMaxRanks - 1, "0",
      "rank that sends or receives, for broadcast, reduce, gather, scatter");
  group.value(
      "--op", "NAME", "sum", "for all_reduce, reduce, reduce_scatter: " + join(ops),
      [&](const auto& option, const auto& text) { options.op = check_choice(option, text, ops); });
  line.require("collective");
  line.parse(argc, argv);

  options.collective = *std::ranges::find(kCollectives, name, &Collective::name);
  if (options.root && !options.collective.has_root()) {
    refuse("--root: got {}, expected none: {} has no root", *options.root, name);
  }
  if (!options.op.empty() && !options.collective.has_op()) {
    refuse("--op: got {}, expected none: {} computes nothing", options.op, name);
  }
  options.op = options.op.empty() ? "sum" : options.op;
  if (options.collective.only_gloo() || options.op == "product") {
    if (options.backend != "auto" && options.backend != "gloo") {
      refuse("--backend: got {}, expected gloo: it alone has {}{} here", options.backend, name,
             options.collective.only_gloo() ? "" : " with --op " + options.op);
    }
    options.backend = "gloo";
  }
  return options;
}

/// @throws UsageError if the world does not fit the command line
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
        world_size, options.program, options.collective.name);
  }
}

/// Texts of a rank's tensor before and after: elements, with a bar between the parts of different
/// ranks, or a remark in place of a tensor.
struct BeforeAndAfter {
  std::string before;
  std::string after;
};

/// "1 2 | 11 12"
std::string as_text(const torch::Tensor& tensor, int64_t part) {
  std::string text;
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    text += fmt::format("{}{:g}",
                        i == 0          ? ""
                        : i % part == 0 ? " | "
                                        : " ",
                        tensor.const_data_ptr<float>()[i]);
  }
  return text;
}

/// Runs the collective on a rank.
class Lab {
 public:
  Lab(const LabOptions& options, const ProcessGroup& group) : options_(options), group_(group) {}

  BeforeAndAfter run() const {
    if (name_ == "barrier") {
      return barrier();
    }
    const int64_t size = options_.size;
    const bool is_root = rank_ == root_;
    // Such a tensor has a part for each rank.
    const bool gives_parts =
        name_ == "reduce_scatter" || name_ == "all_to_all" || (name_ == "scatter" && is_root);
    const bool gets_parts =
        name_ == "all_gather" || name_ == "all_to_all" || (name_ == "gather" && is_root);
    const bool is_in_place = name_ == "broadcast" || name_ == "all_reduce" || name_ == "reduce";
    const torch::Tensor before = values(gives_parts ? size * world_size_ : size);
    const torch::Tensor after =
        is_in_place ? before : torch::full(gets_parts ? size * world_size_ : size, std::nan(""));
    BeforeAndAfter said;
    said.before = name_ == "scatter" && !is_root ? "-" : as_text(before, size);
    call(before, after);
    if (options_.op == "mean" && options_.collective.has_op()) {
      after.div_(world_size_);  // Gloo has no mean
    }
    said.after = is_root || !(name_ == "gather" || name_ == "reduce") ? as_text(after, size)
                 : name_ == "gather"                                  ? "-"
                                                                      : "(left undefined)";
    return said;
  }

 private:
  /// First values: rank 0 has 1 2 3, rank 1 has 11 12 13, so each number shows its rank. With more
  /// values the ranks differ by 100.
  torch::Tensor values(int64_t count) const {
    int64_t step = 10;
    while (step < options_.size * world_size_) {
      step *= 10;
    }
    return torch::arange(1, count + 1, torch::kFloat) + static_cast<double>(step * rank_);
  }

  /// @param after `before` if the collective works in place
  void call(const torch::Tensor& before, const torch::Tensor& after) const {
    c10d::ProcessGroup& group = *group_.c10d_group();
    const auto op = options_.op == "product" ? c10d::ReduceOp::PRODUCT
                    : options_.op == "min"   ? c10d::ReduceOp::MIN
                    : options_.op == "max"   ? c10d::ReduceOp::MAX
                                             : c10d::ReduceOp::SUM;
    const bool is_root = rank_ == root_;
    std::vector<torch::Tensor> whole{before};
    std::vector<torch::Tensor> result{after};
    std::vector<std::vector<torch::Tensor>> parts;  // a part for each rank
    if (name_ == "gather" && is_root) {
      parts.push_back(after.chunk(world_size_));
    } else if (name_ == "reduce_scatter" || (name_ == "scatter" && is_root)) {
      parts.push_back(before.chunk(world_size_));
    }
    if (name_ == "broadcast") {
      group_.broadcast(before, root_);
    } else if (name_ == "all_reduce") {
      group_.all_reduce(before, op);
    } else if (name_ == "reduce") {
      group.reduce(whole, {.reduceOp = op, .rootRank = root_})->wait();
    } else if (name_ == "all_gather") {
      after.copy_(group_.all_gather(before).flatten());
    } else if (name_ == "gather") {
      group.gather(parts, whole, {.rootRank = root_})->wait();
    } else if (name_ == "scatter") {
      group.scatter(result, parts, {.rootRank = root_})->wait();
    } else if (name_ == "reduce_scatter") {
      group.reduce_scatter(result, parts, {.reduceOp = op})->wait();
    } else if (name_ == "all_to_all") {
      std::vector<int64_t> equal_parts;
      torch::Tensor output = after;
      torch::Tensor input = before;
      // By the backend, because the name of the group's function depends on LibTorch's version.
      group.getDefaultBackend()->alltoall_base(output, input, equal_parts, equal_parts)->wait();
    } else if (world_size_ == 1) {  // send_recv to itself, which no backend can do
      after.copy_(before);
    } else {
      // Starts both before waiting: if all ranks waited in send(), no rank would receive.
      const auto sent = group.send(whole, (rank_ + 1) % world_size_, /*tag=*/0);
      group.recv(result, (rank_ + world_size_ - 1) % world_size_, /*tag=*/0)->wait();
      sent->wait();
    }
  }

  /// Counts this rank in the store before the barrier, and reads the count after it.
  BeforeAndAfter barrier() const {
    const std::string key = "lab/barrier";
    group_.store()->add(key, 1);
    group_.barrier();
    return {"has come",
            fmt::format("knows that {} of {} have", group_.store()->add(key, 0), world_size_)};
  }

  const LabOptions& options_;
  const ProcessGroup& group_;
  const std::string name_ = options_.collective.name;
  const int rank_ = group_.rank();
  const int world_size_ = group_.world_size();
  const int root_ = options_.root.value_or(0);
};

/// Column of the table: "[ 1  2 | 11 12]", with numbers of equal width.
std::vector<std::string> column(const std::string& title, const std::vector<std::string>& texts) {
  const auto words_of = [](const std::string& text) {
    std::istringstream stream(text);
    return std::vector<std::string>{std::istream_iterator<std::string>(stream), {}};
  };
  const auto is_tensor = [](const std::string& text) {
    return text != "-" && text.find_first_not_of("0123456789.-+e| ") == std::string::npos;
  };
  size_t width = 0;
  for (const std::string& text : texts) {
    for (const std::string& word : words_of(is_tensor(text) ? text : "")) {
      width = std::max(width, word.size());
    }
  }
  std::vector<std::string> lines{title};
  for (const std::string& text : texts) {
    std::vector<std::string> words = words_of(text);
    for (std::string& word : words) {
      word = word == "|" ? word : fmt::format("{:>{}}", word, width);
    }
    lines.push_back(is_tensor(text) ? fmt::format("[{}]", fmt::join(words, " ")) : text);
  }
  const size_t widest = std::ranges::max_element(lines, {}, &std::string::size)->size();
  for (std::string& line : lines) {
    line.resize(widest, ' ');
  }
  return lines;
}

std::string report(const LabOptions& options, const ProcessGroup& group,
                   const std::vector<std::string>& texts) {
  std::vector<std::string> befores;
  std::vector<std::string> afters;
  for (const std::string& text : texts) {
    const size_t newline = text.find('\n');
    befores.push_back(text.substr(0, newline));
    afters.push_back(text.substr(newline + 1));
  }
  const std::vector<std::string> before = column("before", befores);
  const std::vector<std::string> after = column("after", afters);
  std::string table = fmt::format("{}{}, {} rank{}, backend {}\n\n", options.collective.name,
                                  options.collective.has_op() ? " " + options.op : "", texts.size(),
                                  texts.size() == 1 ? "" : "s", group.backend_name());
  for (size_t row = 0; row < before.size(); ++row) {
    std::string line = fmt::format("{:<4}  {}  {}", row == 0 ? "rank" : std::to_string(row - 1),
                                   before[row], after[row]);
    line.erase(line.find_last_not_of(' ') + 1);
    table += line + "\n";
  }
  return table + "\n" +
         fmt::format(fmt::runtime(options.collective.sentence),
                     fmt::arg("root", options.root.value_or(0)), fmt::arg("op", options.op)) +
         "\n";
}

void run_rank(const LabOptions& options, const LaunchEnvironment& environment) {
  check_world(options, environment.world_size, environment.launcher);
  ProcessGroupOptions group_options;
  group_options.backend = options.backend;
  group_options.settings =
      fmt::format("collective {}\nsize {}\nroot {}\nop {}", options.collective.name, options.size,
                  options.root.value_or(0), options.op);
  init_process_group(environment, torch::kCPU, group_options);
  const ProcessGroup& group = default_process_group();
  const BeforeAndAfter own = Lab(options, group).run();
  std::vector<std::string> texts;
  verify(group, "tensors", own.before + "\n" + own.after,
         [&](const std::vector<std::string>& all) { return texts = all, std::string(); });
  if (environment.rank == 0) {
    std::cout << report(options, group, texts) << std::flush;
  }
  destroy_process_group();
}

int run(int argc, char** argv, std::string& who) {
  const LabOptions options = parse_lab_options(argc, argv);
  const LaunchEnvironment environment = read_launch_environment();
  if (environment.launcher == "none") {
    const int ranks = options.nprocs.value_or(2);
    check_world(options, ranks, "spawn");
    return start_ranks(options.program, {argv, argv + argc}, ranks);
  }
  who = internal::name_of_rank(environment);
  run_rank(options, environment);
  return static_cast<int>(ExitCode::kDone);
}

}  // namespace
}  // namespace ddp

int main(int argc, char** argv) {
  return ddp::internal::guarded([&](std::string& who) { return ddp::run(argc, argv, who); });
}
