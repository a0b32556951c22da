// bench/report/json_report.hpp - the report as one JSON document; docs/bench.md describes every
// field.
#pragma once

#include <nlohmann/json.hpp>
#include <ostream>
#include <string>

#include "bench/report/results.hpp"
#include "bench/run/plan.hpp"
#include "bench/run/settings.hpp"

namespace ddp::bench {

struct JsonReportInput {
  const Settings& settings;
  const Plan& plan;
  const Report& report;
  nlohmann::ordered_json benchmark;  ///< Google Benchmark's document
  nlohmann::ordered_json machine;
  nlohmann::ordered_json software;
};

/// Google Benchmark's document with one further member, "ddp_scaling".
nlohmann::ordered_json make_json_report(JsonReportInput input);

/// Indented, with lists of numbers on one line each. Numbers that JSON cannot hold become null.
void write_json(std::ostream& out, const nlohmann::ordered_json& document);

/// Writes the whole file or leaves the one before. @throws Error (1) naming the file
void write_json_file(const std::string& file, const nlohmann::ordered_json& document);

}  // namespace ddp::bench
