// A mistake gives one line on stderr and exit code 2, at once, and no file is written. For the
// command line see options_test, for launchers' variables launch_environment_test.
#include <sys/stat.h>

#include <filesystem>

#include "common/base/files.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/run_program.hpp"

namespace fs = std::filesystem;

TEST_CASE("bad input: one line, exit 2, nothing written") {
  const ddp::ScratchFolder scratch("ddp-bad");
  const fs::path folder = scratch.path();
  fs::create_directory(folder / "work");
  REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
  const std::string rank1 =
      "RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=no-such-host.invalid MASTER_PORT=29500";
  struct BadInput {
    std::string line;
    std::vector<std::string> named;
    std::string variables = {};
    int exit_code = 2;
  };
  for (const BadInput& bad : std::vector<BadInput>{
           {"01_single_gpu 5 1 --nprocs 2", {"--nprocs", "2"}},
           {"01_single_gpu 5 1", {"world size: got 2"}, rank1},
           {"ddp-env", {"PMI_SIZE", "RANK, WORLD_SIZE"}, "PMI_SIZE=2"},
           {"03_ddp_spawn 5 1 --nprocs 2 --global-batch 3", {"--global-batch"}},
           {"03_ddp_spawn_fused 5 1 --graph --device cpu --nprocs 1", {"--graph", "cpu"}},
           {"03_ddp_spawn_fused 5 1 --optimizer adam --nprocs 1", {"--optimizer", "adam"}},
           {"02_data_parallel 5 1 --devices 0 1", {"--devices"}, "CUDA_VISIBLE_DEVICES="},
           {"03_ddp_spawn 5 1 --devices 0 1", {"--devices"}, "CUDA_VISIBLE_DEVICES="},
           {"01_single_gpu 5 1 --snapshot no/such/folder/x", {"--snapshot", "no/such/folder/x"}},
           {"03_ddp_spawn 5 1 --nprocs 1 --snapshot .", {"--snapshot", "\".\""}},
           {"01_single_gpu 5 1 --snapshot ../pipe", {"--snapshot", "../pipe"}},
           {"01_single_gpu 5 1 --snapshot " + std::string(240, 'a'),
            {"--snapshot", "<= 234 bytes"}},
           {"01_single_gpu 5 1 --snapshot x --metrics ../work/x", {"--metrics", "twice"}},
           {"02_data_parallel 5 1 --dataset a.safetensors --trace ./a.safetensors", {"--dataset"}},
           {"03_ddp_spawn 5 1 --nprocs 2 --rank 0 --world-size 1", {"--rank: got 0"}},
           {"01_single_gpu 5 1 --metrics no/such/m", {"--metrics", "no/such/m"}},
           {"01_single_gpu 5 1 --trace no/such/t", {"--trace", "no/such/t"}},
           {"01_single_gpu 5 1 --data-dir a\nb --dataset digits", {"\\nb"}},
           {"01_single_gpu 5 1 --dataset fashion-mnist --data-dir ../missing", {"train-images"}},
           {"03_ddp_spawn 5 1", {"TMPDIR: got \"/no/such\"", "No such"}, "TMPDIR=/no/such"},
           {"collectives all_reduce", {"TMPDIR: got \"gone\""}, "TMPDIR=gone"},
           {"bench_micro --suite pieces --nprocs 2",
            {"TMPDIR: got", "Not a dir"},
            "TMPDIR=/dev/null"},
           {"bench --quick --stages 01_single_gpu", {"TMPDIR: got"}, "TMPDIR=/no/such"},
           {"bench --dry-run --json /dev/stdout", {"--json: got", "regular file"}},
           {"bench --dry-run --html /dev/fd/1", {"--html: got", "file"}},
           // Host names may come late, so this name is looked up until --timeout.
           {"04_ddp_launcher 5 1 --timeout 1", {"no-such-host.invalid"}, rank1, 75},
       }) {
    const RunResult result =
        run_program(words(DDP_BIN_DIR "/" + bad.line),
                    {.environment = variables(bad.variables), .cwd = folder / "work"});
    INFO(bad.line);
    check_one_line(result, bad.exit_code, bad.named);
    CHECK(result.out.empty());
    CHECK(fs::is_empty(folder / "work"));
  }
}

TEST_CASE("every program begins alike: closed streams are open, and a full file is an error") {
  const auto run = [](const std::string& script, const ddp::ScratchFolder& folder) {
    return run_program(
        {"sh", "-c", script},
        {.environment = {{"PATH", DDP_BIN_DIR ":/bin:/usr/bin"}}, .cwd = folder.path()});
  };
  for (const std::string line :
       {"01_single_gpu 2 9 --metrics m", "02_data_parallel 2 9 --nprocs 2 --metrics m",
        "03_ddp_spawn 2 9 --nprocs 2 --metrics m", "04_ddp_launcher 2 9 --metrics m", "ddp-env",
        "sim_buckets", "collectives all_reduce", "bench --dry-run --stages 01_single_gpu",
        "bench_micro --help"}) {
    for (const std::string closed : {" >&-", " <&- >&- 2>&-"}) {
      INFO(line << closed);
      const ddp::ScratchFolder folder("ddp-begin");
      CHECK(run("exec " + line + closed, folder).exit_code == 0);
      const std::string metrics = ddp::read_text(folder.path() + "/m");
      CHECK_FALSE(contains(metrics, "[CPU"));
      CHECK(contains(metrics, "summary") == contains(line, "--metrics"));
    }
  }
  const ddp::ScratchFolder pipe("ddp-begin");
  CHECK(run("mkfifo m; cat m > out & exec 01_single_gpu 1 9 --metrics m", pipe).exit_code == 0);
  for (const auto& [script, said] : {
           std::pair<std::string, std::string>{
               "ulimit -f 2; exec 01_single_gpu 1 1 --hidden 300 --lr 1e-3",
               "snapshot 01_single_gpu.safetensors cannot be written: File too large"},
           {"ulimit -f 2; exec 01_single_gpu 9 99 --metrics m", "cannot write m (File too large)"},
           {"ulimit -f 1; exec collectives --help > out", "cannot write to stdout"},
           {"(sleep 0.3; ddp-env; exit $?) | false", "cannot write to stdout"},
           {"(sleep 0.3; sim_buckets) | false", "cannot write to stdout"},
           {"(sleep 0.3; 01_single_gpu 1 9) | false", "cannot write to stdout"},
           {"ulimit -f 2; timeout 60 03_ddp_spawn 1 1 2>e; [ $? = 1 ] && ! sed q e >&2", "large"},
       }) {
    INFO(script);
    const ddp::ScratchFolder folder("ddp-begin");
    check_one_line(run(script, folder), 1, {said});
  }
}
