// The command line: accepted and refused options, names in errors, and batch arithmetic.
#include "common/launch/options.hpp"

#include <fmt/ranges.h>

#include <regex>

#include "common/base/command_line.hpp"
#include "common/base/files.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/run_program.hpp"

namespace {

using ddp::ExtraOptions;
using ddp::StartedBy;

const ExtraOptions kAll = {.graph = true, .step = true, .batch_finder = true};

ddp::Options parse(const std::vector<std::string>& arguments,
                   StartedBy started_by = StartedBy::kProgram, const ExtraOptions& extra = {}) {
  std::vector<const char*> argv = {"a_stage"};
  for (const std::string& argument : arguments) {
    argv.push_back(argument.c_str());
  }
  return ddp::parse_options(static_cast<int>(argv.size()), argv.data(), started_by, extra);
}

/// "50 10" and the words of `line`.
ddp::Options parse_line(const std::string& line, StartedBy started_by = StartedBy::kProgram,
                        const ExtraOptions& extra = {}) {
  return parse(words("50 10 " + line), started_by, extra);
}

std::vector<ddp::Setting> default_settings() {
  ddp::Options options = parse({"0", "1"});
  ddp::resolve_options(options, 2);
  return options.settings;
}

/// Checks that a line is refused as usage error, in one line with `part`.
void check_refused(const std::vector<std::string>& arguments, const std::string& part,
                   StartedBy started_by = StartedBy::kProgram, const ExtraOptions& extra = {}) {
  INFO("last argument: " << arguments.back());
  CHECK_THROWS_AS(parse(arguments, started_by, extra), ddp::UsageError);
  CHECK_THROWS_WITH(parse(arguments, started_by, extra),
                    ContainsSubstring(part) && !ContainsSubstring("\n"));
}

}  // namespace

TEST_CASE("the two numbers come as positionals, as options, or mixed") {
  for (const char* const line :
       {"50 10", "--total-epochs 50 --save-every 10", "--total_epochs=50 --save_every=10",
        "50 --save-every 10", "--total-epochs 50 10", "--lr 0.1 50 10", "--devices 0 1 50 10",
        "-- 50 10"}) {
    INFO(line);
    const ddp::Options options = parse(words(line));
    CHECK(options.total_epochs == 50);
    CHECK(options.save_every == 10);
  }
  for (const char* const line : {"", "50", "--save-every 10", "50 10 7", "--total-epochs 5 50 10",
                                 "50 10 --total-epochs 5", "abc 10", "5 0", "-1 10", "1e3 10"}) {
    INFO(line);
    CHECK_THROWS_AS(parse(words(line)), ddp::UsageError);
  }
}

TEST_CASE("every option reaches its field") {
  const ddp::Options options = parse_line(
      "--batch_size 64 --optimizer adam --lr 1e-3 --seed 18446744073709551615 --deterministic "
      "--dataset digits --data_dir /d --hidden 128,64 --verbose --device cuda --gpus 1 0 "
      "--nprocs 2 --threads 3 --backend gloo --bucket_mib 0.25 --timeout 0.5 --interface ib0 "
      "--rank 1 --local_rank 0 --world-size 4 --local-world-size 2 --master-addr ::1 "
      "--master-port 29500 --snapshot a_b.st --resume auto --metrics m.jsonl --trace t.json "
      "--no-communication --quiet");
  CHECK(fmt::format("{} {} {} {} {} | {} {} {} {}", options.batch_size, options.optimizer,
                    *options.learning_rate, options.seed, options.deterministic, options.dataset,
                    options.data_dir, fmt::join(options.hidden, ","), options.verbose) ==
        "64 adam 0.001 18446744073709551615 true | digits /d 128,64 true");
  CHECK(fmt::format("{} {} {} {} {} {} {} {}", options.device, fmt::join(options.devices, ","),
                    *options.nprocs, options.threads, options.backend, options.bucket_mib,
                    options.timeout_seconds,
                    options.interface) == "cuda 1,0 2 3 gloo 0.25 0.5 ib0");
  CHECK(fmt::format("{} {} {} {} {} {}", *options.rank, *options.local_rank, *options.world_size,
                    *options.local_world_size, options.master_addr,
                    *options.master_port) == "1 0 4 2 ::1 29500");
  CHECK(fmt::format("{} {} {} {} {} {}", options.snapshot, options.resume, options.metrics,
                    options.trace, options.no_communication,
                    options.quiet) == "a_b.st auto m.jsonl t.json true true");
  for (const std::string widths : {"784,512,10", "784-512-10"}) {
    CHECK(parse_line("--layers " + widths).layers == std::vector<int64_t>{784, 512, 10});
  }
  CHECK(parse_line("--global-batch=128").global_batch == 128);
  CHECK(parse_line("--dataset-size 100").dataset_size == 100);
  CHECK(parse_line("--dataset a/b.safetensors").dataset == "a/b.safetensors");
  CHECK(parse_line("--threads auto").threads == ddp::kAutomaticThreads);
}

TEST_CASE("what may differ between ranks, and what decides a run's weights, is said twice") {
  std::string may_differ;
  std::string result;
  for (const ddp::Setting& setting : default_settings()) {
    may_differ += setting.agree ? "" : setting.name + " ";
    result += setting.result ? setting.name + " " : "";
    CHECK((setting.is_default || !setting.result));  // also for two ranks
  }
  CHECK(may_differ ==
        "--memory-limit --data-dir --device --devices --nprocs --threads --timeout --interface "
        "--graph --rank --world-size --local-rank --local-world-size --master-addr --master-port "
        "--snapshot --trace --verbose --quiet ");
  CHECK(result == "--global-batch --optimizer --lr --seed --dataset --dataset-size --step ");
}

TEST_CASE("the page has every option, and its default") {
  const std::string page(ddp::MappedFile(DDP_SOURCE_DIR "/docs/reference/options.md").bytes());
  for (const ddp::Setting& setting : default_settings()) {
    INFO(setting.name);
    std::smatch row;
    if (setting.name != "--total-epochs" && setting.name != "--save-every") {  // by position
      CHECK(std::regex_search(page, std::regex("`[^`]*" + setting.name + "[ `]")));
    }
    if (std::regex_search(page, row,
                          std::regex("\\| `" + setting.name + "[^|]*\\| `?([\\w-]+)`? \\|"))) {
      const std::string initial = row[1] == "off" ? "false" : row[1].str();
      CHECK((setting.text == initial || setting.text.empty() || setting.text == "given"));
    }
  }
}

TEST_CASE("a path is one of this machine, also where no shell has seen it") {
  const std::string home = getenv("HOME");
  for (const std::string option : {"--snapshot=", "--metrics=", "--trace=", "--data-dir="}) {
    for (const std::string path :
         {"$HOME/x", "a/$_x", "${X}", "$(HOME)/x", "~nobody/x", "s3://bucket/x", "file:///x"}) {
      CHECK_THROWS_WITH(parse({"50", "10", option + path}),
                        ContainsSubstring("got \"" + path + "\", expected a path of this machine"));
    }
  }
  CHECK(parse_line("--snapshot=" + std::string(100000, 'a')).snapshot.size() == 100000);
  CHECK(parse_line("--snapshot=~/x").snapshot == home + "/x");
  CHECK(parse_line("--dataset=~/x.safetensors").dataset == home + "/x.safetensors");
  for (const auto& remove : {+[] { unsetenv("HOME"); }, +[] { setenv("HOME", "", 1); }}) {
    remove();
    const std::string found = parse_line("--snapshot=~/x").snapshot;  // of the system's table
    CHECK((found.starts_with('/') && found.ends_with("/x") && found != "/x"));
  }
  setenv("HOME", home.c_str(), 1);
  CHECK_THROWS_WITH(parse_line("--dataset=s3://b/x.safetensors"),
                    ContainsSubstring("--dataset: got"));
}

TEST_CASE("values are taken as they are, however odd") {
  for (const std::string value : {"{}", "[a,b]", "a b=c\"d", "@file", "a_b"}) {
    CHECK(parse({"50", "10", "--snapshot", value}).snapshot == value);
  }
  CHECK(parse_line("--snapshot=-dash").snapshot == "-dash");
  CHECK(parse({"50", "10", "--snapshot", "5$/a~"}).snapshot == "5$/a~");
  CHECK(parse({"010", "1"}).total_epochs == 10);
  const ddp::Options options = parse({"0", "1"});
  CHECK(options.total_epochs == 0);
  CHECK(options.snapshot == options.program + ".safetensors");
  CHECK(!options.program.empty());
}

TEST_CASE("numbers out of range or malformed are refused by name") {
  for (const std::string option :
       {"--batch-size", "--global-batch", "--seed", "--dataset-size", "--threads", "--nprocs",
        "--rank", "--world-size", "--local-rank", "--local-world-size", "--master-port"}) {
    for (const char* const value : {"abc", "1e3", "0x10", "1.5", " 1", "1 ", "+1", "-1", "nan", "",
                                    "1,2", "99999999999999999999"}) {
      check_refused({"50", "10", option, value}, option);
    }
    check_refused({"50", "10", option}, option);
    check_refused({"50", "10", option, "1", option, "1"}, option);
    if (!option.ends_with("rank") && option != "--seed") {
      check_refused({"50", "10", option, "0"}, option);
    }
  }
  for (const char* const option : {"--lr", "--timeout", "--bucket-mib"}) {
    for (const char* const value :
         {"0", "-1", "nan", "inf", "1e999", "0x1p3", "abc", "1,5", "1e-400", " 1", "1s", ""}) {
      check_refused({"50", "10", option, value}, option);
    }
  }
}

TEST_CASE("limits, names, choices and combinations are refused by name") {
  struct Case {
    const char* line;
    const char* part;
    StartedBy started_by = StartedBy::kProgram;
  };
  for (const Case& bad :
       std::vector<Case>{{"--lr 1e308", "--lr: got \"1e308\""},
                         {"--seed 18446744073709551616", "--seed"},
                         {"--epochs 3", "did you mean --total-epochs?"},
                         {"--bathc-size 3", "did you mean --batch-size?"},
                         {"--batch 3", "did you mean --batch-size?"},
                         {"--xyzzyxyzzy", "expected one that --help lists"},
                         {"-x", "\"-x\""},
                         {"--quiet=yes", "quiet"},
                         {"--optimizer Adam", "expected sgd, momentum, adam or adamw"},
                         {"--device gpu", "auto, cpu or cuda"},
                         {"--resume yes", "restart, auto or never"},
                         {"--backend hierarchical", "auto, nccl, gloo, mpi or shm"},
                         {"--dataset mnist", "synthetic, digits or fashion-mnist"},
                         {"--layers 20", "at least 2 widths"},
                         {"--layers 1,0", "--layers"},
                         {"--hidden 1,,2", "--hidden"},
                         {"--layers 20,1 --hidden 3", "--hidden: got it with --layers"},
                         {"--layers 20,1 --dataset digits", "--dataset digits"},
                         {"--dataset-size 9 --dataset digits", "--dataset digits"},
                         {"--devices 0 -1", "-1"},
                         {"--devices", "--devices"},
                         {"--devices 0 0", "--devices: got 0 0", StartedBy::kUser},
                         {"--devices 0 --device cpu", "--device cpu"},
                         {"--devices 0 1 --nprocs 3", "--nprocs: got 3, expected 2"},
                         {"--nprocs 2", "torchrun --nproc-per-node=2", StartedBy::kLauncher},
                         {"--batch-size 8 --global-batch 32", "--global-batch"},
                         {"--speedup ddp", "03_ddp_spawn, 04_ddp_launcher or 05_multinode"},
                         {"--speedup compile_ddp", "03_ddp_spawn_compiled"},
                         {"--speedup dataparallel", "02_data_parallel", StartedBy::kUser},
                         {"--batch-size auto", "04_ddp_launcher_auto_batch"},
                         {"--graph", "--graph"},
                         {"--step s.pt2", "--step"},
                         {"--memory-limit 4GiB", "--memory-limit"},
                         {"--accumulate 2", "--accumulate"}}) {
    check_refused(words(std::string("50 10 ") + bad.line), bad.part, bad.started_by);
  }
  for (const std::string& most :
       words("--timeout=2592000 --bucket-mib=1048576 --threads=4096 --devices=4095 --nprocs=1024 "
             "--master-port=65535 --rank=131071 --local-rank=131071 --world-size=131072 "
             "--batch-size=35184372088832 --global-batch=4611686018427387904")) {
    const size_t end = most.find('=') + 1;
    CHECK_NOTHROW(parse_line(most));
    check_refused(
        words(fmt::format("50 10 {}{}", most.substr(0, end), std::stoll(most.substr(end)) + 1)),
        most.substr(0, end - 1));
  }
  check_refused({"50", "10", "--bad\nname"}, "\\n");
}

TEST_CASE("options of single programs") {
  const auto found = [](const std::string& line) {
    return parse_line(line, StartedBy::kLauncher, kAll);
  };
  CHECK(found("--graph").graph);
  CHECK(found("--step s.pt2").step == "s.pt2");
  CHECK(found("--batch-size auto").find_batch);
  CHECK(!found("--batch-size 8").find_batch);
  CHECK(found("--batch-size auto --global-batch 96").global_batch == 96);
  for (const auto& [text, bytes] : std::vector<std::pair<std::string, int64_t>>{
           {"1000", 1000}, {"3KiB", 3 << 10}, {"512MiB", 512 << 20}, {"4GiB", int64_t{4} << 30}}) {
    CHECK(found("--batch-size auto --memory-limit " + text).memory_limit_bytes == bytes);
  }
  for (const std::string text :
       {"0", "0GiB", "4GB", "GiB", "1.5GiB", "-1", "9007199254740992KiB"}) {
    check_refused(words("50 10 --batch-size auto --memory-limit=" + text), "--memory-limit",
                  StartedBy::kLauncher, kAll);
  }
  check_refused(words("50 10 --memory-limit 4GiB"), "--batch-size auto", StartedBy::kLauncher,
                kAll);
}

TEST_CASE("quoted values stay on one line and short") {
  CHECK(ddp::quote("a\nb\x01\x7f\\\"") == "\"a\\nb\\x01\\x7f\\\"\"");
  CHECK(ddp::quote("ä€😀") == "\"ä€😀\"");
  // No UTF-8, among it a character cut off and one in more bytes than it needs; control characters.
  CHECK(ddp::quote("\xff\xc3(\xc0\x80\xed\xa0\x80\xe2\x82\x1b[2J\xc2\x9b") ==
        "\"\\xff\\xc3(\\xc0\\x80\\xed\\xa0\\x80\\xe2\\x82\\x1b[2J\\x9b\"");
  CHECK(ddp::quote(std::string(10000, 'x')).size() < 300);
}
