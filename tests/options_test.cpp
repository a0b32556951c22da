// The command line: what is accepted, what is refused and in which words, and batch arithmetic.
#include "common/launch/options.hpp"

#include <limits>
#include <map>
#include <string>
#include <vector>

#include "common/base/command_line.hpp"
#include "tests/catch.hpp"
#include "tests/support/run_program.hpp"

namespace {

using ddp::Launch;
using ddp::test::words;

ddp::Options parse(const std::vector<std::string>& arguments, Launch launch = Launch::kSpawn) {
  std::vector<const char*> argv = {"a_stage"};
  for (const std::string& argument : arguments) {
    argv.push_back(argument.c_str());
  }
  return ddp::parse_options(static_cast<int>(argv.size()), argv.data(), launch);
}

ddp::Options parse_after_epochs(std::vector<std::string> arguments,
                                Launch launch = Launch::kSpawn) {
  arguments.insert(arguments.begin(), {"50", "10"});
  return parse(arguments, launch);
}

/// Refused as usage error, in one line with this `part`.
void check_refused(const std::vector<std::string>& arguments, const std::string& part,
                   Launch launch = Launch::kSpawn) {
  std::string line;
  for (const std::string& argument : arguments) {
    line += argument + " ";
  }
  std::string message = "(accepted)";
  try {
    parse(arguments, launch);
  } catch (const ddp::UsageError& error) {
    message = error.what();
  }
  INFO("arguments: " << line);
  INFO("message: " << message);
  CHECK(message.find(part) != std::string::npos);
  CHECK(message.find('\n') == std::string::npos);
}

/// "50 10" and what stands between the blanks of `line`.
void check_line_refused(const std::string& line, const std::string& part,
                        Launch launch = Launch::kSpawn) {
  check_refused(words("50 10 " + line), part, launch);
}

}  // namespace

TEST_CASE("the two numbers come as positionals, as options, or mixed") {
  for (const char* const line :
       {"50 10", "--total-epochs 50 --save-every 10", "--total_epochs=50 --save_every=10",
        "50 --save-every 10", "--total-epochs 50 10", "--lr 0.1 50 10", "--devices 0 1 50 10",
        "-- 50 10"}) {
    const ddp::Options options = parse(words(line));
    CHECK(options.total_epochs == 50);
    CHECK(options.save_every == 10);
  }
}

TEST_CASE("defaults are the tutorial's") {
  const ddp::Options options = parse({"0", "1"});
  CHECK(options.total_epochs == 0);
  CHECK(options.batch_per_rank == 32);
  CHECK(!options.global_batch);
  CHECK(options.dataset == "synthetic");
  CHECK(options.seed == 42);
  CHECK(options.snapshot == options.program + ".safetensors");
  CHECK(!options.program.empty());
}

TEST_CASE("every option reaches its field") {
  const ddp::Options options = parse_after_epochs(
      words("--batch_size 64 --accumulate 2 --optimizer adam --lr 1e-3 "
            "--seed 18446744073709551615 --deterministic --dataset digits --data_dir /d "
            "--hidden 128,64 --sampler none --verbose --device cuda --gpus 1 0 --nprocs 2 "
            "--threads 3 --backend gloo --speedup fused --bucket_mib 0.25 "
            "--gradient-compression bf16 --shard_optimizer --timeout 0.5 --rank 1 --local_rank 0 "
            "--world-size 4 --local-world-size 2 --master-addr ::1 --master-port 29500 "
            "--snapshot a_b.st --resume auto --metrics m.jsonl --trace t.json --quiet --dump-env "
            "--json"));
  CHECK(options.batch_per_rank == 64);
  CHECK(options.accumulate == 2);
  CHECK(options.optimizer == "adam");
  CHECK(options.learning_rate == 1e-3);
  CHECK(options.seed == std::numeric_limits<uint64_t>::max());
  CHECK(options.deterministic);
  CHECK(options.dataset == "digits");
  CHECK(options.data_dir == "/d");
  CHECK(options.hidden == std::vector<int64_t>{128, 64});
  CHECK(options.sampler == "none");
  CHECK(options.verbose);
  CHECK(options.device == "cuda");
  CHECK(options.devices == std::vector<int>{1, 0});
  CHECK(options.nprocs == 2);
  CHECK(options.threads == 3);
  CHECK(options.backend == "gloo");
  CHECK(options.speedup == "fused");
  CHECK(options.bucket_mib == 0.25);
  CHECK(options.gradient_compression == "bf16");
  CHECK(options.shard_optimizer);
  CHECK(options.timeout_seconds == 0.5);
  CHECK(options.rank == 1);
  CHECK(options.local_rank == 0);
  CHECK(options.world_size == 4);
  CHECK(options.local_world_size == 2);
  CHECK(options.master_addr == "::1");
  CHECK(options.master_port == 29500);
  CHECK(options.snapshot == "a_b.st");
  CHECK(options.resume == "auto");
  CHECK(options.metrics == "m.jsonl");
  CHECK(options.trace == "t.json");
  CHECK(options.quiet);
  CHECK(options.dump_env);
  CHECK(options.json);
  CHECK(parse_after_epochs({"--layers", "784,512,10"}).layers ==
        std::vector<int64_t>{784, 512, 10});
  CHECK(options.inject == "none");
  CHECK(parse_after_epochs({"--inject", "no-mean"}).inject == "no-mean");
  CHECK(parse_after_epochs({"--inject", "uneven-inputs"}, Launch::kLauncher).inject ==
        "uneven-inputs");
  CHECK(parse_after_epochs({"--global-batch=128"}).global_batch == 128);
  CHECK(parse_after_epochs({"--dataset-size", "100"}).dataset_size == 100);
  CHECK(!options.check_finite);
  CHECK(options.check_weights_every == 0);
  const ddp::Options checked = parse_after_epochs({"--check", "weights=100,finite"});
  CHECK(checked.check_finite);
  CHECK(checked.check_weights_every == 100);
}

TEST_CASE("values are taken as they are, however odd") {
  CHECK(parse_after_epochs({"--snapshot", "{}"}).snapshot == "{}");
  CHECK(parse_after_epochs({"--snapshot", "[a,b]"}).snapshot == "[a,b]");
  CHECK(parse_after_epochs({"--snapshot", "a b=c\"d"}).snapshot == "a b=c\"d");
  CHECK(parse_after_epochs({"--snapshot=-dash"}).snapshot == "-dash");
  CHECK(parse_after_epochs({"--metrics", "@file"}).metrics == "@file");
  CHECK(parse({"010", "1"}).total_epochs == 10);
}

TEST_CASE("--dump-env needs no epochs") {
  CHECK(parse({"--dump-env"}).dump_env);
  CHECK(parse({"--devices", "0", "1", "--dump_env"}).devices == std::vector<int>{0, 1});
  CHECK(parse({"--dump-env", "--devices", "0", "1", "50", "10"}).total_epochs == 50);
}

TEST_CASE("numbers out of range or malformed are refused by name") {
  const std::vector<std::string> never = {"abc", "1e3", "0x10", "1.5",  " 1",
                                          "1 ",  "+1",  "-1",   "nan",  "inf",
                                          "1,2", "--",  "NaN",  "9e99", "99999999999999999999"};
  for (const char* const option :
       {"--batch-size", "--global-batch", "--accumulate", "--seed", "--dataset-size", "--threads",
        "--nprocs", "--rank", "--world-size", "--local-rank", "--local-world-size",
        "--master-port"}) {
    for (const std::string& value : never) {
      check_refused({"50", "10", option, value}, option);
    }
    check_refused({"50", "10", option, ""}, std::string(option) + " is empty");
    check_refused({"50", "10", std::string(option) + "="}, std::string(option) + " is empty");
    check_refused({"50", "10", option}, std::string(option) + " has no value");
    check_refused({"50", "10", option, "--quiet"}, std::string(option) + " has no value");
    check_refused({"50", "10", option, "1", option, "1"}, "given twice");
  }
  for (const char* const option : {"--batch-size", "--global-batch", "--accumulate", "--threads",
                                   "--nprocs", "--world-size", "--master-port", "--dataset-size"}) {
    check_refused({"50", "10", option, "0"}, option);
  }
  for (const char* const option : {"--lr", "--timeout", "--bucket-mib"}) {
    for (const char* const value :
         {"0", "-1", "nan", "inf", "-inf", "1e999", "0x1p3", "abc", "1,5", "1e-400", " 1", "1s"}) {
      check_refused({"50", "10", option, value}, option);
    }
  }
  check_line_refused("--timeout 1e10", "--timeout");
  check_line_refused("--check weights=0", "--check weights: got \"0\"");
  check_line_refused("--check weights", "expected finite, weights=K");
  check_line_refused("--check finite,", "--check: got \"finite,\"");
  check_line_refused("--check weights=9 --no-communication", "--no-communication");
  check_line_refused("--lr 1e308", "--lr: got \"1e308\"");
  check_line_refused("--bucket-mib 1e9", "<= 1048576");
  check_line_refused("--dataset-size 9223372036854775807", "--dataset-size");
  check_line_refused("--master-port 65536", "from 1 to 65535");
  check_line_refused("--rank 2147483648", "--rank");
  for (const char* const world_size : {"--world-size", "--local-world-size"}) {
    check_refused({"50", "10", world_size, "2147483647"}, "from 1 to 131072");
  }
  check_line_refused("--nprocs 2147483647", "from 1 to 1024");
  check_line_refused("--seed 18446744073709551616", "--seed");
  check_refused({"-1", "10"}, "-1");
  check_refused({"abc", "10"}, "total_epochs: got \"abc\"");
  check_refused({"5", "0"}, "save_every: got \"0\", expected an integer >= 1");
  check_refused({"1e3", "10"}, "total_epochs");
  check_refused({"@file", "10"}, "@file");
  check_refused({"", "10"}, "total_epochs");
}

TEST_CASE("widths and devices are lists of whole numbers") {
  for (const char* const option : {"--hidden", "--layers"}) {
    for (const char* const value :
         {"0", "1,0", "a,b", "1,,2", ",1,2", "1,2,", "-1,2", "1;2", "1.5,2"}) {
      check_refused({"50", "10", option, value}, option);
    }
  }
  check_line_refused("--layers 20", "at least 2 widths");
  check_line_refused("--layers 20,1 --hidden 3", "--layers");
  check_line_refused("--layers 20,1 --dataset digits", "--dataset digits");
  check_line_refused("--dataset-size 9 --dataset digits", "--dataset digits");
  check_line_refused("--devices a", "--devices");
  check_line_refused("--devices -1", "--devices");
  check_line_refused("--devices 0 -1", "-1");
  check_line_refused("--devices", "--devices has no value");
  check_line_refused("--devices 0 --gpus 1", "given twice");
  check_line_refused("--devices 0 0", "twice");
  check_line_refused("--devices 0 --device cpu", "--device cpu");
  check_line_refused("--devices 0 1 --nprocs 3", "--nprocs: got 3, expected 2");
  CHECK_THROWS_AS(parse_after_epochs({"--devices", "0", "0"}, Launch::kAlone), ddp::UsageError);
}

TEST_CASE("names: unknown ones are refused with the nearest known one") {
  check_line_refused("--epochs 3", "did you mean --total-epochs?");
  check_line_refused("--bathc-size 3", "did you mean --batch-size?");
  check_line_refused("--batch 3", "did you mean --batch-size?");
  check_line_refused("--learningrate=3", "\"--learningrate\"");
  check_line_refused("--xyzzyxyzzy", "expected one that --help lists");
  check_line_refused("-x", "\"-x\"");
  check_line_refused("---quiet", "---quiet");
  check_line_refused("--bad\nname", "\\x0a");
  check_line_refused("--quiet=yes", "--quiet: got the value \"yes\", expected none");
  check_line_refused("--shard-optimizer=2", "--shard-optimizer: got the value \"2\"");
  check_line_refused("--quiet --quiet", "given twice");
  CHECK(ddp::nearest("Out-Dir", {"account", "out_dir"}) == "out_dir");
  CHECK(ddp::nearest("xyz", {"account", "out_dir"}) == "");
}

TEST_CASE("positionals: too few, too many, twice") {
  check_refused({}, "total_epochs and save_every are missing");
  check_refused({"50"}, "save_every is missing");
  check_refused({"--save-every", "10"}, "total_epochs");
  check_line_refused("7", "unexpected argument \"7\"");
  check_line_refused("--total-epochs 5", "total_epochs was given twice");
  check_refused({"--total-epochs", "5", "50", "10"}, "unexpected argument \"10\"");
}

TEST_CASE("choices") {
  check_line_refused("--optimizer Adam", "expected sgd, momentum, adam or adamw");
  check_line_refused("--device gpu", "auto, cpu or cuda");
  check_line_refused("--resume yes", "restart, auto or never");
  check_refused({"50", "10", "--sampler", ""}, "--sampler");
  check_line_refused("--bind core", "none or cores");
  CHECK(parse_after_epochs({"--bind", "cores"}, Launch::kAlone).bind == "cores");
  CHECK(parse_after_epochs({"--threads", "auto"}, Launch::kAlone).threads ==
        ddp::kAutomaticThreads);
  check_line_refused("--threads 0", "--threads");
  check_line_refused("--speedup fuse", "none, fused or graph");
  check_line_refused("--speedup ddp", "stages 03_ddp_spawn, 04_ddp_launcher and 05_multinode");
  check_line_refused("--speedup compile_ddp", "05_multinode with --speedup fused, or graph on");
  check_line_refused("--speedup dataparallel", "stage 02_data_parallel", Launch::kAlone);
  CHECK(parse_after_epochs({"--speedup", "graph"}, Launch::kAlone).speedup == "graph");
  check_line_refused("--gradient-compression half", "none, bf16 or fp16");
  check_line_refused("--dataset mnist", "synthetic, digits or fashion-mnist");
  check_line_refused("--dataset a.txt", "or a FILE.safetensors (tools/to_safetensors");
  check_line_refused("--dataset no/such/folder", "\"no/such/folder\"");
  CHECK(parse_after_epochs({"--dataset", "a/b.safetensors"}).dataset == "a/b.safetensors");
  check_line_refused("--layers 20,1 --dataset a.safetensors", "--dataset a.safetensors");
}

TEST_CASE("--nprocs belongs to the stages that start or replicate") {
  CHECK(parse_after_epochs({"--nprocs", "2"}, Launch::kAlone).nprocs == 2);
  check_line_refused("--nprocs 2", "is for stages 02 and 03; here the launcher decides",
                     Launch::kLauncher);
}

TEST_CASE("options that exclude each other") {
  check_line_refused("--batch-size 8 --global-batch 32", "--global-batch");
  check_line_refused("--json", "--dump-env");
}

TEST_CASE("a fault on purpose only where it can be") {
  check_line_refused("--inject", "--inject has no value");
  check_line_refused("--inject nomean", "--inject: got \"nomean\", expected none, no-set-epoch");
  CHECK(parse_after_epochs({"--inject", "none"}, Launch::kAlone).inject == "none");
  for (const char* const fault : {"no-set-epoch", "no-broadcast", "no-mean", "average-weights",
                                  "rank-0-collective", "mismatched", "uneven-inputs"}) {
    const std::string inject = std::string("--inject ") + fault;
    CHECK(parse_after_epochs(words(inject)).inject == fault);
    check_line_refused(inject, "expected none: ", Launch::kAlone);
    for (const std::string other :
         {"--speedup fused", "--speedup graph", "--no-communication", "--batch-size auto"}) {
      check_line_refused(inject + " " + other, inject + " was given with " + other);
    }
  }
  for (const std::string other : {"--shard-optimizer", "--gradient-compression fp16"}) {
    check_line_refused("--inject average-weights " + other, "was given with " + other);
    CHECK(parse_after_epochs(words("--inject no-mean " + other)).inject == "no-mean");
  }
}

TEST_CASE("--batch-size auto, and what may be given with it") {
  const auto found = [](const std::string& line) {
    return parse_after_epochs(words("--batch-size auto " + line));
  };
  CHECK(found("").find_batch);
  CHECK(found("").batch_per_rank == 32);
  CHECK(!parse_after_epochs(words("--batch-size 8")).find_batch);
  CHECK(found("--global-batch 96").global_batch == 96);
  CHECK(found("--accumulate 2").accumulate == 2);
  CHECK(found("--scale-lr sqrt").scale_lr == "sqrt");
  for (const auto& [text, bytes] :
       std::map<std::string, int64_t>{{"1000", 1000},
                                      {"3KiB", 3 << 10},
                                      {"512MiB", 512 << 20},
                                      {"4GiB", int64_t{4} << 30},
                                      {"2TiB", int64_t{2} << 40},
                                      {"9223372036854775807", 9223372036854775807}}) {
    CHECK(found("--memory-limit " + text).memory_limit_bytes == bytes);
  }
  for (const std::string text :
       {"0", "0GiB", "4GB", "4G", "GiB", "1.5GiB", "-1", "9007199254740992KiB"}) {
    check_line_refused("--batch-size auto --memory-limit " + text, "expected a number of bytes");
  }
  check_line_refused("--batch-size automatic",
                     "--batch-size: got \"automatic\", expected an integer");
  check_line_refused("--memory-limit 4GiB", "expected it with --batch-size auto");
  check_line_refused("--scale-lr linear", "without --batch-size auto");
  check_line_refused("--batch-size auto --global-batch 8 --scale-lr linear", "with --global-batch");
  check_line_refused("--batch-size auto --global-batch 8 --accumulate 2", "--accumulate");
}

TEST_CASE("the global batch is divided exactly or refused") {
  ddp::Options options;
  options.batch_per_rank = 32;
  options.accumulate = 2;
  CHECK(ddp::resolve_batch_per_rank(options, 3) == 32);
  CHECK(ddp::resolve_global_batch(options, 3) == 192);
  options.global_batch = 96;
  CHECK(ddp::resolve_batch_per_rank(options, 3) == 16);
  CHECK(ddp::resolve_global_batch(options, 3) == 96);
  options.global_batch = 32;
  CHECK_THROWS_WITH(ddp::resolve_batch_per_rank(options, 3),
                    "Expected --global-batch to be a multiple of 6 (3 ranks x 2 micro-batches), "
                    "got 32");
  CHECK_THROWS_AS(ddp::resolve_global_batch(options, 3), ddp::UsageError);
  options.global_batch = 1;
  CHECK_THROWS_AS(ddp::resolve_batch_per_rank(options, 1), ddp::UsageError);
  options.global_batch.reset();
  options.accumulate = 1;
  options.batch_per_rank = int64_t{1} << 62;
  CHECK(ddp::resolve_batch_per_rank(options, 1) == int64_t{1} << 62);
  CHECK_THROWS_AS(ddp::resolve_batch_per_rank(options, 2), ddp::UsageError);
}

TEST_CASE("quoted values stay on one line and short") {
  CHECK(ddp::quote("a\nb\x01\x7f") == "\"a\\x0ab\\x01\\x7f\"");
  CHECK(ddp::quote("ä") == "\"ä\"");
  CHECK(ddp::quote(std::string(10000, 'x')).size() < 300);
}
