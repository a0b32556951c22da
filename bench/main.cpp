// bench: runs the stages and compares their speed.

#include <algorithm>
#include <fstream>
#include <iostream>

#include "bench/machine.hpp"
#include "bench/plan.hpp"
#include "bench/report.hpp"
#include "bench/run.hpp"
#include "bench/settings.hpp"
#include "common/base/json_text.hpp"
#include "common/launch/run_main.hpp"

namespace ddp::bench {
namespace {

Report measure(Plan& plan) {
  Session session;
  Report report;
  for (const std::string& note : plan.notes) {
    session.progress.note(note);
  }
  install_peers(plan, session);
  describe(plan, report);
  session.progress.begin(count_launches(plan) + count_piece_calls(plan));
  run_plan(plan, session, report);
  measure_pieces(plan, session, report);
  session.progress.clear();
  return report;
}

void write_json(std::ostream& out, const nlohmann::ordered_json& document,
                const std::string& name) {
  out << json_text(document, 1) << std::endl;
  if (!out) {
    throw Error(ExitCode::kTrainingFailed, "cannot write the report to " + name);
  }
}

void write(const Settings& settings, const Report& report) {
  std::ostream& screen = settings.json_on_stdout ? std::cerr : std::cout;
  print(screen, report);
  nlohmann::ordered_json document = google_benchmark_document(report);
  document["ddp_scaling"] = to_json(report, !settings.no_samples);
  if (settings.json_on_stdout) {
    write_json(std::cout, document, "standard output");
  }
  if (!settings.json_file.empty()) {
    std::ofstream file(settings.json_file);
    write_json(file, document, settings.json_file);
    screen << "wrote " << settings.json_file << '\n';
  }
  if (!settings.html_file.empty()) {
    write_page(settings.html_file, document);
    screen << "wrote " << settings.html_file << '\n';
  }
}

ExitCode run(int argc, char** argv) {
  Plan plan = make_plan(parse_settings(argc, argv));
  if (plan.settings.list_only) {
    list_benchmarks(std::cout, plan);
    return ExitCode::kDone;
  }
  if (plan.settings.dry_run) {
    print_plan(std::cout, plan);
    return ExitCode::kDone;
  }
  Report report = measure(plan);
  pair(report);
  judge(report);
  write_sentences(report);
  write(plan.settings, report);
  const bool failed =
      std::ranges::any_of(report.runs, [](const Run& r) { return r.error.has_value(); });
  return failed || report.partial ? ExitCode::kTrainingFailed : ExitCode::kDone;
}

}  // namespace
}  // namespace ddp::bench

int main(int argc, char** argv) {
  return ddp::internal::guarded(
      [&](std::string&) { return static_cast<int>(ddp::bench::run(argc, argv)); });
}
