#include "bench/report/micro_results.hpp"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>

#include "bench/report/benchmark_json.hpp"
#include "bench/report/field_json.hpp"
#include "common/base/exit_codes.hpp"

namespace ddp::bench {
namespace {

using nlohmann::ordered_json;

constexpr double kGiga = 1e9;
constexpr const char* kMicroOutput = "what bench_micro writes";

/// One of benchmarks[].
struct Entry {
  std::string where;
  const ordered_json& json;
};

/// The repetitions of one benchmark, in the order in which they ran.
struct Repetitions {
  const FieldReader& reader;
  std::string name;
  std::vector<Entry> entries;

  /// The median over the repetitions; nothing if one of them has nothing.
  std::optional<double> number(const char* key) const {
    std::vector<double> values;
    for (const Entry& entry : entries) {
      reader.read_member(entry.json, entry.where, key, values.emplace_back());
    }
    return median(values);
  }

  std::optional<double> giga(const char* key) const {
    const std::optional<double> value = number(key);
    return value ? std::optional(*value / kGiga) : std::nullopt;
  }

  template <typename Integer>
  Integer first(const char* key) const {
    Integer value = 0;
    reader.read_member(entries.front().json, entries.front().where, key, value);
    return value;
  }

  Distribution time_us() const {
    Distribution time_us = {
        .median = number("time_us_median"),
        .p10 = number("time_us_p10"),
        .p90 = number("time_us_p90"),
        .p95 = number("time_us_p95"),
    };
    for (const Entry& entry : entries) {
      std::size_t n = 0;
      reader.read_member(entry.json, entry.where, "time_us_n", n);
      time_us.n += n;
    }
    return time_us;
  }

  [[noreturn]] void refuse(const std::string& expected) const {
    reader.fail(entries.front().where + "/name: expected " + expected + ", got \"" + name + "\"");
  }
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream list(text);
  for (std::string part; std::getline(list, part, '/');) {
    parts.push_back(part);
  }
  return parts;
}

void read_limit(const Repetitions& runs, const std::string& kind, const std::string& device,
                int world_size, MicroResults& results) {
  auto limit = std::find_if(results.limits.begin(), results.limits.end(),
                            [&](const Limit& known) { return known.world_size == world_size; });
  if (limit == results.limits.end()) {
    limit = results.limits.insert(limit, {device, world_size});
  }
  if (kind == "gemm_fp32") {
    limit->fp32_gflops = runs.giga("flops_per_second");
  } else if (kind == "memory") {
    limit->memory_bandwidth_gbps = runs.giga("memory_bandwidth");
  } else {
    runs.refuse("limits/gemm_fp32 or limits/memory");
  }
}

AllReduceSample read_all_reduce(const Repetitions& runs, const std::string& backend,
                                const std::string& device, int world_size,
                                const Distribution& time_us) {
  AllReduceSample sample = {backend, device, world_size, runs.first<std::int64_t>("bytes"),
                            time_us};
  if (time_us.median && *time_us.median > 0) {
    const double gbps = static_cast<double>(sample.bytes) / (*time_us.median * 1e3);
    sample.algorithm_bandwidth_gbps = gbps;
    sample.bus_bandwidth_gbps = gbps * bus_factor(world_size);
  }
  return sample;
}

void read_benchmark(const Repetitions& runs, const std::string& device, MicroResults& results) {
  const std::vector<std::string> parts = split(runs.name);
  const std::string kind = parts.empty() ? "" : parts.front();
  const auto world_size = runs.first<int>("ranks");
  const Distribution time_us = runs.time_us();
  if (kind == "limits" && parts.size() == 3) {
    read_limit(runs, parts[1], device, world_size, results);
  } else if (kind == "all_reduce" && parts.size() == 4) {
    results.all_reduce.push_back(read_all_reduce(runs, parts[1], device, world_size, time_us));
  } else if (kind == "all_reduce_step" && parts.size() == 4) {
    results.steps.push_back(
        {parts[1], device, world_size, parts[3], time_us, runs.first<std::int64_t>("bytes")});
  } else if (kind == "pieces" && parts.size() >= 2) {
    PieceResult piece{runs.name.substr(kind.size() + 1), time_us};
    if (runs.entries.front().json.contains("bytes")) {
      piece.bytes = runs.first<std::int64_t>("bytes");
      piece.bandwidth_gbps = runs.giga("bandwidth");
    }
    results.pieces.push_back(piece);
  } else {
    runs.refuse("limits/..., all_reduce/..., all_reduce_step/... or pieces/...");
  }
}

/// What each entry says of itself.
struct Heading {
  std::string name;
  std::string run_type;
  std::optional<bool> error_occurred;
  DDP_FIELDS(name, run_type, error_occurred);
};

/// Their runs by name, in the order of the document, without the aggregates that Google Benchmark
/// adds to repetitions.
std::vector<Repetitions> collect(const FieldReader& reader, const ordered_json& benchmarks,
                                 MicroResults& results) {
  reader.expect(benchmarks.is_array(), benchmarks, "/benchmarks", "a list");
  std::vector<Repetitions> collected;
  for (std::size_t i = 0; i < benchmarks.size(); ++i) {
    const Entry entry = {"/benchmarks/" + std::to_string(i), benchmarks[i]};
    Heading heading;
    reader.read(entry.json, entry.where, heading);
    if (heading.error_occurred.value_or(false)) {
      std::string message;
      reader.read_member(entry.json, entry.where, "error_message", message);
      results.errors.push_back(heading.name + ": " + message);
      continue;
    }
    if (heading.run_type != "iteration") {
      continue;
    }
    auto known = std::find_if(collected.begin(), collected.end(),
                              [&](const Repetitions& runs) { return runs.name == heading.name; });
    if (known == collected.end()) {
      collected.push_back({reader, heading.name, {}});
      known = collected.end() - 1;
    }
    known->entries.push_back(entry);
  }
  return collected;
}

template <typename T>
void append_all(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

void MicroResults::append(const MicroResults& other) {
  append_all(limits, other.limits);
  append_all(all_reduce, other.all_reduce);
  append_all(steps, other.steps);
  append_all(pieces, other.pieces);
  append_all(errors, other.errors);
}

MicroResults read_micro_results(const std::string& path) {
  const FieldReader reader(path, kMicroOutput, ExitCode::kTrainingFailed);
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  if (!file) {
    reader.fail(std::string("cannot be read, expected ") + kMicroOutput);
  }
  ordered_json document;
  try {
    document = parse_benchmark_json(text);
  } catch (const nlohmann::json::parse_error&) {
    reader.fail("is no JSON (" + std::to_string(text.size()) + " bytes), expected " + kMicroOutput);
  }
  ordered_json context;
  std::string device;
  reader.read_member(document, "", "context", context);
  reader.read_member(context, "/context", "device", device);
  if (!document.contains("benchmarks")) {
    reader.fail(std::string("no /benchmarks, expected ") + kMicroOutput);
  }
  MicroResults results;
  for (const Repetitions& runs : collect(reader, document["benchmarks"], results)) {
    read_benchmark(runs, device, results);
  }
  return results;
}

}  // namespace ddp::bench
