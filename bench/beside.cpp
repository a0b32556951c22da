#include <zlib.h>

#include <array>
#include <filesystem>

#include "bench/report.hpp"
#include "common/base/parse.hpp"

namespace ddp::bench {
namespace {

using Json = nlohmann::ordered_json;

/// Content of a file, which may be compressed by gzip; of a damaged file the beginning, no JSON.
std::string read_compressed(const std::string& file) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> in(
      std::filesystem::is_regular_file(file) ? gzopen(file.c_str(), "rb") : nullptr, gzclose);
  if (!in) {
    throw std::runtime_error("it is no file that can be read");
  }
  std::string text;
  std::array<char, 1 << 16> part{};
  for (int got = 0; (got = gzread(in.get(), part.data(), part.size())) > 0;) {
    text.append(part.data(), static_cast<std::size_t>(got));
  }
  return text;
}

std::map<std::string, Elsewhere> read_speedups(const std::string& file) {
  const Json document = Json::parse(read_compressed(file)).at("ddp_scaling");
  if (document.at("schema_version") != kSchemaVersion) {
    throw std::runtime_error("schema version " + document["schema_version"].dump());
  }
  const std::string machine =
      fmt::format("{}, {} cores", document.at("machine").at("cpu_model").get<std::string>(),
                  document["machine"].at("cores").get<int>());
  std::map<std::string, Elsewhere> speedups;
  for (const Json& run : document.at("runs")) {
    if (run.at("kind") != "control" && run.at("error").is_null() && run.at("speedup") > 0) {
      speedups[run.at("device").get<std::string>() + "/" + run.at("name").get<std::string>()] = {
          .report = std::filesystem::path(file).filename(),
          .machine = machine,
          .speedup = run["speedup"]};
    }
  }
  return speedups;
}

}  // namespace

OtherReports read_reports(const std::vector<std::string>& files) {
  OtherReports reports;
  for (const std::string& file : files) {
    try {
      reports.push_back(read_speedups(file));
    } catch (const std::exception& error) {  // nlohmann's, or from here
      refuse("--beside: got {}, expected a report of bench, schema version {} ({})", quote(file),
             kSchemaVersion, printable(shorten(error.what())));
    }
  }
  return reports;
}

void set_beside(const OtherReports& others, Report& report) {
  bool found_any = others.empty();
  for (Run& run : report.runs) {
    for (const auto& speedups : others) {
      if (const auto found = speedups.find(run.device + "/" + run.name);
          found != speedups.end() && run.kind != "program") {
        run.elsewhere.push_back(found->second);
        found_any = true;
      }
    }
  }
  if (!found_any) {
    report.not_run.push_back({"--beside",
                              "no stage here is in these reports with the same device, "
                              "model, launcher, backend and ranks"});
  }
}

}  // namespace ddp::bench
