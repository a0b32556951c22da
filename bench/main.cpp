// bench: runs the stages, or programs of the user's, and compares their speed.

#include <iostream>

#include "bench/launchers.hpp"
#include "bench/machine.hpp"
#include "bench/report.hpp"
#include "bench/run.hpp"
#include "common/base/json_text.hpp"
#include "common/launch/spawn.hpp"

namespace ddp::bench {
namespace {

Report measure(Plan& plan) {
  Session session;
  Report report;
  for (const std::string& note : plan.notes) {
    session.progress.note(note);
  }
  install_peers(plan, session);
  compile_steps(plan, session);
  add_facts(plan, report);
  const OtherPrograms others(session);  // from here on
  session.progress.begin(count_launches(plan) + count_piece_calls(plan));
  run_plan(plan, session, report);
  measure_pieces(plan, session, report);
  others.add_to(plan, report);
  session.progress.clear();
  return report;
}

/// Writes all that the settings ask for, also if one of them fails. @throws Error with all reasons
void write(const Settings& settings, const Report& report) {
  std::ostream& screen = settings.json_on_stdout ? std::cerr : std::cout;
  print(screen, report);
  nlohmann::ordered_json document = google_benchmark_document(report);
  document["ddp_scaling"] = report;
  const std::string text = json_text(document, 1) + '\n';
  std::string failures;
  if (settings.json_on_stdout && !(std::cout << text << std::flush)) {
    failures = "cannot write the report to standard output";
  }
  for (const std::string& file : {settings.json_file, settings.html_file}) {
    try {
      if (!file.empty()) {
        file == settings.json_file ? replace_file("report", file, text)
                                   : write_page(file, document);
        screen << "wrote " << file << '\n';
      }
    } catch (const Error& error) {
      failures += (failures.empty() ? "" : "; ") + std::string(error.what());
    }
  }
  if (!failures.empty()) {
    throw Error(ExitCode::kTrainingFailed, failures);
  }
}

ExitCode run(int argc, char** argv) {
  Plan plan = make_plan(parse_settings(argc, argv));
  const OtherReports reports = read_reports(plan.settings.beside);  // refused before measuring
  if (plan.settings.list_only || plan.settings.dry_run) {
    plan.settings.list_only ? list_benchmarks(std::cout, plan) : print_plan(std::cout, plan);
    return ExitCode::kDone;
  }
  Report report = measure(plan);
  pair(report);
  judge(report);
  set_beside(reports, report);
  write_sentences(report);
  if (plan.settings.no_samples) {
    for (Run& run : report.runs) {
      std::ranges::for_each(run.repetitions, [](Repetition& one) { one.samples_ms.clear(); });
    }
  }
  write(plan.settings, report);
  const bool failed =
      std::ranges::any_of(report.runs, [](const Run& r) { return r.error.has_value(); });
  return failed || report.partial ? ExitCode::kTrainingFailed : ExitCode::kDone;
}

}  // namespace
}  // namespace ddp::bench

int main(int argc, char** argv) {
  // Starts the ranks of a program that does not do so itself.
  const std::vector<std::string> arguments(argv, argv + argc);
  if (argc > 3 && arguments[1] == ddp::bench::kStartRanks) {
    return ddp::run_program([&](std::string&) {
      const int ranks = ddp::parse_integer(arguments[1], arguments[2], 1, ddp::kMaxWorldSize);
      return ddp::start_ranks("bench", {arguments.begin() + 3, arguments.end()}, ranks, {},
                              arguments[3]);
    });
  }
  return ddp::run_program(
      [&](std::string&) { return static_cast<int>(ddp::bench::run(argc, argv)); });
}
