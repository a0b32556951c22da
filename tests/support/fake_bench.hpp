// tests/support/fake_bench.hpp - runs the bench program on programs that are made up.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/scratch_folder.hpp"
#include "tests/support/run_program.hpp"

namespace ddp::test {

void write_file(const std::filesystem::path& path, const std::string& text);
std::string read_file(const std::filesystem::path& path);

/// What a stage does with the options that bench gives it, as a shell script with made-up step
/// times: 0.05 ms with one rank, 0.4 ms with more, because rank 1 is twice as slow, which waits for
/// 0.14 ms; the others wait for it, too, if they communicate.
/// What NAME.behaviour next to it says is done last, so a test can change any of it. NAME.calls
/// holds a line for each start.
extern const char* const kFakeStage;
extern const char* const kFakeTorchrun;
extern const char* const kFakeMpirun;
extern const char* const kFakeSrun;
/// bench_micro where two ranks' all-reduces take as long as a ring with alpha = 100 us and
/// beta = 300 us per MiB; 100 GFLOP/s, 10 GB/s.
extern const char* const kFakeMicro;
/// bench/peers/install.sh, with a shell instead of Python; what nobody has asked for is installed
/// if install.sh.there is next to it.
extern const char* const kFakeInstall;

/// A report, and what bench said besides.
struct Measured {
  nlohmann::json document;
  nlohmann::json scaling;  ///< its object ddp_scaling
  std::string err;
  double seconds = 0;

  /// The first run with this stage and variant. Fails the test if there is none.
  nlohmann::json run(const std::string& stage, const std::string& variant = "main") const;
};

/// A folder with made-up stages, and what a test needs to run bench on them.
class FakeBench {
 public:
  FakeBench();

  std::filesystem::path root() const { return folder_.path(); }
  std::filesystem::path bin() const { return root() / "bin"; }

  /// @param path below root(), "path/torchrun"
  void install(const std::string& path, const std::string& script) const;
  void behave(const std::string& stage, const std::string& script) const;
  /// From here on bench runs inside an allocation of Slurm's. @param variables more of Slurm's
  void enter_allocation(const std::map<std::string, std::string>& variables = {}) {
    allocation_ = {{"SLURM_JOB_ID", "4711"}, {"SLURM_JOB_NODELIST", "n[7-9]"}};
    allocation_.insert(variables.begin(), variables.end());
  }

  /// Only /usr/bin and /bin besides the test's own launchers: what is installed elsewhere does not
  /// matter.
  /// @param redirections that a shell makes first, such as ">/dev/full"
  RunResult run(const std::vector<std::string>& arguments,
                const std::string& redirections = "") const;
  /// Runs it with --json. Fails the test unless it ends with `exit_code` and leaves nothing behind
  /// but one report.
  Measured measure(const std::vector<std::string>& arguments, int exit_code = 0) const;
  /// The lines that --benchmark_list_tests or --dry-run prints.
  std::vector<std::string> print(const std::vector<std::string>& arguments) const;
  /// Whether anything was trained.
  bool has_run() const { return std::filesystem::exists(bin() / "01_single_gpu.calls"); }

 private:
  ScratchFolder folder_{"ddp-bench-test"};
  std::map<std::string, std::string> allocation_;  // none if empty
};

/// One workload, one world size, no launcher that needs more than the stages themselves.
std::vector<std::string> small_and(const std::vector<std::string>& more = {});

/// False for null.
bool is_near(const nlohmann::json& value, double expected, double relative);

/// What must hold of any report, whatever has happened. Keeps a copy of the document for the test
/// report_schema, if DDP_TEST_DOCUMENTS names a folder.
void check_report(const nlohmann::json& document);

}  // namespace ddp::test
