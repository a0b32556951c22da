#include "bench/report/micro_results.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>
#include <numeric>
#include <sstream>
#include <utility>

#include "bench/report/field_json.hpp"
#include "common/base/exit_codes.hpp"

namespace ddp::bench {
namespace {

using nlohmann::ordered_json;

constexpr double kGiga = 1e9;

/// The repetitions of one benchmark, in the order in which they ran.
struct Repetitions {
  const FieldReader& reader;
  std::string name;
  std::vector<std::pair<std::string, ordered_json>> entries;  ///< places in the document, values

  template <typename T>
  std::vector<T> values(const char* key) const {
    std::vector<T> each(entries.size());
    for (std::size_t i = 0; i < entries.size(); ++i) {
      reader.read_member(entries[i].second, entries[i].first, key, each[i]);
    }
    return each;
  }

  template <typename T>
  T first(const char* key) const {
    return values<T>(key).front();
  }

  /// The median over the repetitions; nothing if one of them has nothing.
  std::optional<double> number(const char* key) const { return median(values<double>(key)); }

  std::optional<double> giga(const char* key) const {
    const std::optional<double> value = number(key);
    return value ? std::optional(*value / kGiga) : std::nullopt;
  }

  Distribution time_us() const {
    const std::vector<std::size_t> n = values<std::size_t>("time_us_n");
    return {
        .median = number("time_us_median"),
        .p10 = number("time_us_p10"),
        .p90 = number("time_us_p90"),
        .p95 = number("time_us_p95"),
        .n = std::accumulate(n.begin(), n.end(), std::size_t{0}),
    };
  }

  /// How far apart the repetitions lie; nothing with one.
  std::optional<double> spread() const {
    const auto medians = values<double>("time_us_median");
    const std::optional<double> p10 = percentile(medians, 0.1);
    const std::optional<double> p90 = percentile(medians, 0.9);
    return medians.size() > 1 && p10 && *p10 > 0 ? std::optional(*p90 / *p10) : std::nullopt;
  }

  [[noreturn]] void refuse(const std::string& expected) const {
    reader.fail(fmt::format("{}/name: expected {}, got \"{}\"", entries[0].first, expected, name));
  }
};

void read_limit(const Repetitions& runs, const std::string& kind, const std::string& device,
                int world_size, MicroResults& results) {
  auto limit = std::ranges::find(results.limits, world_size, &Limit::world_size);
  if (limit == results.limits.end()) {
    limit = results.limits.insert(limit, {device, world_size});
  }
  if (kind == "gemm_fp32") {
    limit->fp32_gflops = runs.giga("flops_per_second");
  } else if (kind == "memory") {
    limit->memory.push_back(
        {runs.first<std::int64_t>("working_set"), runs.giga("memory_bandwidth")});
    std::ranges::sort(limit->memory, {}, &MemoryRate::bytes);
    limit->memory_bandwidth_gbps = limit->memory.back().gbps;
  } else if (kind == "kernel_launch") {
    limit->kernel_launch_us = runs.number("kernel_launch_us");
  } else {
    runs.refuse("limits/gemm_fp32, limits/memory or limits/kernel_launch");
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
  sample.pass_spread = runs.spread();
  return sample;
}

void read_benchmark(const Repetitions& runs, const std::string& device, MicroResults& results) {
  std::vector<std::string> parts;
  std::istringstream name(runs.name);
  for (std::string part; std::getline(name, part, '/');) {
    parts.push_back(part);
  }
  const std::string kind = parts.empty() ? "" : parts.front();
  const auto world_size = runs.first<int>("ranks");
  const Distribution time_us = runs.time_us();
  if (kind == "limits" && parts.size() >= 3) {
    read_limit(runs, parts[1], device, world_size, results);
  } else if (kind == "all_reduce" && parts.size() == 4) {
    results.all_reduce.push_back(read_all_reduce(runs, parts[1], device, world_size, time_us));
  } else if (kind == "all_reduce_step" && parts.size() == 4) {
    results.steps.push_back(
        {parts[1], device, world_size, parts[3], time_us, runs.first<std::int64_t>("bytes")});
  } else if (kind == "pieces" && parts.size() >= 2) {
    PieceResult piece{runs.name.substr(kind.size() + 1), time_us,
                      runs.first<std::optional<std::int64_t>>("bytes")};
    if (piece.bytes) {
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
std::vector<Repetitions> collect(const FieldReader& reader,
                                 const std::vector<ordered_json>& benchmarks,
                                 MicroResults& results) {
  std::vector<Repetitions> collected;
  for (std::size_t i = 0; i < benchmarks.size(); ++i) {
    const std::string where = fmt::format("/benchmarks/{}", i);
    Heading heading;
    reader.read(benchmarks[i], where, heading);
    if (heading.error_occurred.value_or(false)) {
      std::string message;
      reader.read_member(benchmarks[i], where, "error_message", message);
      results.errors.push_back(heading.name + ": " + message);
    } else if (heading.run_type == "iteration") {
      auto known = std::ranges::find(collected, heading.name, &Repetitions::name);
      if (known == collected.end()) {
        collected.push_back({reader, heading.name, {}});
        known = collected.end() - 1;
      }
      known->entries.emplace_back(where, benchmarks[i]);
    }
  }
  return collected;
}

bool is_letter(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) != 0;
}

}  // namespace

void keep_best(Limit& limit, const Limit& other) {
  const auto keep = [](std::optional<double>& rate, const std::optional<double>& another) {
    rate = std::max(rate, another);  // nothing is less than any number
  };
  keep(limit.fp32_gflops, other.fp32_gflops);
  keep(limit.memory_bandwidth_gbps, other.memory_bandwidth_gbps);
  for (MemoryRate& rate : limit.memory) {
    const auto same = std::ranges::find(other.memory, rate.bytes, &MemoryRate::bytes);
    rate.gbps = same == other.memory.end() ? rate.gbps : std::max(rate.gbps, same->gbps);
  }
  if (other.kernel_launch_us) {
    limit.kernel_launch_us =
        std::min(limit.kernel_launch_us.value_or(*other.kernel_launch_us), *other.kernel_launch_us);
  }
}

void MicroResults::append(const MicroResults& other) {
  for (const Limit& limit : other.limits) {
    const auto known = std::ranges::find_if(
        limits, [&](const Limit& candidate) { return candidate.is_of_same(limit); });
    if (known == limits.end()) {
      limits.push_back(limit);
    } else {
      keep_best(*known, limit);
    }
  }
  bench::append(all_reduce, other.all_reduce);
  bench::append(steps, other.steps);
  bench::append(pieces, other.pieces);
  bench::append(errors, other.errors);
}

ordered_json parse_benchmark_json(const std::string& text) {
  std::string valid;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = i + 1;
    if (text[i] == '"') {
      while (end < text.size() && text[end] != '"') {
        end += text[end] == '\\' ? 2U : 1U;
      }
      end = std::min(end + 1, text.size());
    } else if (is_letter(text[i]) && (i == 0 || text[i - 1] < '0' || text[i - 1] > '9')) {
      // Outside of strings, and not the e of an exponent: true, false, null, NaN, inf.
      while (end < text.size() && is_letter(text[end])) {
        ++end;
      }
      const std::string word = text.substr(i, end - i);
      if (word != "true" && word != "false" && word != "null") {
        valid.erase(valid.find_last_not_of('-') + 1);
        valid += "null";
        i = end;
      }
    }
    valid.append(text, i, end - i);
    i = end;
  }
  return ordered_json::parse(valid);
}

MicroResults read_micro_results(const std::string& path) {
  const std::string expected = "what bench_micro writes";
  const FieldReader reader(path, expected, ExitCode::kTrainingFailed);
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  if (!file) {
    reader.fail("cannot be read, expected " + expected);
  }
  ordered_json document;
  try {
    document = parse_benchmark_json(text);
  } catch (const nlohmann::json::parse_error&) {
    reader.fail(fmt::format("is no JSON ({} bytes), expected {}", text.size(), expected));
  }
  ordered_json context;
  std::string device;
  std::vector<ordered_json> benchmarks;
  reader.read_member(document, "", "context", context);
  reader.read_member(context, "/context", "device", device);
  reader.read_member(document, "", "benchmarks", benchmarks);
  MicroResults results;
  for (const Repetitions& runs : collect(reader, benchmarks, results)) {
    read_benchmark(runs, device, results);
  }
  // Shuffled passes end in any order.
  std::ranges::stable_sort(results.all_reduce, {}, [](const AllReduceSample& sample) {
    return std::pair(sample.backend, sample.bytes);
  });
  return results;
}

}  // namespace ddp::bench
