#include "bench/report/predict_command.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <iterator>
#include <numeric>
#include <utility>

#include "bench/report/analysis.hpp"
#include "bench/report/communication_model.hpp"
#include "bench/report/field_json.hpp"
#include "bench/report/format.hpp"
#include "bench/report/output_file.hpp"
#include "bench/report/predict.hpp"
#include "bench/report/report_file.hpp"
#include "common/base/command_line.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/refuse.hpp"

namespace ddp::bench {
namespace {

constexpr int kMostRanks = 1'000'000;
/// About one core of a server's processor: what results/ has of one.
constexpr double kDefaultGflops = 100;
constexpr double kDefaultMemoryGbps = 30;

/// What the command line says.
struct Wanted {
  Job job;
  std::int64_t batch = 0;
  std::optional<double> gflops;
  std::optional<double> memory_gbps;
  std::optional<Network> network;
  std::string algorithm = "ring";
  std::string report_file;
  std::string run_name;
  std::string backend;
  bool is_json = false;
};

Wanted parse(int argc, const char* const* argv) {
  Wanted wanted;
  Job& job = wanted.job;
  CommandLine line("bench predict",
                   "Says what a step costs before anything is run: memory by part, time by part, "
                   "what bounds it.",
                   "bench " DDP_VERSION,
                   "Exit codes: 0 done, 2 usage. docs/cost_of_a_step.md derives it all.", 34);
  OptionGroup what = line.group("What is trained");
  what.list("--layers", "N,N,...", "widths of all layers, e.g. 784,512,512,10",
            [&job](const std::string& name, const std::vector<std::string>& texts) {
              for (const std::string& text : texts) {
                job.layers.push_back(parse_integer(name, text, std::int64_t{1}, kLargestWidth));
              }
              if (job.layers.size() < 2) {
                refuse("{}: got {}, expected at least 2 widths, e.g. 20,64,1", name,
                       quote(texts.front()));
              }
            });
  what.integer("--batch", wanted.batch, std::int64_t{1}, kLargestWidth, "",
               "samples of a step: of each rank, with --scaling strong of all");
  what.integer("--ranks", job.world_size, 1, kMostRanks, std::to_string(job.world_size),
               "processes, each with a copy of the model");
  what.choice("--scaling", job.scaling, {"weak", "strong"},
              "weak: each rank has the batch; strong: the ranks divide it");
  what.choice("--optimizer", job.optimizer, {"sgd", "momentum", "adam", "adamw"},
              "what updates the weights");
  what.positive("--bucket-mib", "MIB", job.gradients.bucket_mib, 1 << 20, "25",
                "gradients that are all-reduced together; the first bucket is closed at 1 MiB");
  what.choice("--gradient-compression", job.gradients.compression, {"none", "bf16", "fp16"},
              "what gradients are rounded to while they travel");
  what.flag("--shard-optimizer", job.gradients.shard_optimizer,
            "each rank keeps and computes its part of the optimizer only");
  OptionGroup machine = line.group("The machine");
  machine.value("--network", "ALPHA_US,GBPS", "",
                "us a message and 1e9 bytes/s a link; wanted with several ranks, unless --report "
                "has measured it",
                [&wanted](const std::string& name, const std::string& text) {
                  wanted.network = parse_network(name, text);
                });
  machine.choice("--algorithm", wanted.algorithm, {"ring", "tree"},
                 "of the all-reduces over --network");
  machine.positive("--gflops", "N", wanted.gflops, 1e9, format_shortest(kDefaultGflops),
                   "1e9 additions and multiplications a second, each rank");
  machine.positive("--memory-gbps", "N", wanted.memory_gbps, 1e6,
                   format_shortest(kDefaultMemoryGbps), "1e9 bytes/s from memory, each rank");
  machine.text("--report", "FILE", wanted.report_file, "",
               "what bench --json has written: its rates, of as many ranks or the most it has");
  machine.text("--backend", "NAME", wanted.backend, "the only one",
               "of the report, whose all-reduces are meant");
  machine.text("--run", "NAME", wanted.run_name, "",
               "a run of the report: its model, batch, ranks, backend and gradients, and what it "
               "measured beside what is predicted");
  line.group("Output").flag("--json", wanted.is_json, "one JSON document instead of words");
  try {
    line.parse_strictly(argc - 1, argv + 1);
  } catch (const Answered&) {
    flush_standard_output();
    std::exit(0);
  }
  if (wanted.report_file.empty()) {
    for (const char* const name : {"--run", "--backend"}) {
      if (line.given(name)) {
        refuse("{}: it is of a report, expected --report FILE too", name);
      }
    }
  }
  for (const char* const name : {"--layers", "--batch"}) {
    if (wanted.run_name.empty() && !line.given(name)) {
      refuse("{} is missing, expected e.g. --layers 784,512,512,10 --batch 64", name);
    }
  }
  if (!wanted.run_name.empty()) {
    for (const char* const name :
         {"--layers", "--batch", "--ranks", "--scaling", "--bucket-mib", "--gradient-compression",
          "--shard-optimizer", "--optimizer", "--backend", "--network"}) {
      if (line.given(name)) {
        refuse("{}: --run {} says it, expected one of the two", name, quote(wanted.run_name));
      }
    }
  }
  if (line.given("--algorithm") && !wanted.network) {
    refuse("--algorithm: it is of a network that is stated, expected --network ALPHA_US,GBPS too");
  }
  return wanted;
}

/// The run that is meant, whose job it is. @throws UsageError
const Run& choose_run(const Report& report, Wanted& wanted) {
  const Run* const run = report.find(wanted.run_name);
  if (run == nullptr) {
    std::vector<std::string> names;
    for (const Run& other : report.runs) {
      names.push_back(other.name);
    }
    const std::string best = nearest(wanted.run_name, names);
    refuse("--run: {} has no run {}, expected {}", wanted.report_file, quote(wanted.run_name),
           best.empty() ? "one of its runs[].name" : quote(best) + "?");
  }
  const bool is_one = run->world_size == 1 && run->threads == 1;
  if (run->kind != "stage" || (!is_one && !run->several_processes()) || !run->has_speed() ||
      run->layers.size() < 2 || run->global_batch % run->world_size != 0) {
    refuse(
        "--run: got {}, expected a stage's that was measured with one thread per process, of "
        "ranks with equal batches",
        quote(run->name));
  }
  wanted.job = {.layers = run->layers,
                .batch_per_rank = run->global_batch / run->world_size,
                .world_size = run->world_size,
                .scaling = run->scaling,
                .optimizer = wanted.job.optimizer,
                .gradients = {.bucket_mib = run->bucket_mib,
                              .compression = run->gradient_compression,
                              .shard_optimizer = run->shard_optimizer}};
  wanted.backend = run->backend;
  const std::vector<double> counted =
      bytes_of(count_buckets(wanted.job.layers, wanted.job.gradients, wanted.job.world_size));
  if (run->several_processes() && run->comm.bucket_bytes != counted) {
    refuse(
        "--run: {} sends {} times in a step, expected a run whose gradients travel in the {} of "
        "DistributedDataParallel",
        quote(run->name), run->comm.bucket_bytes.size(),
        counted.size() == 1 ? "bucket" : fmt::format("{} buckets", counted.size()));
  }
  return *run;
}

/// On which the job would run: without a run the CPUs, or what else the report has alone.
std::string device_of(const Report* report, const Run* run) {
  if (run != nullptr) {
    return run->device;
  }
  const bool has_cpus =
      report == nullptr || report->limits.empty() ||
      std::ranges::find(report->limits, "cpu", &Limit::device) != report->limits.end();
  return has_cpus ? "cpu" : report->limits.front().device;
}

/// What each of as many ranks can do, or of the most that were measured.
std::optional<Limit> known_limit(const Report& report, const std::string& device, int world_size) {
  int closest = 0;
  for (const Limit& limit : report.limits) {
    if (limit.device == device && limit.world_size <= std::max(world_size, 1)) {
      closest = std::max(closest, limit.world_size);
    }
  }
  return limit_of(report, device, closest);
}

/// @param run whose network is meant; none: one within a node, if that was measured
/// @throws UsageError
const CommunicationModel& choose_network(const Report& report, const Wanted& wanted,
                                         const Run* run) {
  const std::string device = device_of(&report, run);
  std::vector<std::string> backends;
  const CommunicationModel* found = nullptr;
  for (const CommunicationModel& model : report.communication_models) {
    if (model.device != device || (run != nullptr && model.across_nodes != (run->nodes > 1))) {
      continue;
    }
    if (std::ranges::find(backends, model.backend) == backends.end()) {
      backends.push_back(model.backend);
    }
    // The first fits best; one of a single world size may say nothing of this one.
    if ((wanted.backend.empty() || model.backend == wanted.backend) &&
        (found == nullptr || !found->predict_us(1, wanted.job.world_size))) {
      found = &model;
    }
  }
  if (found == nullptr && run != nullptr) {
    refuse("--run: {} has no all-reduces of {} on {} {} nodes, expected a run whose network it has",
           wanted.report_file, run->backend, device, run->nodes > 1 ? "between" : "within");
  }
  if (found == nullptr) {
    refuse("--backend: {} has all-reduces of {}{}, expected one that it has, or --network",
           wanted.report_file,
           backends.empty() ? "no backend" : fmt::format("{}", fmt::join(backends, ", ")),
           wanted.backend.empty() ? "" : ", got " + quote(wanted.backend));
  }
  if (wanted.backend.empty() && backends.size() > 1) {
    refuse("--report: {} has all-reduces of {}, expected --backend to choose one",
           wanted.report_file, fmt::join(backends, ", "));
  }
  return *found;
}

/// Where a rate is from, in words.
struct Source {
  std::string what;
  std::string from;
  DDP_FIELDS(what, from);
};

std::string describe_network(const CommunicationModel& model) {
  const AlphaBetaRegime& regime = model.regimes.front();
  return model.regimes.size() > 1
             ? fmt::format("alpha and beta in {} ranges of sizes", model.regimes.size())
             : fmt::format("alpha {} us and {} us/MiB", format_significant(regime.alpha_us),
                           format_significant(regime.beta_us_per_mib));
}

/// @throws UsageError if one that is needed is not known
Rates choose_rates(const Wanted& wanted, const Report* report, const Run* run,
                   std::vector<Source>& sources) {
  const Job& job = wanted.job;
  Rates rates;
  const std::string device = device_of(report, run);
  const std::optional<Limit> limit =
      report == nullptr ? std::nullopt : known_limit(*report, device, job.world_size);
  const std::string measured =
      limit ? fmt::format(
                  "{}, {} busy", wanted.report_file,
                  limit->world_size == 1 ? "one rank" : fmt::format("{} ranks", limit->world_size))
            : "";
  if (report != nullptr && !limit && !(wanted.gflops && wanted.memory_gbps)) {
    refuse("--report: {} has no limits of a {}, expected --gflops and --memory-gbps too",
           wanted.report_file, device);
  }

  const std::optional<double> gflops = wanted.gflops ? wanted.gflops
                                       : limit       ? limit->fp32_gflops
                                                     : kDefaultGflops;
  if (!gflops || !(*gflops > 0)) {
    refuse("--report: {} has no fp32_gflops, expected --gflops too", wanted.report_file);
  }
  rates.gflops = *gflops;
  sources.push_back({fmt::format("arithmetic {} GFLOP/s", format_significant(rates.gflops)),
                     wanted.gflops ? "--gflops"
                     : limit       ? measured
                             : "a default, about one core of a server's; --gflops, --report"});

  if (wanted.memory_gbps || !limit) {
    rates.memory = {{0, wanted.memory_gbps.value_or(kDefaultMemoryGbps)}};
  } else if (!limit->memory.empty()) {
    rates.memory = limit->memory;
  } else {
    rates.memory = {{0, limit->memory_bandwidth_gbps}};
  }
  const double parameters = parameter_bytes(job.layers);
  const std::optional<double> passes = memory_gbps(rates.memory, 2 * parameters);
  if (!passes) {
    refuse("--report: {} has no memory rate, expected --memory-gbps too", wanted.report_file);
  }
  sources.push_back(
      {fmt::format("memory {} GB/s", format_significant(*passes)),
       wanted.memory_gbps ? "--memory-gbps"
       : limit            ? fmt::format("{}, with {}", measured, format_bytes(2 * parameters))
               : "a default, about one core's share of a server's; --memory-gbps, --report"});

  if (job.world_size == 1) {
    return rates;
  }
  if (wanted.network) {
    rates.network =
        stated_model(*wanted.network, wanted.algorithm == "ring" ? AllReduceAlgorithm::kRing
                                                                 : AllReduceAlgorithm::kTree);
    sources.push_back(
        {fmt::format("network alpha {} us, {} GB/s, {}", format_shortest(wanted.network->alpha_us),
                     format_shortest(wanted.network->gbps), wanted.algorithm),
         "--network, not measured"});
  } else if (report != nullptr) {
    rates.network = choose_network(*report, wanted, run);
    sources.push_back({fmt::format("{}{} {}", rates.network.backend,
                                   rates.network.across_nodes ? " between nodes" : "",
                                   describe_network(rates.network)),
                       fmt::format("{}, fitted to its sweep of {} ranks", wanted.report_file,
                                   fmt::join(rates.network.world_sizes, ", "))});
  } else {
    refuse(
        "--ranks {}: nothing says how fast they communicate, expected --network ALPHA_US,GBPS "
        "or --report FILE",
        job.world_size);
  }
  return rates;
}

nlohmann::ordered_json to_json(const StepPrediction& prediction, const std::vector<Source>& sources,
                               const Run* run) {
  const Job& job = prediction.job;
  nlohmann::ordered_json document = {
      {"schema_version", 1},
      {"layers", job.layers},
      {"batch_per_rank", job.batch_per_rank},
      {"global_batch", job.batch_per_rank * job.world_size},
      {"world_size", job.world_size},
      {"scaling", job.scaling},
      {"optimizer", job.optimizer},
      {"bucket_mib", job.gradients.bucket_mib},
      {"gradient_compression", job.gradients.compression},
      {"shard_optimizer", job.gradients.shard_optimizer},
      {"parameters", prediction.parameters},
      {"flops", prediction.flops},
      {"rates", as_json(prediction.rates)},
      {"sources", as_json(sources)},
      {"memory_bytes", as_json(prediction.memory)},
      {"bucket_bytes", prediction.bucket_bytes},
      {"sent_bytes", prediction.sent_bytes},
      {"time_ms", as_json(prediction.times)},
      {"bound", prediction.bound},
      {"not_bound_by_communication_from_batch", as_json(prediction.least_batch)},
      {"one_rank_step_ms", prediction.one_rank_step_ms},
      {"speedup", prediction.speedup},
      {"run", nullptr},
  };
  if (job.world_size == 1) {
    document["rates"]["network"] = nullptr;
  }
  if (run != nullptr) {
    document["run"] = {{"name", run->name},
                       {"step_ms", as_json(run->step_ms)},
                       {"no_comm_step_ms", as_json(run->no_comm_step_ms)},
                       {"predicted_step_ms", as_json(run->predicted_step_ms)},
                       {"reason", as_json(run->prediction.reason)}};
  }
  return document;
}

/// One line of the terminal: what it is, how much, and of what.
void print_part(std::ostream& out, const std::string& part, const std::string& amount,
                const std::string& of) {
  out << fmt::format("  {:<20}{:>11}{}{}\n", part, amount, of.empty() ? "" : "  ", of);
}

std::string in_ms(double ms) {
  return format_significant(ms) + " ms";
}

void print_memory(std::ostream& out, const StepPrediction& prediction) {
  const Job& job = prediction.job;
  const StepMemory& memory = prediction.memory;
  out << "memory of a rank\n";
  print_part(out, "weights", format_bytes(memory.weights),
             format_count(static_cast<double>(prediction.parameters)) + " parameters, float32");
  print_part(out, "gradients", format_bytes(memory.gradients), "as many");
  print_part(out, "optimizer state", format_bytes(memory.optimizer_state),
             fmt::format("{}: {} of each parameter{}", job.optimizer,
                         kept_values(job.optimizer) == 1
                             ? "1 value"
                             : fmt::format("{} values", kept_values(job.optimizer)),
                         job.gradients.shard_optimizer && job.world_size > 1
                             ? fmt::format(", a part of {}", job.world_size)
                             : ""));
  print_part(out, "activations", format_bytes(memory.activations),
             fmt::format("{} samples x {} values", job.batch_per_rank,
                         std::reduce(job.layers.begin(), job.layers.end())));
  print_part(out, "buckets", format_bytes(memory.buckets),
             job.world_size == 1                   ? "one rank has none"
             : job.gradients.compression == "none" ? "they are ranges of the gradients"
                                                   : job.gradients.compression + " copies");
  print_part(out, "together", format_bytes(memory.total), "");
}

void print_times(std::ostream& out, const StepPrediction& prediction) {
  const Job& job = prediction.job;
  const StepTimes& times = prediction.times;
  out << "a step of a rank\n";
  print_part(out, "arithmetic", in_ms(times.arithmetic),
             fmt::format("{} MFLOP", format_significant(prediction.flops / job.world_size / 1e6)));
  print_part(out, "weights' traffic", in_ms(times.weight_traffic),
             times.weight_traffic > times.arithmetic ? "which takes longer than the arithmetic"
                                                     : "while it computes");
  print_part(
      out, "update", in_ms(times.update),
      fmt::format("{} values of each parameter read or written", updated_values(job.optimizer)));
  if (job.world_size > 1) {
    const std::size_t count = prediction.bucket_bytes.size();
    std::vector<std::string> sizes;
    std::ranges::transform(prediction.bucket_bytes, std::back_inserter(sizes), format_bytes);
    constexpr std::size_t kMostSizes = 4;
    print_part(
        out, "communication", in_ms(times.communication),
        fmt::format("alone: {} of {}", count == 1 ? "one bucket" : fmt::format("{} buckets", count),
                    count > kMostSizes ? format_bytes(std::reduce(prediction.bucket_bytes.begin(),
                                                                  prediction.bucket_bytes.end()))
                                       : fmt::format("{}", fmt::join(sizes, " and "))));
    print_part(out, "hidden, at most", in_ms(times.hidden), "behind backward");
    print_part(out, "exposed, at least", in_ms(times.exposed), "");
  }
  print_part(out, "together", in_ms(times.step),
             job.world_size > 1
                 ? fmt::format("{} without overlap", in_ms(times.step_without_overlap))
                 : "");
}

void print(std::ostream& out, const StepPrediction& prediction, const std::vector<Source>& sources,
           const Run* run) {
  const Job& job = prediction.job;
  const bool several = job.world_size > 1;
  out << fmt::format(
      "{}, {}: {}{}{}\n\n", fmt::join(job.layers, "-"), job.optimizer,
      several ? fmt::format("{} ranks with {} samples each", job.world_size, job.batch_per_rank)
              : fmt::format("one rank with {} samples", job.batch_per_rank),
      several && job.scaling == "weak" ? ", which every further rank brings (weak scaling)"
      : several
          ? fmt::format(", their part of {} (strong scaling)", job.batch_per_rank * job.world_size)
          : "",
      several ? job.gradients.suffix().empty() ? "" : ", " + job.gradients.suffix().substr(1) : "");
  print_memory(out, prediction);
  out << '\n';
  print_times(out, prediction);
  out << fmt::format("\nbound by {}", prediction.bound);
  if (several) {
    out << (!prediction.least_batch ? "; by communication with any batch"
            : *prediction.least_batch == 1
                ? "; by communication with no batch"
                : fmt::format("; by communication below {} samples per rank",
                              format_count(static_cast<double>(*prediction.least_batch))))
        << fmt::format("\n{} times the samples/s of one rank, whose step takes {}",
                       format_significant(prediction.speedup), in_ms(prediction.one_rank_step_ms));
  }
  out << "\n\nrates\n";
  for (const Source& source : sources) {
    out << fmt::format("  {}: {}\n", source.what, source.from);
  }
  out << "not counted: calls of operators, data, ranks that come late"
      << (job.gradients.compression == "none" ? "\n" : ", rounding of gradients\n");
  if (run != nullptr) {
    out << fmt::format("\nmeasured, {}\n", run->name);
    if (several) {
      print_part(out, "without communication",
                 run->no_comm_step_ms ? in_ms(*run->no_comm_step_ms) : "none", "");
      print_part(out, "bench's prediction",
                 run->predicted_step_ms ? in_ms(*run->predicted_step_ms) : "none",
                 run->predicted_step_ms ? "that, and all communication, no overlap"
                                        : run->prediction.reason.value_or(""));
    }
    print_part(out, "step", in_ms(*run->step_ms.median),
               fmt::format("p10 {}, p90 {}", format_significant(run->step_ms.p10),
                           format_significant(run->step_ms.p90)));
  }
}

}  // namespace

int run_predict(int argc, const char* const* argv) {
  Wanted wanted = parse(argc, argv);
  std::optional<ReportFile> file;
  const Run* run = nullptr;
  if (!wanted.report_file.empty()) {
    file = read_report(wanted.report_file);
  }
  std::optional<Run> analysed;
  if (!wanted.run_name.empty()) {
    analysed = choose_run(file->report, wanted);
    // Anew, by the models that the report has: the same functions, so the same number.
    analysed->prediction = bench::predict_step(file->report, *analysed);
    analysed->predicted_step_ms.reset();
    if (analysed->prediction.comm_ms) {
      analysed->predicted_step_ms =
          *analysed->prediction.compute_ms + *analysed->prediction.comm_ms;
    }
    run = &*analysed;
  } else {
    const int parts = wanted.job.scaling == "strong" ? wanted.job.world_size : 1;
    if (wanted.batch % parts != 0) {
      refuse("--batch {}: {} ranks cannot divide it, expected a multiple of {}", wanted.batch,
             parts, parts);
    }
    wanted.job.batch_per_rank = wanted.batch / parts;
  }
  std::vector<Source> sources;
  const Rates rates = choose_rates(wanted, file ? &file->report : nullptr, run, sources);
  const StepPrediction prediction = predict_from_rates(wanted.job, rates);
  if (!std::isfinite(prediction.times.step_without_overlap) || !std::isfinite(prediction.speedup)) {
    refuse(
        "--gflops, --memory-gbps, --network: got rates with which a step never ends, expected "
        "larger ones");
  }
  if (wanted.is_json) {
    write_json(std::cout, to_json(prediction, sources, run));
  } else {
    print(std::cout, prediction, sources, run);
  }
  return static_cast<int>(ExitCode::kDone);
}

}  // namespace ddp::bench
