// common/launch/options.cpp - the command line of every stage, and the arithmetic of batch sizes.
#include "common/launch/options.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "common/base/command_line.hpp"
#include "common/base/refuse.hpp"
#include "common/launch/network.hpp"

namespace ddp {
namespace {

constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
constexpr int64_t kMaxGlobalBatch = int64_t{1} << 62;
constexpr int kMaxProcesses = 1024;  // on one machine
constexpr int kMaxThreads = 4096;
constexpr int kMaxDevice = 4095;
constexpr double kMaxBucketMib = 1 << 20;
constexpr double kMaxLearningRate = 1e9;
constexpr int64_t kMaxDatasetSize = 1'000'000'000'000;
constexpr double kMaxTimeout = 30 * 86400;  // longer overflows some clocks of the libraries below

/// "128,128"
StoreValue store_widths(std::vector<int64_t>& target, size_t fewest) {
  return [&target, fewest](const std::string& name, const std::string& text) {
    target.clear();
    std::istringstream list(text + ",");
    for (std::string width; std::getline(list, width, ',');) {
      target.push_back(parse_integer<int64_t>(name, width, 1));
    }
    if (target.size() < fewest) {
      refuse("{}: got {}, expected at least {} widths, e.g. 20,64,1", name, quote(text), fewest);
    }
  };
}

/// "536870912", "512MiB"
StoreValue store_bytes(std::optional<int64_t>& target) {
  return [&target](const std::string& name, const std::string& text) {
    const std::map<std::string_view, int> shifts = {{"KiB", 10}, {"MiB", 20}, {"GiB", 30}};
    const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
    const auto shift = shifts.find(std::string_view(text).substr(digits));
    if (digits < text.size() && shift == shifts.end()) {
      refuse("{}: got {}, expected bytes, e.g. 536870912, 512MiB or 4GiB", name, quote(text));
    }
    const int bits = digits < text.size() ? shift->second : 0;
    target = parse_integer<int64_t>(name, text.substr(0, digits), 1, kAny >> bits) << bits;
  };
}

void add_batch_size(OptionGroup& group, Options& options, const ExtraOptions& extra) {
  group.value(
      "--batch-size", extra.batch_finder ? "SAMPLES or auto" : "SAMPLES",
      std::to_string(options.batch_size),
      extra.batch_finder ? "per process and step; auto: as many as there is memory for"
                         : "per process and step",
      [&options, extra](const std::string& name, const std::string& text) {
        options.find_batch = text == "auto";
        if (options.find_batch && !extra.batch_finder) {
          refuse("{}: got \"auto\", expected a number; 04_ddp_launcher_auto_batch finds one", name);
        }
        if (!options.find_batch) {
          options.batch_size = parse_integer<int64_t>(name, text, 1);
        }
      });
  group.integer("--global-batch", options.global_batch, int64_t{1}, kMaxGlobalBatch, "",
                "samples per step over all processes, instead of --batch-size");
  if (extra.batch_finder) {
    group.value("--memory-limit", "BYTES", "what there is",
                "memory of a process, for --batch-size auto on a CPU, e.g. 4GiB",
                store_bytes(options.memory_limit_bytes));
  }
}

void add_training(OptionGroup group, Options& options, const ExtraOptions& extra) {
  group.integer("total_epochs,--total-epochs", options.total_epochs, int64_t{0}, kAny, "",
                "passes over the data; 0 only evaluates");
  group.integer("save_every,--save-every", options.save_every, int64_t{1}, kAny, "",
                "epochs between snapshots");
  add_batch_size(group, options, extra);
  group.choice("--optimizer", options.optimizer, {"sgd", "momentum", "adam", "adamw"},
               "class in torch::optim; momentum: SGD with 0.9");
  group.positive("--lr", "RATE", options.learning_rate, kMaxLearningRate, "the optimizer's own",
                 "learning rate");
  group.integer("--seed", options.seed, uint64_t{0}, std::numeric_limits<uint64_t>::max(),
                std::to_string(options.seed),
                "of weights, data and their order; the same on every rank");
  group.flag("--deterministic", options.deterministic, "only algorithms that repeat bit for bit");
}

void add_data(OptionGroup group, Options& options) {
  const Choices datasets = {"synthetic", "digits", "fashion-mnist"};
  group.value("--dataset", "DATA", options.dataset,
              join(datasets) + ", or a FILE.safetensors, which tools/to_safetensors makes",
              [&options, datasets](const std::string& name, const std::string& text) {
                options.dataset = text;
                if (std::ranges::find(datasets, text) == datasets.end() &&
                    !text.ends_with(".safetensors")) {
                  refuse("{}: got {}, expected {}, or a FILE.safetensors", name, quote(text),
                         join(datasets));
                }
              });
  group.text("--data-dir", "PATH", options.data_dir, "where it is installed",
             "folder of the data files");
  group.integer("--dataset-size", options.dataset_size, int64_t{1}, kMaxDatasetSize,
                std::to_string(options.dataset_size), "training samples, synthetic only");
  group.value("--hidden", "N,N,...", "the dataset's", "widths of the hidden layers, e.g. 128,128",
              store_widths(options.hidden, 1));
  group.value("--layers", "N,N,...", "20,1",
              "all widths, synthetic only; a last width of 1 is regression, more is classification",
              store_widths(options.layers, 2));
}

void add_devices(OptionGroup group, Options& options, const ExtraOptions& extra) {
  group.choice("--device", options.device, {"auto", "cpu", "cuda"}, "kind of device");
  group.values("--devices,--gpus", "N... (default all)",
               "indices of the CUDA devices to use, e.g. 0 1",
               [&options](const std::string& name, const std::vector<std::string>& indices) {
                 for (const std::string& index : indices) {
                   options.devices.push_back(parse_integer<int>(name, index, 0, kMaxDevice));
                 }
               });
  if (options.launch != Launch::kLauncher) {
    group.integer("--nprocs", options.nprocs, 1, kMaxProcesses, "one per GPU, else 2",
                  "processes to start, in stage 02 replicas");
  }
  group.value("--threads", "N or auto", std::to_string(options.threads),
              "CPU threads of each rank or replica; auto: its share of the cores",
              [&options](const std::string& name, const std::string& text) {
                options.threads = text == "auto" ? kAutomaticThreads
                                                 : parse_integer<int>(name, text, 1, kMaxThreads);
              });
  group.choice(
      "--backend", options.backend, {"auto", "nccl", "nccl-legacy", "gloo", "mpi", "shm"},
      "library for the collectives; auto: nccl on GPUs, on CPUs shm on one host, else gloo");
  group.positive("--bucket-mib", "MIB", options.bucket_mib, kMaxBucketMib, "25",
                 "size of the groups in which gradients are all-reduced; the first has 1 MiB");
  group.positive("--timeout", "SECONDS", options.timeout_seconds, kMaxTimeout,
                 std::to_string(static_cast<int>(options.timeout_seconds)),
                 "for the rendezvous and for every collective");
  group.text("--interface", "NAME", options.interface, "the one towards rank 0",
             "network interface for the collectives, e.g. ib0");
  if (extra.graph) {
    group.flag("--graph", options.graph, "capture the step in a CUDA graph");
  }
  group.flag("--no-communication", options.no_communication,
             "for measuring only: sums over the ranks are left out, so weights drift apart");
}

void add_identity(OptionGroup group, Options& options) {
  group.integer("--rank", options.rank, 0, kMaxWorldSize - 1, "", "of this process");
  group.integer("--world-size", options.world_size, 1, kMaxWorldSize, "", "number of processes");
  group.integer("--local-rank", options.local_rank, 0, kMaxWorldSize - 1, "", "on this node");
  group.integer("--local-world-size", options.local_world_size, 1, kMaxWorldSize, "",
                "processes on this node");
  group.text("--master-addr", "HOST", options.master_addr, "",
             "host on which rank 0 serves the store");
  group.integer("--master-port", options.master_port, 1, kMaxPort, "", "TCP port of the store");
}

void add_output(OptionGroup group, Options& options) {
  group.text("--snapshot", "PATH", options.snapshot, options.program + ".safetensors",
             "the snapshot before is kept as PATH.prev");
  group.choice("--resume", options.resume, {"restart", "auto", "never"},
               "restart: resume if the launcher restarted the job; auto: if there is a snapshot");
  group.text("--metrics", "PATH", options.metrics, "",
             "one JSON line per rank and step, and a summary");
  group.text("--trace", "PATH", options.trace, "", "a Chrome trace of each rank, by Kineto");
  group.flag("--verbose", options.verbose,
             "print which samples an epoch reads first, the model's input, how busy ranks are");
  group.flag("--quiet", options.quiet, "no line per epoch, and no progress bar");
}

/// Answers users who type `--speedup NAME` with the program that does it.
void add_old_spellings(OptionGroup group) {
  group
      .value("--speedup", "NAME", "", "",
             [](const std::string& name, const std::string& text) {
               const std::string fused = "03_ddp_spawn_fused";
               const std::map<std::string, std::string> programs = {
                   {"ddp", "03_ddp_spawn, 04_ddp_launcher or 05_multinode"},
                   {"compile_ddp", fused},
                   {"fused", fused},
                   {"graph", fused + " --graph"},
                   {"dataparallel", "02_data_parallel"}};
               const auto program = programs.find(text);
               refuse("{}: got {}, expected {}", name, quote(text),
                      program == programs.end() ? "none: each way to train is a program of its own"
                                                : "the program that does it: " + program->second);
             })
      .hidden();
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

std::string program_name() {
  return std::filesystem::read_symlink("/proc/self/exe").filename();
}

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
  add_identity(line.group("Identity (a launcher says it; this overrides)"), options);
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
  int64_t samples = 0;
  if (__builtin_mul_overflow(options.batch_size, int64_t{world_size}, &samples) ||
      samples > kMaxGlobalBatch) {
    refuse("--batch-size: got {}, expected at most 2^62 samples over {} ranks", options.batch_size,
           world_size);
  }
  return samples;
}

}  // namespace ddp
