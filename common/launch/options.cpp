// common/launch/options.cpp - the command line of every stage, and the arithmetic of batch sizes.
#include "common/launch/options.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <set>

#include "common/base/command_line.hpp"
#include "common/base/refuse.hpp"
#include "common/meet/address.hpp"

namespace ddp {
namespace {

constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
constexpr int64_t kMaxGlobalBatch = int64_t{1} << 62;
constexpr int64_t kMaxBatch = kMaxGlobalBatch / kMaxWorldSize;
constexpr double kMaxTimeout = 30 * 86400;  // longer times overflow clocks of libraries

/// Parses "128,128".
StoreValue store_widths(std::vector<int64_t>& target, size_t fewest) {
  return [&target, fewest](const std::string& name, const std::string& text) {
    target.clear();
    for (const std::string& width : split(text)) {
      target.push_back(parse_integer<int64_t>(name, width, 1));
    }
    if (target.size() < fewest) {
      refuse("{}: got {}, expected at least {} widths, e.g. 20,64,1", name, quote(text), fewest);
    }
  };
}

/// Parses "536870912" and "512MiB".
StoreValue store_bytes(std::optional<int64_t>& target) {
  return [&target](const std::string& name, const std::string& text) {
    const std::map<std::string, int> shifts = {{"", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}};
    const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
    const auto shift = shifts.find(text.substr(digits));
    if (shift == shifts.end()) {
      refuse("{}: got {}, expected bytes, e.g. 536870912, 512MiB or 4GiB", name, quote(text));
    }
    const int bits = shift->second;
    target = parse_integer<int64_t>(name, text.substr(0, digits), 1, kAny >> bits) << bits;
  };
}

void add_batch_size(OptionGroup& group, Options& options, const ExtraOptions& extra) {
  group.value(
      "--batch-size", extra.batch_finder ? "SAMPLES or auto" : "SAMPLES",
      std::to_string(options.batch_size),
      extra.batch_finder ? "samples per process and step; auto: as many as fit into memory"
                         : "samples per process and step",
      [&options, extra](const std::string& name, const std::string& text) {
        options.find_batch = text == "auto";
        if (options.find_batch && !extra.batch_finder) {
          refuse("{}: got \"auto\", expected a number; 04_ddp_launcher_auto_batch finds one", name);
        }
        if (!options.find_batch) {
          options.batch_size = parse_integer<int64_t>(name, text, 1, kMaxBatch);
        }
      });
  group.integer("--global-batch", options.global_batch, int64_t{1}, kMaxGlobalBatch, "",
                "samples per step over all processes, instead of --batch-size");
  if (extra.batch_finder) {
    group.value("--memory-limit", "BYTES", "the free memory",
                "memory of each process for --batch-size auto on a CPU, e.g. 4GiB",
                store_bytes(options.memory_limit_bytes));
  }
}

void add_training(OptionGroup group, Options& options, const ExtraOptions& extra) {
  group.integer("total_epochs,--total-epochs", options.total_epochs, int64_t{0}, kAny, "",
                "number of passes over the data; 0 only evaluates");
  group.integer("save_every,--save-every", options.save_every, int64_t{1}, kAny, "",
                "number of epochs between snapshots");
  add_batch_size(group, options, extra);
  group.choice("--optimizer", options.optimizer, {"sgd", "momentum", "adam", "adamw"},
               "optimizer of torch::optim; momentum: SGD with momentum 0.9");
  group.positive("--lr", "RATE", options.learning_rate, 1e9, "the optimizer's own",
                 "learning rate");
  group.integer("--seed", options.seed, uint64_t{0}, std::numeric_limits<uint64_t>::max(),
                std::to_string(options.seed),
                "seed of weights, data and order; the same on every rank");
  group.flag("--deterministic", options.deterministic, "use algorithms that repeat bit for bit");
}

void add_data(OptionGroup group, Options& options) {
  const Choices datasets = {"synthetic", "digits", "fashion-mnist"};
  group.value("--dataset", "DATA", options.dataset,
              join(datasets) + ", or a FILE.safetensors made by tools/to_safetensors",
              [&options, datasets](const std::string& name, const std::string& text) {
                options.dataset = parse_path(name, text);
                if (std::ranges::find(datasets, text) == datasets.end() &&
                    !text.ends_with(".safetensors")) {
                  refuse("{}: got {}, expected {}, or a FILE.safetensors", name, quote(text),
                         join(datasets));
                }
              });
  group.path("--data-dir", "PATH", options.data_dir, "the installed folder",
             "folder with the data files");
  group.integer("--dataset-size", options.dataset_size, int64_t{1}, int64_t{1'000'000'000'000},
                std::to_string(options.dataset_size), "number of training samples, synthetic only");
  group.value("--hidden", "N,N,...", "the dataset's", "widths of the hidden layers, e.g. 128,128",
              store_widths(options.hidden, 1));
  group.value("--layers", "N,N,...", "20,1",
              "widths of all layers, synthetic only; the last width is 1 for regression",
              store_widths(options.layers, 2));
}

void add_devices(OptionGroup group, Options& options, const ExtraOptions& extra) {
  group.choice("--device", options.device, {"auto", "cpu", "cuda"}, "kind of device");
  group.values("--devices,--gpus", "N... (default all)",
               "indices of the CUDA devices to use, e.g. 0 1",
               [&options](const std::string& name, const std::vector<std::string>& indices) {
                 for (const std::string& index : indices) {
                   options.devices.push_back(parse_integer<int>(name, index, 0, 4095));
                 }
               });
  if (options.launch != Launch::kLauncher) {
    group.integer("--nprocs", options.nprocs, 1, 1024, "one per GPU, else 2",
                  "number of processes, in stage 02 of replicas");
  }
  group.value("--threads", "N or auto", std::to_string(options.threads),
              "CPU threads per rank or replica; auto: its share of the cores",
              [&options](const std::string& name, const std::string& text) {
                options.threads =
                    text == "auto" ? kAutomaticThreads : parse_integer<int>(name, text, 1, 4096);
              });
  group.choice(
      "--backend", options.backend, {"auto", "nccl", "nccl-legacy", "gloo", "mpi", "shm"},
      "library for the collectives; auto: nccl on GPUs, on CPUs shm on one host, else gloo");
  group.positive("--bucket-mib", "MIB", options.bucket_mib, 1 << 20, "25",
                 "size of the buckets of gradients; the first bucket has 1 MiB");
  group.positive("--timeout", "SECONDS", options.timeout_seconds, kMaxTimeout,
                 std::to_string(static_cast<int>(options.timeout_seconds)),
                 "time limit for the rendezvous and for every collective");
  group.text("--interface", "NAME", options.interface, "the interface to rank 0",
             "network interface for the collectives, e.g. ib0");
  if (extra.graph) {
    group.flag("--graph", options.graph, "capture the step in a CUDA graph");
  }
  group.flag("--no-communication", options.no_communication,
             "only for measuring: ranks do not sum gradients, so their weights drift apart");
}

void add_identity(OptionGroup group, Options& options) {
  group.integer("--rank", options.rank, 0, kMaxWorldSize - 1, "", "rank of this process");
  group.integer("--world-size", options.world_size, 1, kMaxWorldSize, "", "number of processes");
  group.integer("--local-rank", options.local_rank, 0, kMaxWorldSize - 1, "", "rank on its node");
  group.integer("--local-world-size", options.local_world_size, 1, kMaxWorldSize, "",
                "number of processes on this node");
  group.text("--master-addr", "HOST", options.master_addr, "",
             "host on which rank 0 serves the store");
  group.integer("--master-port", options.master_port, 1, kMaxPort, "", "TCP port of the store");
}

void add_output(OptionGroup group, Options& options) {
  group.path("--snapshot", "PATH", options.snapshot, options.program + ".safetensors",
             "file for snapshots; the previous file becomes PATH.prev");
  group.choice("--resume", options.resume, {"restart", "auto", "never"},
               "restart: resume if the launcher restarted the job; auto: if there is a snapshot");
  group.path("--metrics", "PATH", options.metrics, "",
             "file for a JSON line per rank and step, and a summary");
  group.path("--trace", "PATH", options.trace, "", "file for a Chrome trace of each rank");
  group.flag("--verbose", options.verbose,
             "print the first samples of an epoch, the model's inputs, and how busy the ranks are");
  group.flag("--quiet", options.quiet, "print no line per epoch and no progress bar");
}

/// Answers `--speedup NAME` with the programs for it.
void add_old_spellings(OptionGroup group) {
  const StoreValue answer = [](const std::string& name, const std::string& text) {
    refuse(
        "{}: got {}, expected a program of its own; ddp: 03_ddp_spawn, 04_ddp_launcher or "
        "05_multinode; compile_ddp: 03_ddp_spawn_fused; dataparallel: 02_data_parallel",
        name, quote(text));
  };
  group.value("--speedup", "NAME", "", "", answer).hidden();
}

/// Checks that need more than one option.
void check_together(const Options& options, const CommandLine& line) {
  for (const char* const name : {"--layers", "--dataset-size"}) {
    if (options.dataset != "synthetic" && line.given(name)) {
      refuse("{}: got it with --dataset {}, expected --dataset synthetic", name, options.dataset);
    }
  }
  if (!options.layers.empty() && !options.hidden.empty()) {
    refuse("--hidden: got it with --layers, expected one of them");
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

}  // namespace

Options parse_options(int argc, const char* const* argv, Launch launch, const ExtraOptions& extra) {
  Options options;
  options.launch = launch;
  options.program = program_name();
  CommandLine line(
      options.program, "Trains a multi-layer perceptron.",
      options.program + " " DDP_VERSION ", LibTorch " DDP_TORCH_VERSION,
      "Dashes and underscores in option names are equal.\n"
      "Exit codes: 0 done, 1 training failed, 2 usage or environment, 3 snapshot refused,\n"
      "75 port or rendezvous (try again), 85 stopped with a good snapshot (run again).",
      44);
  add_training(line.group("Training"), options, extra);
  add_data(line.group("Data and model"), options);
  add_devices(line.group("Devices and processes"), options, extra);
  add_identity(line.group("Identity (overrides the launcher)"), options);
  add_output(line.group("Output"), options);
  add_old_spellings(line.group("Old spellings"));
  line.require("total_epochs");
  line.require("save_every");
  line.parse(argc, argv);
  check_together(options, line);
  if (options.snapshot.empty()) {
    options.snapshot = options.program + ".safetensors";
  }
  return options;
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

int64_t global_batch_of(const TrainOptions& options, int world_size) {
  return options.batch_size * world_size;
}

}  // namespace ddp
