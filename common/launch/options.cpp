// common/launch/options.cpp - the command line of every stage, and the arithmetic of batch sizes.
#include "common/launch/options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <initializer_list>
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

constexpr int kMaxProcesses = 1024;  // on one machine: more is a slip of the finger
constexpr double kMaxBucketMib = 1 << 20;
constexpr double kMaxLearningRate = 1e9;
constexpr int64_t kMaxDatasetSize = 1'000'000'000'000;
constexpr int64_t kMaxGlobalBatch = int64_t{1} << 62;  // so that twice as much is still a number
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

/// Also answers who types what `--speedup` is elsewhere: there it picks what here is a stage.
StoreValue store_speedup(Options& options, const Choices& choices) {
  return [&options, choices](const std::string& name, const std::string& text) {
    static const std::map<std::string, const char*> kElsewhere = {
        {"ddp", "DistributedDataParallel is stages 03_ddp_spawn, 04_ddp_launcher and 05_multinode"},
        {"compile_ddp",
         "stages 03_ddp_spawn, 04_ddp_launcher and 05_multinode with --speedup fused, or graph on "
         "GPUs (LibTorch has no torch.compile)"},
        {"dataparallel", "DataParallel is stage 02_data_parallel"},
    };
    if (const auto known = kElsewhere.find(text); known != kElsewhere.end()) {
      refuse("{}: got {}, expected {}; what it means is here: {}", name, quote(text), join(choices),
             known->second);
    }
    options.speedup = check_choice(name, text, choices);
  };
}

/// "finite,weights=100"
StoreValue store_checks(Options& options) {
  return [&options](const std::string& name, const std::string& text) {
    constexpr std::string_view kWeights = "weights=";
    std::istringstream list(text + ",");
    for (std::string check; std::getline(list, check, ',');) {
      if (check == "finite") {
        options.check_finite = true;
      } else if (check.starts_with(kWeights)) {
        options.check_weights_every =
            parse_integer<int64_t>(name + " weights", check.substr(kWeights.size()), 1);
      } else {
        refuse("{}: got {}, expected finite, weights=K, or both with a comma", name, quote(text));
      }
    }
  };
}

/// "536870912", "512MiB"
StoreValue store_bytes(std::optional<int64_t>& target) {
  return [&target](const std::string& name, const std::string& text) {
    std::string_view number = text;
    int shift = 0;
    for (const std::string_view unit : {"KiB", "MiB", "GiB", "TiB"}) {
      shift += 10;
      if (number.ends_with(unit)) {
        number.remove_suffix(unit.size());
        break;
      }
    }
    shift = number.size() == text.size() ? 0 : shift;
    try {
      constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
      target = parse_integer<int64_t>(name, number, 1, kAny >> shift) << shift;
    } catch (const UsageError&) {
      refuse("{}: got {}, expected a number of bytes >= 1, e.g. 536870912, 512MiB or 4GiB", name,
             quote(text));
    }
  };
}

void add_training(OptionGroup group, Options& options) {
  constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
  group.integer("total_epochs,--total-epochs", options.total_epochs, int64_t{0}, kAny, "",
                "passes over the data; 0 only evaluates");
  group.integer("save_every,--save-every", options.save_every, int64_t{1}, kAny, "",
                "epochs from one snapshot to the next");
  group.value("--batch-size", "SAMPLES", std::to_string(options.batch_per_rank),
              "per process and micro-batch; auto: as many as there is memory for",
              [&options](const std::string& name, const std::string& text) {
                options.find_batch = text == "auto";
                if (!options.find_batch) {
                  options.batch_per_rank = parse_integer<int64_t>(name, text, 1);
                }
              });
  group.integer("--global-batch", options.global_batch, int64_t{1}, kMaxGlobalBatch, "",
                "samples per optimizer step, over all processes and micro-batches; instead of "
                "--batch-size, or with --batch-size auto");
  group.integer("--accumulate", options.accumulate, int64_t{1}, kAny,
                std::to_string(options.accumulate), "micro-batches per optimizer step");
  group.choice("--optimizer", options.optimizer, {"sgd", "momentum", "adam", "adamw"},
               "what updates the weights");
  group.choice("--lr-schedule", options.lr_schedule, {"constant", "linear"},
               "linear: falls epoch by epoch to zero (default constant; linear for fashion-mnist)");
  group.choice("--scale-lr", options.scale_lr, {"none", "linear", "sqrt"},
               "what a batch that --batch-size auto found does to the learning rate");
  group.positive("--lr", "RATE", options.learning_rate, kMaxLearningRate, "the optimizer's own",
                 "learning rate");
  group.integer("--seed", options.seed, uint64_t{0}, std::numeric_limits<uint64_t>::max(),
                std::to_string(options.seed),
                "of weights, data and their order; the same on every rank");
  group.flag("--deterministic", options.deterministic, "only algorithms that repeat bit for bit");
}

void add_data_and_model(OptionGroup group, Options& options) {
  const Choices datasets = {"synthetic", "digits", "fashion-mnist"};
  group.value("--dataset", "DATA", "synthetic",
              "what to learn: " + join(datasets) +
                  ", or a FILE.safetensors, which tools/to_safetensors makes",
              [&options, datasets](const std::string& name, const std::string& text) {
                options.dataset = text;
                const bool is_known = std::ranges::find(datasets, text) != datasets.end();
                if (!is_known && !text.ends_with(".safetensors")) {
                  refuse(
                      "{}: got {}, expected {}, or a FILE.safetensors (tools/to_safetensors makes "
                      "one of a table or of images)",
                      name, quote(text), join(datasets));
                }
              });
  group.text("--data-dir", "PATH", options.data_dir, "where it is installed",
             "folder of the data files");
  group.integer("--dataset-size", options.dataset_size, int64_t{1}, kMaxDatasetSize,
                std::to_string(options.dataset_size), "training samples, synthetic only");
  const Option hidden =
      group.value("--hidden", "N,N,...", "the dataset's",
                  "widths of the hidden layers, e.g. 128,128", store_widths(options.hidden, 1));
  group
      .value("--layers", "N,N,...", "20,1",
             "all widths, synthetic only; a last width of 1 is regression, more is classification",
             store_widths(options.layers, 2))
      .excludes(hidden);
  group.choice("--sampler", options.sampler, {"distributed", "padded", "none"},
               "how ranks share the data: exactly, padded to equal parts, or not at all");
  group.flag(
      "--verbose", options.verbose,
      "each rank prints which samples an epoch reads first, the model its input's shape on each "
      "device; at the end each rank says how busy it was");
}

void add_devices(OptionGroup group, Options& options) {
  group.choice("--device", options.device, {"auto", "cpu", "cuda"}, "what computes");
  group.values("--devices,--gpus", "N... (default all)",
               "indices of the CUDA devices to use, e.g. 0 1",
               [&options](const std::string& name, const std::vector<std::string>& indices) {
                 options.devices.clear();
                 for (const std::string& index : indices) {
                   options.devices.push_back(parse_integer<int>(name, index, 0, 4095));
                 }
               });
  const bool counts = options.launch != Launch::kLauncher;
  Option nprocs =
      group.value("--nprocs", "N", "one per GPU, else 2",
                  options.launch == Launch::kSpawn ? "processes to start" : "replicas, stage 02",
                  [&options, counts](const std::string& name, const std::string& text) {
                    if (!counts) {
                      refuse(
                          "{} {} is for stages 02 and 03; here the launcher decides, e.g. torchrun "
                          "--nproc-per-node",
                          name, text);
                    }
                    options.nprocs = parse_integer<int>(name, text, 1, kMaxProcesses);
                  });
  if (!counts) {
    nprocs.hidden();
  }
  group.value("--threads", "N", std::to_string(options.threads),
              "CPU threads of each rank or replica; auto: its share of the cores or of a quota",
              [&options](const std::string& name, const std::string& text) {
                options.threads =
                    text == "auto" ? kAutomaticThreads : parse_integer<int>(name, text, 1, 4096);
              });
  group.choice("--bind", options.bind, {"none", "cores"},
               "cores: each rank runs on its share of the cores and nowhere else");
  group.choice(
      "--backend", options.backend, {"auto", "nccl", "gloo", "shm", "hierarchical", "mpi"},
      "what carries the collectives; auto: nccl on GPUs, else shm on one host, hierarchical "
      "(shm and gloo) on several with several ranks each, else gloo; mpi: under mpirun");
  const Choices speedups = {"none", "fused", "graph"};
  group.value("--speedup", join(speedups), options.speedup,
              "how a step runs: autograd, by hand on preallocated storage, that in a CUDA Graph",
              store_speedup(options, speedups));
  group.positive("--bucket-mib", "MIB", options.bucket_mib, kMaxBucketMib, "25",
                 "gradients that are all-reduced together; the first bucket is closed at 1 MiB");
  group.choice("--gradient-compression", options.gradient_compression, {"none", "bf16", "fp16"},
               "what gradients are rounded to while they travel: half the bytes, other results");
  group.flag("--shard-optimizer", options.shard_optimizer,
             "each rank keeps and computes its part of the optimizer only (ZeRO-1)");
  group.value("--memory-limit", "BYTES", "what there is",
              "resident memory of a process, for --batch-size auto on a CPU, e.g. 4GiB",
              store_bytes(options.memory_limit_bytes));
  group.positive("--timeout", "SECONDS", options.timeout_seconds, kMaxTimeout,
                 std::to_string(static_cast<int>(options.timeout_seconds)),
                 "for the rendezvous and for every collective");
}

void add_identity(OptionGroup group, Options& options) {
  group.integer("--rank", options.rank, 0, kMaxWorldSize - 1, "", "of this process");
  group.integer("--world-size", options.world_size, 1, kMaxWorldSize, "", "number of processes");
  group.integer("--local-rank", options.local_rank, 0, kMaxWorldSize - 1, "", "among this node's");
  group.integer("--local-world-size", options.local_world_size, 1, kMaxWorldSize, "",
                "on this node");
  group.text("--master-addr", "HOST", options.master_addr, "", "where rank 0 serves the store");
  group.integer("--master-port", options.master_port, 1, kMaxPort, "", "the store's TCP port");
  group.text("--interface", "NAME", options.interface, "the one towards rank 0",
             "network interface that carries the collectives, e.g. ib0; also DDP_INTERFACE");
  group.flag("--dump-env", options.dump_env, "print the identity that was found, and its sources");
  group.flag("--json", options.json, "with --dump-env: as one JSON line");
}

void add_output(OptionGroup group, Options& options) {
  group.text("--snapshot", "PATH", options.snapshot, options.program + ".safetensors",
             "the one before is kept as PATH.prev");
  group.choice("--resume", options.resume, {"restart", "auto", "never"},
               "from the snapshot: if the launcher restarted us, if there is one, or not");
  group.text("--metrics", "PATH", options.metrics, "",
             "one JSON line per rank and step, and a summary");
  group.text("--trace", "PATH", options.trace, "",
             "the last steps of every rank on one time axis, as a Chrome trace: phases, and what "
             "travelled meanwhile (on CPUs; not with --speedup graph)");
  group.text("--tensorboard", "DIR", options.tensorboard, "",
             "folder for event files that TensorBoard shows: loss, accuracy, learning rate, speed");
  group.value(
      "--check", "CHECK,...", "",
      "finite: fail in the step in which a rank's loss or gradient is NaN or infinite (with "
      "--speedup graph: its loss), not at the end of the epoch; weights=K: every K steps, fail if "
      "the ranks' weights differ",
      store_checks(options));
  group.flag("--no-communication", options.no_communication,
             "for measuring only: gradients stay unreduced, so the ranks' weights drift apart");
  group.flag("--quiet", options.quiet, "no line per epoch, and no progress bar");
}

void add_faults(OptionGroup group, Options& options) {
  const Choices faults = {"none",       "no-set-epoch",    "no-broadcast",
                          "no-mean",    "average-weights", "rank-0-collective",
                          "mismatched", "uneven-inputs"};
  Option inject =
      group.value("--inject", "NAME", options.inject, join(faults),
                  [&options, faults](const std::string& name, const std::string& text) {
                    options.inject = check_choice(name, text, faults);
                    if (options.inject != "none" && options.launch == Launch::kAlone) {
                      refuse("{}: got {}, expected none: {} is one process; 03_ddp_spawn has ranks",
                             name, quote(text), options.program);
                    }
                  });
  if (options.launch == Launch::kAlone) {
    inject.hidden();
  }
}

void check_inject(const Options& options) {
  if (options.inject == "none") {
    return;
  }
  const bool keeps_gradients = options.inject == "average-weights";
  for (const auto& [given, other] : std::initializer_list<std::pair<bool, std::string>>{
           {options.find_batch, "--batch-size auto"},
           {options.speedup != "none", "--speedup " + options.speedup},
           {options.no_communication, "--no-communication"},
           {keeps_gradients && options.shard_optimizer, "--shard-optimizer"},
           {keeps_gradients && options.gradient_compression != "none",
            "--gradient-compression " + options.gradient_compression}}) {
    if (given) {
      refuse("--inject {} was given with {}, expected only one of them", options.inject, other);
    }
  }
}

void check_batch(const Options& options, const CommandLine& line) {
  if (options.find_batch) {
    if (options.global_batch && line.given("--accumulate")) {
      throw UsageError(
          "--accumulate was given with --batch-size auto and --global-batch, expected only two of "
          "them: it follows from the batch that is found");
    }
  } else if (options.global_batch && line.given("--batch-size")) {
    throw UsageError(
        "--batch-size was given with --global-batch, expected one of them, or --batch-size auto");
  } else if (options.memory_limit_bytes) {
    throw UsageError("--memory-limit was given alone, expected it with --batch-size auto");
  }
  if (options.scale_lr != "none" && (!options.find_batch || options.global_batch)) {
    refuse("--scale-lr {} was given {}, expected it with --batch-size auto alone", options.scale_lr,
           options.global_batch ? "with --global-batch, which stays what it is"
                                : "without --batch-size auto");
  }
}

/// What depends on more than one option.
void check_together(const Options& options, const CommandLine& line) {
  for (const char* const name : {"--layers", "--dataset-size"}) {
    if (options.dataset != "synthetic" && line.given(name)) {
      refuse("{} was given with --dataset {}, expected it only with --dataset synthetic", name,
             options.dataset);
    }
  }
  if (options.device == "cpu" && line.given("--devices")) {
    throw UsageError("--devices was given with --device cpu, expected CUDA devices");
  }
  if (options.nprocs && line.given("--devices") &&
      options.devices.size() != static_cast<size_t>(*options.nprocs)) {
    refuse("--nprocs: got {}, expected {}, the number of --devices", *options.nprocs,
           options.devices.size());
  }
  std::set<int> distinct(options.devices.begin(), options.devices.end());
  if (distinct.size() != options.devices.size()) {
    // In stage 02 too: autograd has one thread per device, and there one replica's backward would
    // wait for the other's.
    throw UsageError("--devices names a device twice, expected different ones");
  }
  if (options.check_weights_every > 0 && options.no_communication) {
    throw UsageError(
        "--check weights was given with --no-communication, expected only one of them: without "
        "communication weights differ");
  }
  check_inject(options);
  check_batch(options, line);
  if (!options.trace.empty() && options.speedup == "graph") {
    throw UsageError(
        "--trace was given with --speedup graph, expected none or fused: of what a graph repeats "
        "the host sees no part");
  }
  if (options.json && !options.dump_env) {
    throw UsageError("--json was given alone, expected it with --dump-env");
  }
}

std::string versions(const std::string& program) {
#ifdef __clang__
  const std::string compiler = __VERSION__;
#else
  const std::string compiler = "GCC " __VERSION__;
#endif
  return program + " " DDP_VERSION ", LibTorch " DDP_TORCH_VERSION ", " + compiler;
}

}  // namespace

std::string program_name(const char* argv0) {
  constexpr std::string_view kDeleted = " (deleted)";  // replaced by a newer build since it started
  std::error_code error;
  std::filesystem::path path = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) {
    path = argv0 == nullptr ? "ddp" : argv0;
  }
  const std::string name = path.filename();
  return name.ends_with(kDeleted) ? name.substr(0, name.size() - kDeleted.size()) : name;
}

Options parse_options(int argc, const char* const* argv, Launch launch) {
  Options options;
  options.launch = launch;
  options.program = program_name(argc > 0 ? argv[0] : nullptr);

  CommandLine line(
      options.program, "Trains a multi-layer perceptron.", versions(options.program),
      "Dashes and underscores in option names are equal.\n"
      "Exit codes: 0 done, 1 training failed, 2 usage or environment, 3 snapshot refused,\n"
      "75 port or rendezvous (try again), 85 stopped with a good snapshot (run again).",
      44);
  add_training(line.group("Training"), options);
  add_data_and_model(line.group("Data and model"), options);
  add_devices(line.group("Devices and processes"), options);
  add_identity(line.group("Identity (a launcher says it; this overrides)"), options);
  add_output(line.group("Output"), options);
  line.put_help_into("Output");
  add_faults(line.group("Faults on purpose, for docs/exercises"), options);
  line.require({"total_epochs", "save_every"}, "--dump-env", "50 10");
  line.parse_strictly(argc, argv);
  check_together(options, line);
  if (options.snapshot.empty()) {
    options.snapshot = options.program + ".safetensors";
  }
  return options;
}

int64_t resolve_global_batch(const Options& options, int world_size) {
  int64_t micro_batches = 0;
  int64_t samples = 0;
  const bool overflow =
      __builtin_mul_overflow(options.accumulate, int64_t{world_size}, &micro_batches) ||
      __builtin_mul_overflow(options.batch_per_rank, micro_batches, &samples);
  if (overflow || samples > kMaxGlobalBatch) {
    refuse(
        "--batch-size {} x --accumulate {} x {} ranks is too large, expected a product of at most "
        "2^62",
        options.batch_per_rank, options.accumulate, world_size);
  }
  const int64_t global_batch = options.global_batch.value_or(samples);
  if (global_batch % micro_batches != 0) {
    refuse(
        "Expected --global-batch to be a multiple of {} ({} ranks x {} micro-batches), "
        "got {}",
        micro_batches, world_size, options.accumulate, global_batch);
  }
  return global_batch;
}

int64_t resolve_batch_per_rank(const Options& options, int world_size) {
  return resolve_global_batch(options, world_size) / world_size / options.accumulate;
}

}  // namespace ddp
