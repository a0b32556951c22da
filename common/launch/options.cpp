// common/launch/options.cpp - the command line of every stage, and the arithmetic of batch sizes.
#include "common/launch/options.hpp"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <set>
#include <string_view>

#include "common/base/option_group.hpp"
#include "common/base/parse.hpp"

#ifndef DDP_VERSION
#define DDP_VERSION "unknown"
#endif
#ifndef DDP_TORCH_VERSION
#define DDP_TORCH_VERSION "unknown"
#endif

namespace ddp {

namespace {

using internal::Choices;
using internal::join;
using internal::OptionGroup;

constexpr int kMaxRanks = std::numeric_limits<int>::max();
constexpr int kMaxPort = 65535;
constexpr int kMaxProcesses = 1024;  // on one machine: more is a slip of the finger
constexpr double kMaxBucketMib = 1 << 20;
constexpr double kMaxLearningRate = 1e9;
constexpr int64_t kMaxDatasetSize = 1'000'000'000'000;
constexpr int64_t kMaxGlobalBatch = int64_t{1} << 62;  // so that twice as much is still a number
constexpr double kMaxTimeout = 30 * 86400;  // longer overflows some clocks of the libraries below

void add_training(CLI::App& app, Options& options) {
  constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
  OptionGroup group(app, "Training");
  group.integer<int64_t>("total_epochs,--total-epochs", options.total_epochs, int64_t{0}, kAny, "",
                         "passes over the data; 0 only evaluates");
  group.integer<int64_t>("save_every,--save-every", options.save_every, int64_t{1}, kAny, "",
                         "epochs from one snapshot to the next");
  CLI::Option* const batch = group.value(
      "--batch-size", "SAMPLES", std::to_string(options.batch_per_rank),
      "per process and micro-batch", [&options](const std::string& name, const std::string& text) {
        if (text == "auto") {
          throw UsageError(name + ": \"auto\" is not available yet, expected an integer >= 1");
        }
        options.batch_per_rank = parse_integer<int64_t>(name, text, 1);
      });
  group
      .integer("--global-batch", options.global_batch, int64_t{1}, kMaxGlobalBatch, "",
               "samples per optimizer step, over all processes and micro-batches; instead of "
               "--batch-size")
      ->excludes(batch);
  group.integer("--accumulate", options.accumulate, int64_t{1}, kAny,
                std::to_string(options.accumulate), "micro-batches per optimizer step");
  group.choice("--optimizer", options.optimizer, {"sgd", "momentum", "adam", "adamw"}, {},
               "what updates the weights");
  group.choice("--lr-schedule", options.lr_schedule, {"constant", "linear"}, {},
               "linear: falls epoch by epoch to zero (default constant; linear for fashion-mnist)");
  group.value("--lr", "RATE", "the optimizer's own", "learning rate",
              [&options](const std::string& name, const std::string& text) {
                options.learning_rate = parse_positive(name, text, kMaxLearningRate);
              });
  group.integer("--seed", options.seed, uint64_t{0}, std::numeric_limits<uint64_t>::max(),
                std::to_string(options.seed),
                "of weights, data and their order; the same on every rank");
  group.flag("--deterministic", options.deterministic, "only algorithms that repeat bit for bit");
}

void add_data_and_model(CLI::App& app, Options& options) {
  OptionGroup group(app, "Data and model");
  const Choices datasets = {"synthetic", "digits", "fashion-mnist"};
  group.value("--dataset", join(datasets), "synthetic", "what to learn",
              [&options, datasets](const std::string& name, const std::string& text) {
                if (text.ends_with(".safetensors") || text.ends_with(".csv")) {
                  throw UsageError(name + ": a file (" + quote(text) +
                                   ") is not available yet, expected " + join(datasets));
                }
                if (std::find(datasets.begin(), datasets.end(), text) == datasets.end()) {
                  throw UsageError(name + ": got " + quote(text) + ", expected " + join(datasets));
                }
                options.dataset = text;
              });
  group.path("--data-dir", options.data_dir, "where it is installed", "folder of the data files");
  group.integer("--dataset-size", options.dataset_size, int64_t{1}, kMaxDatasetSize,
                std::to_string(options.dataset_size), "training samples, synthetic only");
  CLI::Option* const hidden = group.widths("--hidden", options.hidden, 1, "the dataset's",
                                           "widths of the hidden layers, e.g. 128,128");
  group
      .widths("--layers", options.layers, 2, "20,1",
              "all widths, synthetic only; a last width of 1 is regression, more is classification")
      ->excludes(hidden);
  group.choice("--sampler", options.sampler, {"distributed", "padded", "none"}, {},
               "how ranks share the data: exactly, padded to equal parts, or not at all");
  group.flag("--verbose", options.verbose, "the model prints its input's shape on each device");
}

void add_devices(CLI::App& app, Options& options) {
  OptionGroup group(app, "Devices and processes");
  group.choice("--device", options.device, {"auto", "cpu", "cuda"}, {}, "what computes");
  app.add_option_function<Choices>(
         "--devices,--gpus",
         [&options](const Choices& indices) {
           options.devices.clear();
           for (const std::string& index : indices) {
             options.devices.push_back(parse_integer<int>("--devices", index, 0, 4095));
           }
         },
         "indices of the CUDA devices to use, e.g. 0 1")
      ->option_text("N... (default all)")
      ->expected(1, -1)
      ->group("Devices and processes");
  const bool counts = options.launch != Launch::kLauncher;
  group
      .value("--nprocs", "N", "one per device",
             options.launch == Launch::kSpawn ? "processes to start" : "replicas, stage 02",
             [&options, counts](const std::string& name, const std::string& text) {
               if (!counts) {
                 throw UsageError(name + " " + text +
                                  " is for stages 02 and 03; here the launcher decides, e.g. "
                                  "torchrun --nproc-per-node");
               }
               options.nprocs = parse_integer<int>(name, text, 1, kMaxProcesses);
             })
      ->group(counts ? "Devices and processes" : "");
  group.value("--threads", "N", std::to_string(options.threads),
              "CPU threads of each rank or replica; auto: its share of the cores",
              [&options](const std::string& name, const std::string& text) {
                options.threads =
                    text == "auto" ? kAutomaticThreads : parse_integer<int>(name, text, 1, 4096);
              });
  group.choice("--bind", options.bind, {"none", "cores"}, {},
               "cores: each rank runs on its share of the cores and nowhere else");
  group.choice(
      "--backend", options.backend, {"auto", "nccl", "gloo", "shm", "hierarchical", "mpi"}, {},
      "what carries the collectives; auto: nccl on GPUs, else shm on one host, hierarchical "
      "(shm and gloo) on several with several ranks each, else gloo; mpi: under mpirun");
  group.choice("--speedup", options.speedup, {"none", "fused", "graph"}, {},
               "how a step runs: autograd, by hand on preallocated storage, that in a CUDA Graph");
  group.value("--bucket-mib", "MIB", "25",
              "gradients that are all-reduced together; the first bucket has 1 MiB at most",
              [&options](const std::string& name, const std::string& text) {
                options.bucket_mib = parse_positive(name, text, kMaxBucketMib);
              });
  group.choice("--gradient-compression", options.gradient_compression, {"none", "bf16", "fp16"}, {},
               "what gradients are rounded to while they travel: half the bytes, other results");
  group.flag("--shard-optimizer", options.shard_optimizer,
             "each rank keeps and computes its part of the optimizer only (ZeRO-1)");
  group
      .value("--memory-limit", "BYTES", "", "for --batch-size auto",
             [](const std::string& name, const std::string&) {
               throw UsageError(name + " is not available yet, expected --batch-size");
             })
      ->group("");
  group.value("--timeout", "SECONDS", std::to_string(static_cast<int>(options.timeout_seconds)),
              "for the rendezvous and for every collective",
              [&options](const std::string& name, const std::string& text) {
                options.timeout_seconds = parse_positive(name, text, kMaxTimeout);
              });
}

void add_identity(CLI::App& app, Options& options) {
  OptionGroup group(app, "Identity (a launcher says it; this overrides)");
  group.integer("--rank", options.rank, 0, kMaxRanks - 1, "", "of this process");
  group.integer("--world-size", options.world_size, 1, kMaxRanks, "", "number of processes");
  group.integer("--local-rank", options.local_rank, 0, kMaxRanks - 1, "", "among this node's");
  group.integer("--local-world-size", options.local_world_size, 1, kMaxRanks, "", "on this node");
  group.value(
      "--master-addr", "HOST", "", "where rank 0 serves the store",
      [&options](const std::string&, const std::string& text) { options.master_addr = text; });
  group.integer("--master-port", options.master_port, 1, kMaxPort, "", "the store's TCP port");
  group.value(
      "--interface", "NAME", "the one towards rank 0",
      "network interface that carries the collectives, e.g. ib0; also DDP_INTERFACE",
      [&options](const std::string&, const std::string& text) { options.interface = text; });
  group.flag("--dump-env", options.dump_env, "print the identity that was found, and its sources");
  group.flag("--json", options.json, "with --dump-env: as one JSON line");
}

void add_output(CLI::App& app, Options& options) {
  OptionGroup group(app, "Output");
  group.path("--snapshot", options.snapshot, options.program + ".safetensors",
             "the one before is kept as PATH.prev");
  group.choice("--resume", options.resume, {"restart", "auto", "never"}, {},
               "from the snapshot: if the launcher restarted us, if there is one, or not");
  group.path("--metrics", options.metrics, "", "one JSON line per rank and step");
  group.flag("--no-communication", options.no_communication,
             "for measuring only: gradients stay unreduced, so the ranks' weights drift apart");
  group.flag("--quiet", options.quiet, "no line per epoch");
  app.set_help_flag("-h,--help", "print this and exit")->group("Output");
  app.set_version_flag("--version", std::string(), "print the versions and exit")->group("Output");
}

size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j < row.size(); ++j) {
    row[j] = j;
  }
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row.back();
}

[[noreturn]] void refuse_unknown(const CLI::App& app, const std::string& name) {
  constexpr size_t kShortestPart = 4;
  std::string best;
  size_t best_distance = std::max<size_t>(2, name.size() / 3) + 1;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& known_name : option->get_lnames()) {
      const std::string known = "--" + known_name;
      // "--epochs" for "--total-epochs" is one word too few, however many letters that is.
      const bool part =
          name.size() >= 2 + kShortestPart && known_name.find(name.substr(2)) != std::string::npos;
      const size_t distance = part ? 1 : edit_distance(name, known);
      if (distance < best_distance) {
        best_distance = distance;
        best = known;
      }
    }
  }
  throw UsageError(
      "unknown option " + quote(name) +
      (best.empty() ? ", expected one that --help lists" : ", did you mean " + best + "?"));
}

/// Makes the arguments such that CLI11 cannot misread them: underscores in names become dashes,
/// "--lr -1" becomes
/// "--lr=-1" (a value, not an option), and what is unknown, empty or given twice is refused by
/// name.
std::vector<std::string> normalise(const CLI::App& app, int argc, const char* const* argv) {
  std::vector<std::string> arguments;
  std::set<const CLI::Option*> seen;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--") {
      arguments.insert(arguments.end(), argv + i, argv + argc);
      break;
    }
    if (!argument.starts_with('-')) {
      arguments.push_back(argument);
      continue;
    }
    const size_t equals = argument.find('=');
    std::string name = argument.substr(0, equals);
    std::replace(name.begin(), name.end(), '_', '-');
    const CLI::Option* const option = app.get_option_no_throw(name);
    if (option == nullptr) {
      refuse_unknown(app, name);
    }
    if (!seen.insert(option).second) {
      throw UsageError(name + " was given twice, expected once");
    }
    if (option->get_items_expected_max() == 0) {
      if (equals != std::string::npos) {
        throw UsageError(name + ": got the value " + quote(argument.substr(equals + 1)) +
                         ", expected none");
      }
      arguments.push_back(name);
      continue;
    }
    const bool follows = equals == std::string::npos;
    if (follows && (i + 1 == argc || std::string_view(argv[i + 1]).starts_with("--"))) {
      throw UsageError(name + " has no value, expected " + name + " " + option->get_option_text());
    }
    const std::string value = follows ? argv[++i] : argument.substr(equals + 1);
    if (value.empty()) {
      throw UsageError(name + " is empty, expected " + option->get_option_text());
    }
    arguments.push_back(name + "=" + value);
  }
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
  return arguments;
}

/// The same mistake in our words: one line, with the value and what was expected.
[[noreturn]] void refuse(const CLI::App& app, const CLI::ParseError& error,
                         const std::string& program) {
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    const bool epochs = app.get_option("--total-epochs")->count() > 0;
    throw UsageError((epochs ? "save_every is" : "total_epochs and save_every are") +
                     std::string(" missing, expected e.g. \"") + program + " 50 10\"");
  }
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr && !app.remaining().empty()) {
    throw UsageError("unexpected argument " + quote(app.remaining().front()) +
                     ", expected only total_epochs and save_every before the options");
  }
  for (const char* const name : {"total_epochs", "save_every"}) {
    if (app.get_option(name)->count() > 1) {
      throw UsageError(std::string(name) + " was given twice, expected once");
    }
  }
  std::string text = error.what();
  std::replace(text.begin(), text.end(), '\n', ' ');
  throw UsageError(text + ", expected what --help lists");
}

/// What depends on more than one option.
void check_together(const Options& options, const CLI::App& app) {
  const auto given = [&app](const char* name) { return app.get_option(name)->count() > 0; };
  if (options.dataset != "synthetic") {
    for (const char* const name : {"--layers", "--dataset-size"}) {
      if (given(name)) {
        throw UsageError(std::string(name) + " was given with --dataset " + options.dataset +
                         ", expected it only with --dataset synthetic");
      }
    }
  }
  if (options.device == "cpu" && given("--devices")) {
    throw UsageError("--devices was given with --device cpu, expected CUDA devices");
  }
  if (options.nprocs && given("--devices") &&
      options.devices.size() != static_cast<size_t>(*options.nprocs)) {
    throw UsageError("--nprocs: got " + std::to_string(*options.nprocs) + ", expected " +
                     std::to_string(options.devices.size()) + ", the number of --devices");
  }
  std::set<int> distinct(options.devices.begin(), options.devices.end());
  if (distinct.size() != options.devices.size()) {
    // In stage 02 too: autograd has one thread per device, and there one replica's backward would
    // wait for the other's.
    throw UsageError("--devices names a device twice, expected different ones");
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

void parse_with(CLI::App& app, const std::vector<std::string>& arguments, const Options& options) {
  const auto parse = [&](bool required) {
    app.get_option("total_epochs")->required(required);
    app.get_option("save_every")->required(required);
    app.parse(std::vector<std::string>(arguments));
  };
  try {
    try {
      parse(true);  // required, so that "--devices 0 1 50 10" leaves them their two numbers
    } catch (const CLI::RequiredError&) {
      if (app.count("--dump-env") == 0) {
        throw;
      }
      parse(false);
    }
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    throw Answered();
  } catch (const CLI::CallForVersion&) {
    std::cout << versions(options.program) << '\n';
    throw Answered();
  } catch (const CLI::ParseError& error) {
    refuse(app, error, options.program);
  }
}

}  // namespace

std::string program_name(const char* argv0) {
  std::array<char, 4096> buffer{};
  const ssize_t length = readlink("/proc/self/exe", buffer.data(), buffer.size());
  const std::string path = length > 0 ? std::string(buffer.data(), static_cast<size_t>(length))
                                      : std::string(argv0 == nullptr ? "ddp" : argv0);
  const std::string name = path.substr(path.rfind('/') + 1);
  constexpr std::string_view kDeleted = " (deleted)";  // replaced by a newer build since it started
  return name.ends_with(kDeleted) ? name.substr(0, name.size() - kDeleted.size()) : name;
}

Options parse_options(int argc, const char* const* argv, Launch launch) {
  Options options;
  options.launch = launch;
  options.program = program_name(argc > 0 ? argv[0] : nullptr);

  CLI::App app("Trains a multi-layer perceptron.", options.program);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::Throw);
  app.get_formatter()->column_width(44);
  app.footer(
      "Dashes and underscores in option names are equal.\n"
      "Exit codes: 0 done, 1 training failed, 2 usage or environment, 3 snapshot refused,\n"
      "75 port or rendezvous (try again), 85 stopped with a good snapshot (run again).");
  add_training(app, options);
  add_data_and_model(app, options);
  add_devices(app, options);
  add_identity(app, options);
  add_output(app, options);

  parse_with(app, normalise(app, argc, argv), options);
  check_together(options, app);
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
    throw UsageError("--batch-size " + std::to_string(options.batch_per_rank) + " x --accumulate " +
                     std::to_string(options.accumulate) + " x " + std::to_string(world_size) +
                     " ranks is too large, expected a product of at most 2^62");
  }
  if (!options.global_batch) {
    return samples;
  }
  if (*options.global_batch % micro_batches != 0) {
    throw UsageError("Expected --global-batch to be a multiple of " +
                     std::to_string(micro_batches) + " (" + std::to_string(world_size) +
                     " ranks x " + std::to_string(options.accumulate) + " micro-batches), got " +
                     std::to_string(*options.global_batch));
  }
  return *options.global_batch;
}

int64_t resolve_batch_per_rank(const Options& options, int world_size) {
  return resolve_global_batch(options, world_size) / world_size / options.accumulate;
}

}  // namespace ddp
