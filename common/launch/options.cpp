#include "common/launch/options.hpp"

#include <fmt/ranges.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "common/backends/traits.hpp"
#include "common/base/command_line.hpp"
#include "common/base/exit_codes.hpp"
#include "common/meet/address.hpp"

namespace ddp {
namespace {

constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
constexpr int64_t kMaxGlobalBatch = int64_t{1} << 62;
constexpr int64_t kMaxBatch = kMaxGlobalBatch / kMaxWorldSize;
constexpr double kMaxTimeout = 30 * 86400;  // longer times overflow clocks of libraries

/// Whose an option is. A row must say it: the compiler refuses a row without it.
enum Scope {
  kOfRank,  ///< each rank may have its own
  kOfJob,  ///< all ranks must have the same
  kOfResult,  ///< the same, and it decides the weights: a snapshot is refused if it differs
};

using namespace takes;

struct Row {
  std::string names;  ///< "total_epochs,--total-epochs"
  Scope scope;
  OptionValue value;
  std::string help;
  std::string reported = "";  ///< its name in the summary of --metrics
  bool is_taken = true;  ///< by this program
};

Choices dataset_names() {
  return {std::begin(kDatasets), std::end(kDatasets)};
}

Choices optimizer_names() {
  Choices names;
  std::ranges::transform(kOptimizers, std::back_inserter(names), &OptimizerKind::name);
  return names;
}

/// "128,128", or "128-128" as bench writes it
OptionValue widths(std::vector<int64_t>& target, size_t fewest) {
  return {"N,N,...", fmt::format("{}", fmt::join(target, ",")), "",
          [&target, fewest](const std::string& name, const std::string& text) {
            target.clear();
            for (const std::string& width : split(text, text.find('-', 1) + 1 ? '-' : ',')) {
              target.push_back(parse_integer<int64_t>(name, width, 1));
            }
            if (target.size() < fewest) {
              refuse("{}: got {}, expected at least {} widths, e.g. 20,64,1", name, quote(text),
                     fewest);
            }
          }};
}

/// "536870912" or "512MiB"
OptionValue bytes(std::optional<int64_t>& target) {
  return {
      "BYTES", text_of(target), "the free memory",
      [&target](const std::string& name, const std::string& text) {
        const std::map<std::string, int> shifts = {{"", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}};
        const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
        const auto shift = shifts.find(text.substr(digits));
        if (shift == shifts.end()) {
          refuse("{}: got {}, expected bytes, e.g. 536870912, 512MiB or 4GiB", name, quote(text));
        }
        const int bits = shift->second;
        target = parse_integer<int64_t>(name, text.substr(0, digits), 1, kAny >> bits) << bits;
      }};
}

/// Ranks compare whether the size is to be found; a given size is part of --global-batch.
OptionValue batch_size(Options& options, bool may_find) {
  return {may_find ? "SAMPLES or auto" : "SAMPLES", options.find_batch ? "auto" : "given",
          text_of(options.batch_size),
          [&options, may_find](const std::string& name, const std::string& text) {
            options.find_batch = text == "auto";
            if (options.find_batch && !may_find) {
              refuse("{}: got \"auto\", expected a number; 04_ddp_launcher_auto_batch finds one",
                     name);
            }
            if (!options.find_batch) {
              options.batch_size = parse_integer<int64_t>(name, text, 1, kMaxBatch);
            }
          }};
}

/// A file may lie in another folder on another rank, or after a restart.
std::string file_name(const std::string& path) {
  return printable(std::filesystem::path(path).filename().native());
}

OptionValue dataset(std::string& target) {
  return {"DATA", file_name(target), target,
          [&target](const std::string& name, const std::string& text) {
            target = parse_path(name, text);
            if (std::ranges::find(kDatasets, text) == std::end(kDatasets) &&
                !text.ends_with(".safetensors")) {
              refuse("{}: got {}, expected {}, or a FILE.safetensors", name, quote(text),
                     join(dataset_names()));
            }
          }};
}

OptionValue devices(std::vector<int>& target) {
  return {"N... (default all)", fmt::format("{}", fmt::join(target, " ")), "",
          [&target](const std::string& name, const std::string& text) {
            target.push_back(parse_integer<int>(name, text, 0, 4095));
          },
          OptionValue::kSeveral};
}

OptionValue threads(int& target) {
  return {"N or auto", text_of(target), text_of(target),
          [&target](const std::string& name, const std::string& text) {
            target = text == "auto" ? kAutomaticThreads : parse_integer<int>(name, text, 1, 4096);
          }};
}

std::vector<Row> training_options(Options& options, int world_size, bool may_find_batch) {
  const double rate = resolve_learning_rate(options);
  const std::string global_batch = options.find_batch && !options.global_batch
                                       ? "as found"
                                       : text_of(global_batch_of(options, world_size));
  return {
      {"total_epochs,--total-epochs", kOfJob, integer(options.total_epochs, 0, kAny).initially(""),
       "number of passes over the data; 0 only evaluates", "epochs"},
      {"save_every,--save-every", kOfJob, integer(options.save_every, 1, kAny).initially(""),
       "number of epochs between snapshots"},
      {"--batch-size", kOfJob, batch_size(options, may_find_batch),
       std::string("samples per process and step") +
           (may_find_batch ? "; auto: as many as fit into memory" : "")},
      {"--global-batch", kOfResult,
       integer(options.global_batch, int64_t{1}, kMaxGlobalBatch).initially("").told(global_batch),
       "samples per step over all processes, instead of --batch-size"},
      {"--memory-limit", kOfRank, bytes(options.memory_limit_bytes),
       "memory of each process for --batch-size auto on a CPU, e.g. 4GiB", "", may_find_batch},
      {"--optimizer", kOfResult, choice(options.optimizer, optimizer_names()),
       "optimizer of torch::optim; momentum: SGD with momentum 0.9", "optimizer"},
      {"--lr", kOfResult,
       positive(options.learning_rate, "RATE", 1e9)
           .initially("the optimizer's own")
           .told(nlohmann::json(rate).dump()),
       "learning rate", "learning_rate"},
      {"--seed", kOfResult,
       integer(options.seed, uint64_t{0}, std::numeric_limits<uint64_t>::max()),
       "seed of weights, data and order; the same on every rank"},
      {"--deterministic", kOfJob, flag(options.deterministic),
       "use algorithms that repeat bit for bit"},
  };
}

std::vector<Row> data_options(Options& options, bool has_step) {
  const bool made_up = options.dataset == kSynthetic;
  return {
      {"--dataset", kOfResult, dataset(options.dataset),
       join(dataset_names()) + ", or a FILE.safetensors made by tools/to_safetensors"},
      {"--data-dir", kOfRank, path(options.data_dir, "PATH").initially("the installed folder"),
       "folder with the data files"},
      {"--dataset-size", kOfResult,
       integer(options.dataset_size, int64_t{1}, int64_t{1'000'000'000'000})
           .told(made_up ? text_of(options.dataset_size) : "the file's"),
       "number of training samples, synthetic only"},
      {"--hidden", kOfJob, widths(options.hidden, 1).initially("the dataset's"),
       "widths of the hidden layers, e.g. 128,128"},
      {"--layers", kOfJob, widths(options.layers, 2).initially("20,1"),
       "widths of all layers, synthetic only; the last width is 1 for regression"},
      {"--step", kOfResult, path(options.step, "STEP.pt2").told(file_name(options.step)),
       "model and step that tools/compile_step made", "", has_step},
  };
}

std::vector<Row> device_options(Options& options, bool has_graph) {
  Choices backends = backend_names();
  backends.insert(backends.begin(), "auto");
  return {
      {"--device", kOfRank, choice(options.device, kDevices), "kind of device"},
      {"--devices,--gpus", kOfRank, devices(options.devices),
       "indices of the CUDA devices to use, e.g. 0 1"},
      {"--nprocs", kOfRank, integer(options.nprocs, 1, kMaxNprocs).initially("one per GPU, else 2"),
       "number of processes, in stage 02 of replicas", "",
       options.started_by != StartedBy::kLauncher},
      {"--threads", kOfRank, threads(options.threads),
       "CPU threads per rank or replica; auto: its share of the cores", "threads"},
      {"--backend", kOfJob, choice(options.backend, backends),
       "library for the collectives; auto: nccl on GPUs, on CPUs shm on one host, else gloo"},
      {"--bucket-mib", kOfJob, positive(options.bucket_mib, "MIB", 1 << 20),
       "size of the buckets of gradients; the first bucket has 1 MiB"},
      {"--timeout", kOfRank, positive(options.timeout_seconds, "SECONDS", kMaxTimeout),
       "time limit for the rendezvous and for every collective"},
      {"--interface", kOfRank, text(options.interface, "NAME").initially("the interface to rank 0"),
       "network interface for the collectives, e.g. ib0"},
      {"--graph", kOfRank, flag(options.graph), "capture the step in a CUDA graph", "", has_graph},
      {"--no-communication", kOfJob, flag(options.no_communication),
       "only for measuring: ranks do not sum gradients, so their weights drift apart"},
  };
}

std::vector<Row> identity_options(Options& options) {
  constexpr int kMaxRank = kMaxWorldSize - 1;
  return {
      {"--rank", kOfRank, integer(options.rank, 0, kMaxRank), "rank of this process"},
      {"--world-size", kOfRank, integer(options.world_size, 1, kMaxWorldSize),
       "number of processes"},
      {"--local-rank", kOfRank, integer(options.local_rank, 0, kMaxRank), "rank on its node"},
      {"--local-world-size", kOfRank, integer(options.local_world_size, 1, kMaxWorldSize),
       "number of processes on this node"},
      {"--master-addr", kOfRank, text(options.master_addr, "HOST"),
       "host on which rank 0 serves the store"},
      {"--master-port", kOfRank, integer(options.master_port, 1, kMaxPort),
       "TCP port of the store"},
  };
}

std::vector<Row> output_options(Options& options) {
  return {
      {"--snapshot", kOfRank,
       path(options.snapshot, "PATH").initially(options.program + ".safetensors"),
       "file for snapshots; the previous file becomes PATH.prev"},
      {"--resume", kOfJob, choice(options.resume, {"restart", "auto", "never"}),
       "restart: resume if the launcher restarted the job; auto: if there is a snapshot"},
      {"--metrics", kOfJob,  // its steps are gathered from all ranks, and written by rank 0
       path(options.metrics, "PATH").told(text_of(!options.metrics.empty())),
       "file for a JSON line per rank and step, and a summary"},
      {"--trace", kOfRank, path(options.trace, "PATH"), "file for a Chrome trace of each rank"},
      {"--verbose", kOfRank, flag(options.verbose),
       "print the first samples of an epoch, the model's inputs, and how busy the ranks are"},
      {"--quiet", kOfRank, flag(options.quiet), "print no line per epoch and no progress bar"},
  };
}

/// The table of all options, by the groups of --help. Parsing changes `options`.
std::vector<std::pair<const char*, std::vector<Row>>> option_table(Options& options, int world_size,
                                                                   const ExtraOptions& extra) {
  return {{"Training", training_options(options, world_size, extra.batch_finder)},
          {"Data and model", data_options(options, extra.step)},
          {"Devices and processes", device_options(options, extra.graph)},
          {"Identity (overrides the launcher)", identity_options(options)},
          {"Output", output_options(options)}};
}

/// Answers `--speedup NAME` with the programs for it.
void refuse_speedup(const std::string& name, const std::string& text) {
  refuse(
      "{}: got {}, expected a program of its own; ddp: 03_ddp_spawn, 04_ddp_launcher or "
      "05_multinode; compile_ddp: 03_ddp_spawn_compiled; dataparallel: 02_data_parallel",
      name, quote(text));
}

void refuse_nprocs(const std::string& name, const std::string& text) {
  refuse("{}: got {}, expected a launcher to set the number of ranks: torchrun --nproc-per-node={}",
         name, quote(text), printable(text));
}

/// Checks that need more than one option.
void check_together(const Options& options, const CommandLine& line) {
  for (const char* const name : {"--layers", "--dataset-size"}) {
    if (options.dataset != kSynthetic && line.given(name)) {
      refuse("{}: got it with --dataset {}, expected --dataset synthetic", name, options.dataset);
    }
  }
  if (!options.layers.empty() && !options.hidden.empty()) {
    refuse("--hidden: got it with --layers, expected one of them");
  }
  if (!options.step.empty() && !options.hidden.empty()) {
    refuse("--hidden: got it with --step, expected the widths of the package alone");
  }
  if (options.device == "cpu" && !options.devices.empty()) {
    refuse("--devices: got it with --device cpu, expected CUDA devices");
  }
  if (options.nprocs && !options.devices.empty() &&
      options.devices.size() != static_cast<size_t>(*options.nprocs)) {
    refuse("--nprocs: got {}, expected {}, the number of --devices", *options.nprocs,
           options.devices.size());
  }
  if (std::set(options.devices.begin(), options.devices.end()).size() != options.devices.size()) {
    refuse("--devices: got {}, expected different ones", fmt::join(options.devices, " "));
  }
  if (options.global_batch && line.given("--batch-size") && !options.find_batch) {
    refuse("--global-batch: got it with --batch-size, expected one of them");
  }
  if (options.memory_limit_bytes && !options.find_batch) {
    refuse("--memory-limit: got it alone, expected --batch-size auto beside it");
  }
}

/// @param options have a resolved batch_size
std::vector<Setting> settings_of(Options options, int world_size) {
  std::vector<Setting> settings;
  for (const auto& [title, rows] : option_table(options, world_size, {})) {
    for (const Row& row : rows) {
      const std::string name = row.names.substr(row.names.find("--"));
      settings.push_back({.name = name.substr(0, name.find(',')),
                          .text = row.value.text,
                          .agree = row.scope >= kOfJob,
                          .result = row.scope == kOfResult,
                          .reported = row.reported});
    }
  }
  return settings;
}

}  // namespace

Options parse_options(int argc, const char* const* argv, StartedBy started_by,
                      const ExtraOptions& extra) {
  Options options;
  options.started_by = started_by;
  options.program = program_name();
  CommandLine line(
      options.program, "Trains a multi-layer perceptron.",
      options.program + " " DDP_VERSION ", LibTorch " DDP_TORCH_VERSION,
      "Dashes and underscores in option names are equal.\n"
      "Exit codes: 0 done, 1 training failed, 2 usage or environment, 3 snapshot refused,\n"
      "75 port or rendezvous (try again), 85 stopped with a good snapshot (run again).",
      44);
  for (const auto& [title, rows] : option_table(options, /*world_size=*/1, extra)) {
    OptionGroup group = line.group(title);
    for (const Row& row : rows) {
      if (row.is_taken) {
        group.add(row.names, row.value, row.help);
      }
    }
  }
  line.group("").add("--speedup", {"NAME", "", "", refuse_speedup}, "");
  if (started_by == StartedBy::kLauncher) {
    line.group("").add("--nprocs", {"N", "", "", refuse_nprocs}, "");
  }
  line.require("total_epochs");
  line.require("save_every");
  line.parse(argc, argv);
  check_together(options, line);
  if (options.snapshot.empty()) {
    options.snapshot = options.program + ".safetensors";
  }
  return options;
}

void add_stage_options(OptionGroup group, Options& options, const std::vector<std::string>& names) {
  for (const auto& [title, rows] : option_table(options, /*world_size=*/1, {})) {
    for (const std::string& each : names) {
      const auto row = std::ranges::find(rows, each.substr(0, each.find(',')), &Row::names);
      if (row != rows.end()) {
        group.add(each, row->value, row->help);
      }
    }
  }
}

void resolve_options(Options& options, int world_size) {
  options.batch_size = resolve_batch_size(options, world_size);
  options.settings = settings_of(options, world_size);
  const std::vector<Setting> usual = settings_of({}, world_size);
  for (size_t i = 0; i < usual.size(); ++i) {
    options.settings[i].is_default = options.settings[i].text == usual[i].text;
  }
}

int64_t resolve_batch_size(const TrainOptions& options, int world_size) {
  if (!options.global_batch) {
    return options.batch_size;
  }
  if (*options.global_batch % world_size != 0) {
    refuse("--global-batch: got {}, expected a multiple of {} ranks", *options.global_batch,
           world_size);
  }
  return *options.global_batch / world_size;
}

double resolve_learning_rate(const TrainOptions& options) {
  const std::string name = check_choice("--optimizer", options.optimizer, optimizer_names());
  const auto* const kind = std::ranges::find(kOptimizers, name, &OptimizerKind::name);
  return options.learning_rate.value_or(kind->learning_rate);
}

int64_t global_batch_of(const TrainOptions& options, int world_size) {
  return options.batch_size * world_size;
}

}  // namespace ddp
