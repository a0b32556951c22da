#include "bench/report/micro_results.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "bench/report/benchmark_json.hpp"
#include "common/base/exit_codes.hpp"

namespace ddp::bench {
namespace {

using nlohmann::ordered_json;

constexpr double kGiga = 1e9;

/// Finds members and names the file and the benchmark if there are none.
class Reader {
 public:
  Reader(std::string path, std::string device)
      : path_(std::move(path)), device_(std::move(device)) {}

  const std::string& device() const { return device_; }
  void at(const std::string& name) { name_ = name; }

  [[noreturn]] void fail(const std::string& message) const {
    throw Error(ExitCode::kTrainingFailed,
                path_ + ": " + (name_.empty() ? "" : name_ + ": ") + message);
  }

  const ordered_json& member(const ordered_json& object, const char* key, const char* type,
                             bool (ordered_json::*is_type)() const noexcept) const {
    const auto found = object.is_object() ? object.find(key) : object.end();
    if (found == object.end() || !((*found).*is_type)()) {
      fail(std::string("expected ") + type + " \"" + key + "\"");
    }
    return *found;
  }

  std::string text(const ordered_json& object, const char* key) const {
    return member(object, key, "a text", &ordered_json::is_string).get<std::string>();
  }

  /// Nothing for what is not a number but stands there, as null.
  std::optional<double> number(const ordered_json& object, const char* key) const {
    const auto found = object.find(key);
    if (found != object.end() && found->is_null()) {
      return std::nullopt;
    }
    const double value = member(object, key, "a number", &ordered_json::is_number).get<double>();
    return std::isfinite(value) ? std::optional<double>(value) : std::nullopt;
  }

  /// Google Benchmark writes all counters as floating point numbers.
  std::int64_t whole_number(const ordered_json& object, const char* key) const {
    constexpr double kLargest = 9e15;
    const double value = number(object, key).value_or(-1);
    if (!(value >= 0 && value <= kLargest) || value != std::floor(value)) {
      fail(std::string("expected a whole number \"") + key + "\"");
    }
    return static_cast<std::int64_t>(value);
  }

 private:
  std::string path_;
  std::string device_;
  std::string name_;
};

/// The repetitions of one benchmark, in the order in which they ran.
struct Runs {
  std::string name;
  std::vector<ordered_json> runs;
};

/// The median over the repetitions; nothing if one of them has nothing.
std::optional<double> number_of(const Reader& reader, const Runs& runs, const char* key) {
  std::vector<double> values;
  for (const ordered_json& run : runs.runs) {
    values.push_back(reader.number(run, key).value_or(std::nan("")));
  }
  return median(values);
}

std::optional<double> giga_of(const Reader& reader, const Runs& runs, const char* key) {
  const std::optional<double> value = number_of(reader, runs, key);
  return value ? std::optional<double>(*value / kGiga) : std::nullopt;
}

Distribution time_of(const Reader& reader, const Runs& runs) {
  Distribution time_us;
  time_us.median = number_of(reader, runs, "time_us_median");
  time_us.p10 = number_of(reader, runs, "time_us_p10");
  time_us.p90 = number_of(reader, runs, "time_us_p90");
  time_us.p95 = number_of(reader, runs, "time_us_p95");
  for (const ordered_json& run : runs.runs) {
    time_us.n += static_cast<std::size_t>(reader.whole_number(run, "time_us_n"));
  }
  return time_us;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream list(text);
  for (std::string part; std::getline(list, part, '/');) {
    parts.push_back(part);
  }
  return parts;
}

void read_limit(const Reader& reader, const Runs& runs, const std::string& kind, int world_size,
                MicroResults& results) {
  Limit* limit = nullptr;
  for (Limit& known : results.limits) {
    if (known.world_size == world_size) {
      limit = &known;
    }
  }
  if (limit == nullptr) {
    results.limits.push_back({world_size, reader.device(), std::nullopt, std::nullopt});
    limit = &results.limits.back();
  }
  if (kind == "gemm_fp32") {
    limit->fp32_gflops = giga_of(reader, runs, "flops_per_second");
  } else if (kind == "memory") {
    limit->memory_bandwidth_gbps = giga_of(reader, runs, "memory_bandwidth");
  } else {
    reader.fail("expected limits/gemm_fp32 or limits/memory");
  }
}

void read_benchmark(Reader& reader, const Runs& runs, MicroResults& results) {
  const std::vector<std::string> parts = split(runs.name);
  const std::string kind = parts.empty() ? "" : parts.front();
  const ordered_json& first = runs.runs.front();
  const auto world_size = static_cast<int>(reader.whole_number(first, "ranks"));
  const Distribution time_us = time_of(reader, runs);
  if (kind == "limits" && parts.size() == 3) {
    read_limit(reader, runs, parts[1], world_size, results);
  } else if (kind == "all_reduce" && parts.size() == 4) {
    results.all_reduce.push_back(
        {parts[1], reader.device(), world_size, reader.whole_number(first, "bytes"), time_us});
  } else if (kind == "all_reduce_step" && parts.size() == 4) {
    results.steps.push_back({parts[1], reader.device(), world_size, parts[3], time_us,
                             reader.whole_number(first, "bytes")});
  } else if (kind == "pieces" && parts.size() >= 2) {
    PieceResult piece{runs.name.substr(kind.size() + 1), time_us, std::nullopt, std::nullopt};
    if (first.contains("bytes")) {
      piece.bytes = reader.whole_number(first, "bytes");
      piece.bandwidth_gbps = giga_of(reader, runs, "bandwidth");
    }
    results.pieces.push_back(piece);
  } else {
    reader.fail("expected limits/..., all_reduce/..., all_reduce_step/... or pieces/...");
  }
}

/// Their runs by name, in the order of the document, without the aggregates that Google Benchmark
/// adds to repetitions.
std::vector<Runs> collect(Reader& reader, const ordered_json& benchmarks, MicroResults& results) {
  std::vector<Runs> collected;
  for (const ordered_json& run : benchmarks) {
    reader.at("");
    const std::string name = reader.text(run, "name");
    reader.at(name);
    if (run.contains("error_occurred") && run["error_occurred"] == true) {
      results.errors.push_back(name + ": " + reader.text(run, "error_message"));
      continue;
    }
    if (reader.text(run, "run_type") != "iteration") {
      continue;
    }
    auto known = std::find_if(collected.begin(), collected.end(),
                              [&](const Runs& runs) { return runs.name == name; });
    if (known == collected.end()) {
      known = collected.insert(known, Runs{name, {}});
    }
    known->runs.push_back(run);
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
  Reader reader(path, "");
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  if (!file) {
    reader.fail("cannot be read, expected what bench_micro writes");
  }
  ordered_json document;
  try {
    document = parse_benchmark_json(text);
  } catch (const nlohmann::json::parse_error&) {
    reader.fail("is no JSON (" + std::to_string(text.size()) +
                " bytes), expected what bench_micro writes");
  }
  const ordered_json& context =
      reader.member(document, "context", "an object", &ordered_json::is_object);
  reader = Reader(path, reader.text(context, "device"));
  const ordered_json& benchmarks =
      reader.member(document, "benchmarks", "a list", &ordered_json::is_array);
  MicroResults results;
  for (const Runs& runs : collect(reader, benchmarks, results)) {
    reader.at(runs.name);
    read_benchmark(reader, runs, results);
  }
  return results;
}

}  // namespace ddp::bench
