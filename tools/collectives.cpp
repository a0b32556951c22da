// collectives - runs a collective and prints every rank's tensor before and after it.
//   run:  build/bin/collectives all_reduce --nprocs 3
#include <fmt/ranges.h>

#include <iostream>
#include <iterator>
#include <ranges>

#include "common/backends/traits.hpp"
#include "common/base/command_line.hpp"
#include "common/base/exit_codes.hpp"
#include "common/launch/run_main.hpp"
#include "common/launch/spawn.hpp"
#include "common/meet/launchers.hpp"
#include "common/parallel/default_group.hpp"

namespace ddp {
namespace {

constexpr int kMaxRanks = 16;  // a terminal has room for their tensors

struct Operation {
  const char* name;
  c10d::ReduceOp::RedOpType type;
};
constexpr Operation kOperations[] = {
    {"sum", c10d::ReduceOp::SUM},         {"mean", c10d::ReduceOp::AVG},
    {"product", c10d::ReduceOp::PRODUCT}, {"min", c10d::ReduceOp::MIN},
    {"max", c10d::ReduceOp::MAX},
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

/// (world_size, size): row r is for rank r. 1 2 | 3 4 on rank 0, 11 12 | 13 14 on rank 1, so each
/// number shows its rank. With many values the ranks differ by 100.
torch::Tensor first_values(const ProcessGroup& group, int64_t size) {
  const int64_t count = size * group.world_size();
  int64_t step = 10;
  while (step < count) {
    step *= 10;
  }
  const int64_t first = step * group.rank() + 1;
  return torch::arange(first, first + count, torch::kFloat).view({-1, size});
}

/// A rank before its collective.
struct Rank {
  const ProcessGroup& group;
  int root;
  c10d::ReduceOp::RedOpType op;
  torch::Tensor parts;  ///< (world_size, size): row r is for rank r
  std::vector<torch::Tensor> tensor{parts[0].clone()};  ///< (size), in a vector for c10d

  bool is_root() const { return group.rank() == root; }
};

/// Row of the table of collectives. A rank's tensor is a text, or a remark stands in its place.
struct Collective {
  const char* name;
  std::string_view expected;  ///< names {root} and {op} if the collective has them
  bool only_c10d;  ///< our own backends have what data parallelism needs
  std::string (*before)(const Rank& rank);
  std::string (*run)(Rank& rank);  ///< @return what the rank has after it

  bool has(std::string_view field) const { return expected.find(field) != expected.npos; }
};

std::string tensor(const Rank& rank) {
  return text(rank.tensor[0]);
}
std::string parts(const Rank& rank) {
  return text(rank.parts);
}

constexpr Collective kCollectives[] = {
    {"broadcast", "Every rank now has what rank {root} had.", false, tensor,
     [](Rank& rank) {
       rank.group.broadcast(rank.tensor[0], rank.root);
       return tensor(rank);
     }},
    {"all_reduce", "Every rank now has the {op} of all ranks' tensors, element by element.", false,
     tensor,
     [](Rank& rank) {
       rank.group.all_reduce(rank.tensor[0], rank.op);
       return tensor(rank);
     }},
    {"reduce", "Rank {root} alone now has the {op} of all ranks' tensors, element by element.",
     true, tensor,
     [](Rank& rank) -> std::string {
       if (rank.op == c10d::ReduceOp::AVG) {  // Gloo has no mean
         rank.tensor[0].div_(rank.group.world_size());
         rank.op = c10d::ReduceOp::SUM;
       }
       rank.group.c10d_group()
           ->reduce(rank.tensor, {.reduceOp = rank.op, .rootRank = rank.root})
           ->wait();
       return rank.is_root() ? tensor(rank) : "(left undefined)";
     }},
    {"all_gather", "Every rank now has all ranks' tensors, one after the other.", false, tensor,
     [](Rank& rank) { return text(rank.group.all_gather(rank.tensor[0])); }},
    {"gather", "Rank {root} alone now has all ranks' tensors, one after the other.", true, tensor,
     [](Rank& rank) -> std::string {
       std::vector<std::vector<torch::Tensor>> rows(rank.is_root() ? 1 : 0, rank.parts.unbind());
       rank.group.c10d_group()->gather(rows, rank.tensor, {.rootRank = rank.root})->wait();
       return rank.is_root() ? parts(rank) : "-";
     }},
    {"scatter", "Rank r now has part r of what rank {root} had.", true,
     [](const Rank& rank) { return rank.is_root() ? parts(rank) : "-"; },
     [](Rank& rank) {
       std::vector<std::vector<torch::Tensor>> rows(rank.is_root() ? 1 : 0, rank.parts.unbind());
       rank.group.c10d_group()->scatter(rank.tensor, rows, {.rootRank = rank.root})->wait();
       return tensor(rank);
     }},
    {"reduce_scatter", "Rank r now has part r of the {op} of all ranks' tensors.", false, parts,
     [](Rank& rank) { return text(rank.group.reduce_scatter(rank.parts, rank.op)); }},
    {"all_to_all", "Rank r now has part r of every rank's tensor, one after the other.", false,
     parts, [](Rank& rank) { return text(rank.group.all_to_all(rank.parts)); }},
    {"send_recv", "Every rank sent its tensor to the next rank, the last one to rank 0.", true,
     tensor,
     [](Rank& rank) {
       const int ranks = rank.group.world_size(), own = rank.group.rank();
       std::vector<torch::Tensor> received{rank.tensor[0].clone()};
       if (ranks > 1) {  // no backend can send to itself
         // Starts both before waiting: if all ranks waited for their send, none would receive.
         const auto& group = rank.group.c10d_group();
         const auto send = group->send(rank.tensor, (own + 1) % ranks, /*tag=*/0);
         group->recv(received, (own + ranks - 1) % ranks, /*tag=*/0)->wait();
         send->wait();
       }
       return text(received[0]);
     }},
    // Counts this rank in the store before the barrier, and reads the count after it.
    {"barrier", "No rank left before all had come.", false,
     [](const Rank&) -> std::string { return "has come"; },
     [](Rank& rank) {
       rank.group.store()->add("collectives/barrier", 1);
       rank.group.barrier();
       return fmt::format("knows that {} of {} have",
                          rank.group.store()->add("collectives/barrier", 0),
                          rank.group.world_size());
     }},
};

Choices names_of(auto&& rows) {
  Choices names;
  std::ranges::transform(rows, std::back_inserter(names), [](const auto& row) { return row.name; });
  return names;
}

/// "for broadcast, reduce": the collectives that have a field.
std::string for_collectives_with(std::string_view field) {
  const auto has = [field](const Collective& collective) { return collective.has(field); };
  return fmt::format("for {}", fmt::join(names_of(kCollectives | std::views::filter(has)), ", "));
}

struct CommandOptions {
  const Collective* collective = nullptr;
  std::optional<int> nprocs;
  std::string backend = "auto";
  int64_t size = 2;  ///< elements of the smallest tensor
  int root = 0;
  std::string op = "sum";
};

CommandOptions parse_command_line(int argc, char** argv) {
  CommandOptions options;
  CommandLine line(program_name(),
                   "Runs a collective over a few ranks and prints every rank's tensor before and "
                   "after it.",
                   "collectives " DDP_VERSION,
                   "Examples: collectives all_reduce --nprocs 3; collectives gather --root 1;\n"
                   "          mpirun -np 3 collectives all_gather --backend mpi\n"
                   "Exit codes: 0 done, 1 the collective failed, 2 command line or environment.",
                   40);
  OptionGroup group = line.group("Options");
  std::string name;
  group.add("collective,--collective", takes::choice(name, names_of(kCollectives)),
            "collective to run");
  group.add("--nprocs", takes::integer(options.nprocs, 1, kMaxRanks).initially("2"),
            "number of ranks; a launcher gives its own number");
  group.add("--backend", takes::choice(options.backend, {"auto", kShm, kGloo, kMpi}),
            "library for the collective; auto: as in the stages, or gloo if only gloo has it");
  group.add("--size", takes::integer(options.size, int64_t{1}, int64_t{64}),
            "elements of a rank's tensor, or of each part of it");
  group.add("--root", takes::integer(options.root, 0, kMaxRanks - 1),
            "rank that sends or receives, " + for_collectives_with("{root}"));
  group.add("--op", takes::choice(options.op, names_of(kOperations)), for_collectives_with("{op}"));
  line.require("collective");
  line.parse(argc, argv);

  options.collective = std::ranges::find(kCollectives, name, &Collective::name);
  if (line.given("--root") && !options.collective->has("{root}")) {
    refuse("--root: got {}, expected none: {} has no root", options.root, name);
  }
  if (line.given("--op") && !options.collective->has("{op}")) {
    refuse("--op: got {}, expected none: {} computes nothing", options.op, name);
  }
  return options;
}

/// The only place that asks what a backend can do. @return name for init_process_group()
/// @throws UsageError if the backend of the command line lacks the collective, or its launcher
std::string choose_backend(const CommandOptions& options, int ranks, const std::string& launcher) {
  const std::string name = options.collective->name;
  const bool only_gloo = options.collective->only_c10d || options.op == "product";
  if (only_gloo && options.backend != "auto" && options.backend != kGloo) {
    refuse("--backend: got {}, expected gloo: it alone has {}{} here", options.backend, name,
           options.collective->only_c10d ? "" : " with --op " + options.op);
  }
  if (traits_of(options.backend).needs_mpirun && launcher == kSpawnLauncher.name) {
    refuse(
        "--backend: got mpi, expected mpirun to start the ranks: mpirun -np {} {} {} --backend mpi",
        ranks, program_name(), name);
  }
  return only_gloo ? kGloo : options.backend;
}

/// Column of the table, with numbers of equal width: "[ 1  2 | 11 12]".
/// @param cells every rank's tensor or remark
std::vector<std::string> column(const std::string& title, std::vector<std::string> cells) {
  const auto is_tensor = [](const std::string& cell) { return cell[0] >= '0' && cell[0] <= '9'; };
  const std::string all = fmt::format("{}", fmt::join(cells | std::views::filter(is_tensor), " "));
  const size_t width = std::ranges::max(split(all, ' '), {}, &std::string::size).size();
  for (std::string& cell : cells) {
    std::vector<std::string> words = split(cell, ' ');
    for (std::string& word : words) {
      word = word == "|" ? word : fmt::format("{:>{}}", word, width);
    }
    cell = is_tensor(cell) ? fmt::format("[{}]", fmt::join(words, " ")) : cell;
  }
  cells.insert(cells.begin(), title);
  return cells;
}

std::string report(const CommandOptions& options, const std::string& backend,
                   const std::vector<std::string>& before, const std::vector<std::string>& after) {
  const Collective& collective = *options.collective;
  const size_t ranks = before.size() - 1;  // below the title
  const size_t width = std::ranges::max_element(before, {}, &std::string::size)->size();
  std::string text = fmt::format("{}{}, {} rank{}, backend {}\n\n", collective.name,
                                 collective.has("{op}") ? " " + options.op : "", ranks,
                                 ranks == 1 ? "" : "s", backend);
  for (size_t row = 0; row <= ranks; ++row) {
    text += fmt::format("{:<4}  {:<{}}  {}\n", row == 0 ? "rank" : std::to_string(row - 1),
                        before[row], width, after[row]);
  }
  return fmt::format("{}\n{}\n", text,
                     fmt::format(fmt::runtime(collective.expected), fmt::arg("root", options.root),
                                 fmt::arg("op", options.op)));
}

void run_rank(const CommandOptions& options, const LaunchEnvironment& environment) {
  const Collective& collective = *options.collective;
  const std::string settings = fmt::format("collective {}\nsize {}\nroot {}\nop {}",
                                           collective.name, options.size, options.root, options.op);
  init_process_group(environment, torch::kCPU, {.backend = options.backend, .settings = settings});
  const ProcessGroup& group = default_process_group();
  const auto operation = std::ranges::find(kOperations, options.op, &Operation::name);
  Rank rank = {group, options.root, operation->type, first_values(group, options.size)};
  const std::string before = collective.before(rank);
  const std::string after = collective.run(rank);
  const auto had = group.board().gather("tensors before", before);
  const auto have = group.board().gather("tensors after", after);
  if (environment.rank == 0) {
    std::cout << report(options, group.backend_name(), column("before", had), column("after", have))
              << std::flush;
  }
  destroy_process_group();
}

int run(int argc, char** argv, std::string& who) {
  CommandOptions options = parse_command_line(argc, argv);
  const LaunchEnvironment environment = read_launch_environment();
  const bool is_rank = environment.launcher != kNoLauncher.name;
  const std::string launcher = is_rank ? environment.launcher : kSpawnLauncher.name;
  const int ranks = is_rank ? environment.world_size : options.nprocs.value_or(2);
  who = name_of_rank(environment);
  if (ranks != options.nprocs.value_or(ranks)) {
    refuse("--nprocs: got {}, expected {}, what {} started", *options.nprocs, ranks, launcher);
  }
  if (ranks > kMaxRanks) {
    refuse("got {} ranks ({}), expected at most {}", ranks, launcher, kMaxRanks);
  }
  if (options.root >= ranks) {
    refuse("--root: got {}, expected 0 to {}", options.root, ranks - 1);
  }
  options.backend = choose_backend(options, ranks, launcher);
  if (!is_rank) {
    return start_ranks(program_name(), {argv, argv + argc}, ranks);
  }
  run_rank(options, environment);
  return static_cast<int>(ExitCode::kDone);
}

}  // namespace
}  // namespace ddp

int main(int argc, char** argv) {
  return ddp::run_program([&](std::string& who) { return ddp::run(argc, argv, who); });
}
