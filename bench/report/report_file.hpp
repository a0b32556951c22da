// bench/report/report_file.hpp - a report of bench, read back from its file.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "bench/report/record.hpp"

namespace ddp::bench {

/// One document that bench --json has written; one of version 1 as version 2 has it.
struct ReportFile {
  std::string path;
  nlohmann::ordered_json document;
  Report report;
  int version = kSchemaVersion;  ///< of the file
};

/// @throws UsageError naming the file, what is wrong there, and what was expected: not a file, not
///         JSON, another schema, two runs of one name, a field of the wrong type
ReportFile read_report(const std::string& path);

/// The same for a document in memory; `path` stands in messages.
ReportFile parse_report(const std::string& path, nlohmann::ordered_json document);

}  // namespace ddp::bench
