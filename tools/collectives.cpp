// collectives - the lab: runs a collective over a few ranks and prints every rank's tensor before
// and after it.
//
//   run:  build/bin/collectives all_reduce --nprocs 3
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iostream>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/command_line.hpp"
#include "common/base/refuse.hpp"
#include "common/launch/run_main.hpp"
#include "common/launch/spawn.hpp"
#include "common/parallel/process_group.hpp"

namespace ddp {
namespace {

constexpr int kMaxRanks = 16;  // a terminal has room for their tensors
constexpr int64_t kMaxSize = 64;

constexpr std::pair<const char*, c10d::ReduceOp::RedOpType> kOps[] = {
    {"sum", c10d::ReduceOp::SUM},         {"mean", c10d::ReduceOp::AVG},
    {"product", c10d::ReduceOp::PRODUCT}, {"min", c10d::ReduceOp::MIN},
    {"max", c10d::ReduceOp::MAX},
};

/// A rank with its first values.
struct Lab {
  const ProcessGroup& group;
  int64_t size;  ///< elements of a rank's tensor, or of each part of it
  int root;
  c10d::ReduceOp::RedOpType op;

  /// Group for what only LibTorch has.
  c10d::ProcessGroup& c10d_group() const { return *group.c10d_group(); }
  bool is_root() const { return group.rank() == root; }
  /// (size): 1 2 on rank 0, 11 12 on rank 1, so each number shows its rank.
  torch::Tensor tensor() const { return parts()[0].clone(); }
  /// (world_size, size): row r is for rank r. With many values the ranks differ by 100.
  torch::Tensor parts() const {
    const int64_t count = size * group.world_size();
    int64_t step = 10;
    while (step < count) {
      step *= 10;
    }
    const int64_t first = step * group.rank() + 1;
    return torch::arange(first, first + count, torch::kFloat).view({-1, size});
  }
};

/// "1 2 | 11 12", with a bar between the rows.
std::string text(const torch::Tensor& tensor) {
  std::vector<std::string> rows;
  for (const torch::Tensor& row : tensor.view({-1, tensor.size(-1)}).unbind()) {
    const float* const values = row.const_data_ptr<float>();
    rows.push_back(fmt::format("{:g}", fmt::join(values, values + row.numel(), " ")));
  }
  return fmt::format("{}", fmt::join(rows, " | "));
}

/// Row of the table: a collective. A rank's tensor is a text, or a remark stands in its place.
struct Collective {
  const char* name;
  std::string_view sentence;  ///< names {root} and {op} if the collective has them
  bool only_gloo;  ///< our own backends have what data parallelism needs
  std::string (*before)(const Lab& lab);
  std::string (*run)(const Lab& lab);  ///< @return what the rank has after it

  bool has(const char* field) const { return sentence.find(field) != std::string_view::npos; }
};

std::string own(const Lab& lab) {
  return text(lab.tensor());
}
std::string parts(const Lab& lab) {
  return text(lab.parts());
}

constexpr Collective kCollectives[] = {
    {"broadcast", "Every rank now has what rank {root} had.", false, own,
     [](const Lab& lab) {
       const torch::Tensor tensor = lab.tensor();
       lab.group.broadcast(tensor, lab.root);
       return text(tensor);
     }},
    {"all_reduce", "Every rank now has the {op} of all ranks' tensors, element by element.", false,
     own,
     [](const Lab& lab) {
       const torch::Tensor tensor = lab.tensor();
       lab.group.all_reduce(tensor, lab.op);
       return text(tensor);
     }},
    {"reduce", "Rank {root} alone now has the {op} of all ranks' tensors, element by element.",
     true, own,
     [](const Lab& lab) -> std::string {
       const bool averages = lab.op == c10d::ReduceOp::AVG;  // Gloo has no mean
       std::vector<torch::Tensor> tensor{lab.tensor().div_(averages ? lab.group.world_size() : 1)};
       const auto op = averages ? c10d::ReduceOp::SUM : lab.op;
       lab.c10d_group().reduce(tensor, {.reduceOp = op, .rootRank = lab.root})->wait();
       return lab.is_root() ? text(tensor.front()) : "(left undefined)";
     }},
    {"all_gather", "Every rank now has all ranks' tensors, one after the other.", false, own,
     [](const Lab& lab) { return text(lab.group.all_gather(lab.tensor())); }},
    {"gather", "Rank {root} alone now has all ranks' tensors, one after the other.", true, own,
     [](const Lab& lab) -> std::string {
       const torch::Tensor rows = torch::empty_like(lab.parts());
       std::vector<torch::Tensor> tensor{lab.tensor()};
       std::vector<std::vector<torch::Tensor>> places(lab.is_root() ? 1 : 0, rows.unbind());
       lab.c10d_group().gather(places, tensor, {.rootRank = lab.root})->wait();
       return lab.is_root() ? text(rows) : "-";
     }},
    {"scatter", "Rank r now has part r of what rank {root} had.", true,
     [](const Lab& lab) { return lab.is_root() ? parts(lab) : "-"; },
     [](const Lab& lab) {
       std::vector<torch::Tensor> tensor{torch::empty_like(lab.tensor())};
       std::vector<std::vector<torch::Tensor>> sent(lab.is_root() ? 1 : 0, lab.parts().unbind());
       lab.c10d_group().scatter(tensor, sent, {.rootRank = lab.root})->wait();
       return text(tensor.front());
     }},
    {"reduce_scatter", "Rank r now has part r of the {op} of all ranks' tensors.", false, parts,
     [](const Lab& lab) { return text(lab.group.reduce_scatter(lab.parts(), lab.op)); }},
    {"all_to_all", "Rank r now has part r of every rank's tensor, one after the other.", false,
     parts, [](const Lab& lab) { return text(lab.group.all_to_all(lab.parts())); }},
    {"send_recv", "Every rank sent its tensor to the next rank, the last one to rank 0.", true, own,
     [](const Lab& lab) {
       const int ranks = lab.group.world_size();
       std::vector<torch::Tensor> sent{lab.tensor()};
       std::vector<torch::Tensor> received{lab.tensor()};
       if (ranks > 1) {  // no backend can send to itself
         // Starts both before waiting: if all ranks waited for their send, none would receive.
         const int rank = lab.group.rank();
         const auto send = lab.c10d_group().send(sent, (rank + 1) % ranks, /*tag=*/0);
         lab.c10d_group().recv(received, (rank + ranks - 1) % ranks, /*tag=*/0)->wait();
         send->wait();
       }
       return text(received.front());
     }},
    // Counts this rank in the store before the barrier, and reads the count after it.
    {"barrier", "No rank left before all had come.", false,
     [](const Lab& lab) -> std::string {
       lab.group.store()->add("lab/barrier", 1);
       return "has come";
     },
     [](const Lab& lab) {
       lab.group.barrier();
       return fmt::format("knows that {} of {} have", lab.group.store()->add("lab/barrier", 0),
                          lab.group.world_size());
     }},
};

struct LabOptions {
  std::string program = program_name();
  const Collective* collective = nullptr;
  std::optional<int> nprocs;
  std::string backend = "auto";
  int64_t size = 2;  ///< elements of the smallest tensor
  int root = 0;
  std::string op = "sum";
};

LabOptions parse_lab_options(int argc, char** argv) {
  LabOptions options;
  Choices names;
  Choices ops;
  std::ranges::transform(kCollectives, std::back_inserter(names), &Collective::name);
  std::ranges::transform(kOps, std::back_inserter(ops), [](const auto& op) { return op.first; });
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
  group.choice("collective,--collective", name, names, "collective to run");
  group.integer<std::optional<int>, int>("--nprocs", options.nprocs, 1, kMaxRanks, "2",
                                         "number of ranks; a launcher gives its own number");
  group.choice("--backend", options.backend, {"auto", "shm", "gloo", "mpi"},
               "library for the collective; auto: as in the stages, or gloo if only gloo has it");
  group.integer("--size", options.size, int64_t{1}, kMaxSize, "2",
                "elements of a rank's tensor, or of each part of it");
  group.integer("--root", options.root, 0, kMaxRanks - 1, "0",
                "rank that sends or receives, for broadcast, reduce, gather, scatter");
  group.choice("--op", options.op, ops, "for all_reduce, reduce, reduce_scatter");
  line.require("collective");
  line.parse(argc, argv);

  options.collective = std::ranges::find(kCollectives, name, &Collective::name);
  if (line.given("--root") && !options.collective->has("{root}")) {
    refuse("--root: got {}, expected none: {} has no root", options.root, name);
  }
  if (line.given("--op") && !options.collective->has("{op}")) {
    refuse("--op: got {}, expected none: {} computes nothing", options.op, name);
  }
  const bool only_gloo = options.collective->only_gloo;
  if (only_gloo || options.op == "product") {
    if (options.backend != "auto" && options.backend != "gloo") {
      refuse("--backend: got {}, expected gloo: it alone has {}{} here", options.backend, name,
             only_gloo ? "" : " with --op " + options.op);
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
  if (options.root >= world_size) {
    refuse("--root: got {}, expected 0 to {}", options.root, world_size - 1);
  }
  if (options.backend == "mpi" && launcher == "spawn") {
    refuse(
        "--backend: got mpi, expected mpirun to start the ranks: mpirun -np {} {} {} --backend mpi",
        world_size, options.program, options.collective->name);
  }
}

/// Column of the table, with numbers of equal width: "[ 1  2 | 11 12]".
/// @param texts every rank's tensor or remark
std::vector<std::string> column(const std::string& title, const std::vector<std::string>& texts) {
  const auto is_tensor = [](const std::string& text) { return text[0] >= '0' && text[0] <= '9'; };
  size_t width = 0;
  for (const std::string& text : texts) {
    for (const std::string& word : split(is_tensor(text) ? text : "", ' ')) {
      width = std::max(width, word.size());
    }
  }
  std::vector<std::string> lines{title};
  for (const std::string& text : texts) {
    std::vector<std::string> words = split(text, ' ');
    for (std::string& word : words) {
      word = word == "|" ? word : fmt::format("{:>{}}", word, width);
    }
    lines.push_back(is_tensor(text) ? fmt::format("[{}]", fmt::join(words, " ")) : text);
  }
  return lines;
}

std::string report(const LabOptions& options, const std::string& backend,
                   const std::vector<std::string>& befores,
                   const std::vector<std::string>& afters) {
  const std::vector<std::string> before = column("before", befores);
  const std::vector<std::string> after = column("after", afters);
  const size_t width = std::ranges::max_element(before, {}, &std::string::size)->size();
  const Collective& collective = *options.collective;
  std::string text = fmt::format("{}{}, {} rank{}, backend {}\n\n", collective.name,
                                 collective.has("{op}") ? " " + options.op : "", befores.size(),
                                 befores.size() == 1 ? "" : "s", backend);
  for (size_t row = 0; row < before.size(); ++row) {
    text += fmt::format("{:<4}  {:<{}}  {}\n", row == 0 ? "rank" : std::to_string(row - 1),
                        before[row], width, after[row]);
  }
  return text + "\n" +
         fmt::format(fmt::runtime(collective.sentence), fmt::arg("root", options.root),
                     fmt::arg("op", options.op)) +
         "\n";
}

void run_rank(const LabOptions& options, const LaunchEnvironment& environment) {
  check_world(options, environment.world_size, environment.launcher);
  ProcessGroupOptions group_options;
  group_options.backend = options.backend;
  group_options.settings =
      fmt::format("collective {}\nsize {}\nroot {}\nop {}", options.collective->name, options.size,
                  options.root, options.op);
  init_process_group(environment, torch::kCPU, group_options);
  const ProcessGroup& group = default_process_group();
  const auto [name, op] =
      *std::ranges::find(kOps, options.op, [](const auto& o) { return o.first; });
  const Lab lab = {group, options.size, options.root, op};
  std::string own = options.collective->before(lab);
  own += "\n" + options.collective->run(lab);
  std::vector<std::string> befores, afters;  // every rank's, on rank 0
  group.board().check("tensors", own, [&](const std::vector<std::string>& texts) {
    for (const std::string& text : texts) {
      befores.push_back(split(text, '\n').front());
      afters.push_back(split(text, '\n').back());
    }
    return std::string();
  });
  if (environment.rank == 0) {
    std::cout << report(options, group.backend_name(), befores, afters) << std::flush;
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
  who = name_of_rank(environment);
  run_rank(options, environment);
  return static_cast<int>(ExitCode::kDone);
}

}  // namespace
}  // namespace ddp

int main(int argc, char** argv) {
  return ddp::run_program([&](std::string& who) { return ddp::run(argc, argv, who); });
}
