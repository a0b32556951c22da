// bench/html/document.hpp - what the page needs of a report, whatever the document leaves out.
#pragma once

#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/html/text.hpp"
#include "bench/report/statistics.hpp"
#include "bench/run/metrics.hpp"

namespace ddp::bench::html {

/// A member that is missing or of another type is nothing: an empty string, no number, no list.
const nlohmann::ordered_json& member(const nlohmann::ordered_json& object, const char* key);
Number number_at(const nlohmann::ordered_json& object, const char* key);
std::string text_at(const nlohmann::ordered_json& object, const char* key);

struct Run {
  std::string name;
  std::string kind;  ///< "stage", "peer" or "control"
  std::string program;  ///< "03_ddp_spawn_by_hand"
  std::string variant;
  std::string launcher;
  std::string backend;
  std::string speedup;  ///< and how gradients travelled, if not as usual: "fused bf16"
  std::string device;
  std::string model;
  std::string scaling;
  int nodes = 1;
  int world_size = 0;  ///< 0: not known
  Number global_batch;
  Number steps;
  Distribution step_ms;
  Number samples_per_second;
  Number relative_speedup;
  Number efficiency;
  std::array<Number, kPhases> phases_ms;
  Number no_comm_step_ms;
  struct {
    Number alone_ms;
    Number hidden_share;
    Number bytes_per_step;
    Number bus_bandwidth_gbps;
    Number exposed_by_difference_ms;
    std::vector<double> bucket_bytes;
  } comm;
  Number floor_ms;
  Number predicted_step_ms;
  struct {
    std::string algorithm;
    Number compute_ms;
    Number comm_ms;
    Number ring_step_ms;
    Number tree_step_ms;
    Number residual;
  } prediction;
  Number peak_rss_mib;
  Number job_peak_rss_mib;
  Number startup_ms;
  Number cpu_utilisation;
  struct {
    Number utilisation_percent;
    Number power_w;
    Number memory_mib;
  } gpu;
  struct {
    Number rank;
    Number share_of_steps;
    Number median_excess;
  } slowest_rank;
  std::optional<bool> parity_ok;
  std::string error;

  bool is_control() const { return kind == "control"; }
  /// Stage 01: what the others are measured against.
  bool is_baseline() const;
  bool has_speed() const { return error.empty() && step_ms.median.has_value(); }
};

struct Comparison {
  std::string a;
  std::string b;
  std::string kind;  ///< "baseline", "control" or "peer"
  std::string verdict;  ///< of `a`: "faster", "slower", "same" or empty
  Number ratio;  ///< step time of `a` over that of `b`
  std::optional<Interval> ci95;
  Number pairs;
};

struct AllReduce {
  std::string backend;
  std::string device;
  int world_size = 0;
  double bytes = 0;
  Distribution time_us;
  Number algorithm_bandwidth_gbps;
  Number bus_bandwidth_gbps;
};

struct Regime {
  double from_bytes = 0;
  double alpha_us = 0;
  double beta_us_per_mib = 0;
};

struct CommunicationModel {
  std::string backend;
  std::string device;
  std::string algorithm;  ///< "ring" or "tree"
  std::vector<int> world_sizes;
  std::vector<Regime> regimes;  ///< ascending
  Number median_relative_error;
  Number points;
};

struct Extrapolation {
  std::string from;  ///< name of a run
  std::string algorithm;
  int world_size = 0;
  Number step_ms;
  Number efficiency;
};

struct Limit {
  std::string device;
  int world_size = 0;
  Number fp32_gflops;
  Number memory_bandwidth_gbps;
};

struct Micro {
  std::string name;
  Distribution time_us;
  Number bytes;
  Number bandwidth_gbps;
};

/// Runs of one model under one kind of scaling: what a panel shows.
struct Group {
  std::string model;
  std::string scaling;
  std::vector<const Run*> runs;  ///< controls left out

  std::string title() const;
  /// The stage 01 run with a speed; nullptr without one.
  const Run* baseline() const;
};

struct Document {
  std::string date;
  nlohmann::ordered_json machine;
  nlohmann::ordered_json software;
  nlohmann::ordered_json settings;
  std::vector<Run> runs;
  std::vector<Comparison> comparisons;
  std::vector<AllReduce> all_reduce;
  std::vector<CommunicationModel> communication_models;
  std::vector<Extrapolation> extrapolations;
  std::vector<std::string> assumptions;
  std::vector<Limit> limits;
  std::vector<Micro> micro;
  std::vector<std::pair<std::string, std::string>> not_run;  ///< what, and why
  std::vector<nlohmann::ordered_json> merged_from;
  bool partial = false;

  const Run* find(const std::string& name) const;
};

/// Never throws for valid JSON: a document of an older version, or a damaged one, has less in it.
Document read_document(const nlohmann::ordered_json& json);

/// In order of appearance. The pointers are into document.runs.
std::vector<Group> group_runs(const Document& document);

}  // namespace ddp::bench::html
