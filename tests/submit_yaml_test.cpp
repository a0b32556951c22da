// A settings file is read as a person means it, or refused with the place and what was expected.
#include "tests/catch.hpp"

#include <string>
#include <vector>

#include "common/base/exit_codes.hpp"
#include "tools/submit/settings.hpp"

namespace {

using ddp::submit::parse_settings;
using ddp::submit::Settings;

const std::string kTop = "script_path: /bin/true\nout_dir: /out\n";

struct BadFile {
  std::string text;
  std::vector<std::string> named;  ///< what the one line must mention, the place first
};

std::string in_condor(const std::string& line) {
  return kTop + "local:\n  condor:\n    " + line + "\n";
}

std::string refusal(const std::string& text) {
  try {
    parse_settings("s.yaml", text, "/home");
  } catch (const ddp::UsageError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("submit: settings as in the example", "[submit]") {
  const Settings settings =
      parse_settings("s.yaml",
                     "script_path: bin/03_ddp_spawn  # relative\n"
                     "out_dir: \"/your/output dir/\"\n"
                     "arguments: [50, 010, yes, 1e3, '', \"a b\", --lr, 0.1]\n"
                     "nodes: 2\ntime: 1-06:00:00\naccount: def-keli\n"
                     "partition: gpu,long\nconstraint: 'a100|h100'\n"
                     "local:\n  device: cuda\n  condor:\n    bid: 100\n"
                     "    num_cpus: 8\n    memory_cpus: 256000\n"
                     "    num_gpus: 2\n    memory_gpus: 60000\n"
                     "    transfer_files: [data/x.csv]\n",
                     "/home/me");
  CHECK(settings.script_path == "/home/me/bin/03_ddp_spawn");
  CHECK(settings.out_dir == "/your/output dir");
  CHECK(settings.arguments ==
        std::vector<std::string>{"50", "010", "yes", "1e3", "", "a b", "--lr", "0.1"});
  CHECK(settings.device == "cuda");
  CHECK(settings.resources.nodes == 2);
  CHECK(settings.resources.time_s == 30 * 3600);
  CHECK(settings.resources.account == "def-keli");
  CHECK(settings.resources.partition == "gpu,long");
  CHECK(settings.resources.constraint == "a100|h100");
  CHECK(settings.resources.bid == 100);
  CHECK(settings.resources.cpus == 8);
  CHECK(settings.resources.memory_mb == 256000);
  CHECK(settings.resources.gpus == 2);
  CHECK(settings.resources.gpu_memory_mb == 60000);
  CHECK(settings.resources.transfer_files == std::vector<std::string>{"/home/me/data/x.csv"});
}

TEST_CASE("submit: the least that settings must say, in other spellings of YAML", "[submit]") {
  for (const std::string& text :
       {kTop, "\xef\xbb\xbf" + kTop, "---\n" + kTop + "...\n", "# words\n\n" + kTop,
        std::string("{script_path: /bin/true, out_dir: /out}"),
        std::string("script_path: /bin/true\r\nout_dir: /out\r\n"),
        std::string("\"script_path\": '/bin/true'\n'out_dir': \"/out\"\n"),
        std::string("out_dir: >-\n  /out\nscript_path: /bin/true")}) {
    INFO(text);
    const Settings settings = parse_settings("s.yaml", text, "/home");
    CHECK(settings.script_path == "/bin/true");
    CHECK(settings.out_dir == "/out");
    CHECK(settings.arguments.empty());
    CHECK(settings.device == "auto");
    CHECK(settings.resources.nodes == 1);
    CHECK_FALSE(settings.resources.cpus.has_value());
    CHECK_FALSE(settings.resources.bid.has_value());
  }
}

TEST_CASE("submit: settings that are refused, with the place", "[submit]") {
  const std::string deep = "arguments: " + std::string(100000, '[');
  const std::vector<BadFile> files = {
      // No settings at all.
      {"", {"s.yaml:1:1:", "empty file", "script_path"}},
      {"# nothing\n", {"s.yaml:1:1:", "empty file"}},
      {"[1, 2]\n", {"s.yaml:1:1:", "no map"}},
      {"words\n", {"s.yaml:1:1:", "no map"}},
      {"out_dir: /out\n", {"s.yaml:1:1:", "script_path is missing"}},
      {"script_path: /bin/true\n", {"s.yaml:1:1:", "out_dir is missing"}},
      // Bytes.
      {kTop + "account: \xff\n", {"s.yaml:3:10:", "\"\\xff\"", "UTF-8"}},
      {kTop + "account: a\xc3\n", {"s.yaml:3:11:", "UTF-8"}},
      {kTop + "account: \xed\xa0\x80\n", {"s.yaml:3:10:", "UTF-8"}},
      {std::string("\xff\xfe"
                   "s\0c\0",
                   6),
       {"s.yaml:1:1:", "UTF-8"}},
      {kTop + std::string("account: a\0b\n", 13), {"s.yaml:3:11:", "control", "\\x00"}},
      {kTop + "account: \x1b[31m\n", {"s.yaml:3:10:", "control", "\\x1b"}},
      {kTop + "local:\n\tdevice: cpu\n", {"s.yaml:4:1:", "tab"}},
      {kTop + "local:\n  \tdevice: cpu\n", {"s.yaml:4:3:", "tab"}},
      {kTop + "#" + std::string((1 << 20) + 5, 'x'), {"s.yaml:1:1:", "1048576"}},
      // YAML that is none, or more than settings need.
      {"script_path: [/bin/true\n", {"s.yaml:", "not YAML"}},
      {"script_path: \"/bin/true\nout_dir: /o", {"s.yaml:1:14:", "quotation mark"}},
      {kTop + "account: 'abc", {"s.yaml:3:10:", "quotation mark"}},
      {"script_path: /bin/true\n out_dir: /out\n", {"s.yaml:2:", "not YAML"}},
      {kTop + "time: @x\n", {"s.yaml:3:7:", "not YAML"}},
      {"script_path: a: b\n", {"s.yaml:1:", "not YAML"}},
      {kTop + "---\nnodes: 2\n", {"s.yaml:3:", "second document"}},
      {"script_path: &a /bin/true\nout_dir: *a\n", {"s.yaml:1:", "anchor"}},
      {"&top\nscript_path: /bin/true\nout_dir: /o\n", {"s.yaml:1:", "anchor"}},
      {kTop + "arguments: &a [*a]\n", {"s.yaml:3:", "anchor"}},
      {kTop + "local:\n  <<: {device: cpu}\n", {"s.yaml:4:3:", "merge key"}},
      {kTop + "nodes: !!int 2\n", {"s.yaml:3:8:", "tag", "int"}},
      {kTop + "account: !env HOME\n", {"s.yaml:3:10:", "tag", "env"}},
      {kTop + "arguments: !!python/object/apply:os.system [x]\n", {"s.yaml:3:", "tag"}},
      {deep, {"s.yaml:1:", "expected"}},
      {kTop + "local: {condor: {num_cpus: [[[[[[[[1]]]]]]]]}}\n",
       {"s.yaml:3:", "more than 8 levels"}},
      // Keys.
      {kTop + "nodes: 1\nnodes: 2\n", {"s.yaml:4:1:", "\"nodes\"", "line 3", "every key once"}},
      {kTop + "local:\n  device: cpu\n  device: cuda\n", {"s.yaml:5:3:", "\"device\"", "line 4"}},
      {in_condor("num_cpus: 1\n    'num_cpus': 2"), {"s.yaml:6:5:", "num_cpus", "line 5"}},
      {kTop + "local:\n  device: cpu\nlocal:\n  device: cpu\n",
       {"s.yaml:5:1:", "\"local\"", "line 3"}},
      {kTop + "local: {device: cpu, 'device': cuda}\n", {"s.yaml:3:22:", "line 3"}},
      {kTop + "locale:\n  device: cpu\n", {"s.yaml:3:1:", "did you mean local?"}},
      {kTop + "walltimes:\n  - 1\n  - 2\n", {"s.yaml:3:1:", "\"walltimes\""}},
      {kTop + "colors: >-\n  red\n", {"s.yaml:3:1:", "\"colors\""}},
      {kTop + "local: {devise: cpu}\n", {"s.yaml:3:9:", "did you mean local.device?"}},
      {kTop + "scriptpath: /x\n", {"s.yaml:3:1:", "\"scriptpath\"", "did you mean script_path?"}},
      {kTop + "out-dirs: /x\n", {"s.yaml:3:1:", "\"out-dirs\"", "did you mean out_dir?"}},
      {kTop + "Nodes: 2\n", {"s.yaml:3:1:", "\"Nodes\"", "did you mean nodes?"}},
      {kTop + "walltime: 2\n", {"s.yaml:3:", "\"walltime\""}},
      {kTop + "color: red\n", {"s.yaml:3:", "\"color\"", "expected account"}},
      {kTop + "device: cuda\n", {"s.yaml:3:", "\"device\"", "expected local.device"}},
      {kTop + "num_gpus: 2\n", {"s.yaml:3:", "\"num_gpus\"", "expected local.condor.num_gpus"}},
      {kTop + "local:\n  num_gpus: 2\n",
       {"s.yaml:4:3:", "\"local.num_gpus\"", "local.condor.num_gpus"}},
      {in_condor("num_gpu: 2"),
       {"s.yaml:5:5:", "local.condor.num_gpu\"", "did you mean local.condor.num_gpus?"}},
      {in_condor("memory: 2"), {"s.yaml:5:", "\"local.condor.memory\""}},
      {in_condor("nodes: 2"), {"s.yaml:5:", "nodes at the top"}},
      {kTop + "[a]: 2\n", {"s.yaml:3:1:", "list or a map"}},
      {kTop + "? \n: 2\n", {"s.yaml:4:", "expected a name"}},
      {kTop + "? {a: b}\n: 2\n", {"s.yaml:3:", "key that is a list or a map"}},
      // Numbers.
      {kTop + "nodes: 0\n", {"s.yaml:3:8:", "nodes", "\"0\"", "1 to 65536"}},
      {kTop + "nodes: 65537\n", {"s.yaml:3:8:", "\"65537\"", "1 to 65536"}},
      {kTop + "nodes: -2\n", {"s.yaml:3:8:", "\"-2\""}},
      {kTop + "nodes: two\n", {"s.yaml:3:8:", "\"two\"", "integer"}},
      {kTop + "nodes: 2.0\n", {"s.yaml:3:8:", "\"2.0\"", "plain digits"}},
      {kTop + "nodes:\n", {"s.yaml:3:1:", "nodes", "nothing", "integer"}},
      {kTop + "nodes: ~\n", {"s.yaml:3:1:", "nothing"}},
      {kTop + "nodes: [2]\n", {"s.yaml:3:8:", "a list"}},
      {kTop + "nodes: \"2\"\n", {"s.yaml:3:8:", "the text \"2\"", "without quotation marks"}},
      {in_condor("num_cpus: 010"), {"s.yaml:5:15:", "local.condor.num_cpus", "\"010\"", "octal"}},
      {in_condor("num_cpus: 0x10"), {"s.yaml:5:15:", "\"0x10\""}},
      {in_condor("num_cpus: 0o10"), {"s.yaml:5:15:", "\"0o10\""}},
      {in_condor("num_cpus: 1e3"), {"s.yaml:5:15:", "\"1e3\""}},
      {in_condor("num_cpus: 1_000"), {"s.yaml:5:15:", "\"1_000\""}},
      {in_condor("num_cpus: +8"), {"s.yaml:5:15:", "\"+8\""}},
      {in_condor("num_cpus: 1:30"), {"s.yaml:5:15:", "\"1:30\""}},
      {in_condor("num_cpus: yes"), {"s.yaml:5:15:", "\"yes\""}},
      {in_condor("num_cpus: 99999999999999999999"), {"s.yaml:5:15:", "99999999999999999999"}},
      {in_condor("memory_cpus: 256GB"), {"s.yaml:5:18:", "\"256GB\""}},
      {in_condor("memory_cpus: .nan"), {"s.yaml:5:18:", "\".nan\""}},
      {in_condor("num_gpus: 1000000000"), {"s.yaml:5:15:", "0 to 1024"}},
      {in_condor("memory_gpus: 0"), {"s.yaml:5:18:", "\"0\""}},
      {in_condor("bid: -1"), {"s.yaml:5:10:", "local.condor.bid", "\"-1\""}},
      {in_condor("bid: .inf"), {"s.yaml:5:10:", "\".inf\""}},
      // Times: YAML 1.1 takes 1:30 for 90.
      {kTop + "time: 1:30\n", {"s.yaml:3:7:", "time", "\"1:30\"", "HH:MM:SS", "MM:SS"}},
      {kTop + "time: 90\n", {"s.yaml:3:7:", "\"90\"", "HH:MM:SS", "minutes"}},
      {kTop + "time: 12:60:00\n", {"s.yaml:3:7:", "\"12:60:00\"", "59"}},
      {kTop + "time: 1-24:00:00\n", {"s.yaml:3:7:", "23 hours"}},
      {kTop + "time: 00:00:00\n", {"s.yaml:3:7:", "not zero"}},
      {kTop + "time: 1:2:3\n", {"s.yaml:3:7:", "HH:MM:SS"}},
      {kTop + "time: -1:00:00\n", {"s.yaml:3:7:", "HH:MM:SS"}},
      {kTop + "time: 12:00:00 PM\n", {"s.yaml:3:7:", "HH:MM:SS"}},
      {kTop + "time: 99999:00:00\n", {"s.yaml:3:7:", "HH:MM:SS"}},
      {kTop + "time: [12:00:00]\n", {"s.yaml:3:7:", "a list"}},
      // Texts.
      {"script_path: yes\nout_dir: /o\n",
       {"s.yaml:1:14:", "script_path", "\"yes\"", "truth value"}},
      {"script_path: On\nout_dir: /o\n", {"s.yaml:1:14:", "\"On\"", "truth value"}},
      {"script_path: null\nout_dir: /o\n", {"s.yaml:1:1:", "script_path", "nothing"}},
      {"script_path: 12\nout_dir: /o\n", {"s.yaml:1:14:", "\"12\"", "quotation marks"}},
      {"script_path: 0x1f\nout_dir: /o\n", {"s.yaml:1:14:", "\"0x1f\"", "quotation marks"}},
      {"script_path: ''\nout_dir: /o\n", {"s.yaml:1:14:", "empty text"}},
      {"script_path:\n  a: b\nout_dir: /o\n", {"s.yaml:2:3:", "script_path", "a map"}},
      {"script_path: ~/x\nout_dir: /o\n", {"s.yaml:1:14:", "\"~/x\"", "no shell"}},
      {"script_path: \"/a\\nb\"\nout_dir: /o\n", {"s.yaml:1:14:", "\\x0a", "one line"}},
      {"script_path: \"/a\\0\"\nout_dir: /o\n", {"s.yaml:1:14:", "\\x00"}},
      {"script_path: \"/a\\tb\"\nout_dir: /o\n", {"s.yaml:1:14:", "tabs"}},
      {"script_path: /x\nout_dir: ' /o'\n", {"s.yaml:2:10:", "out_dir", "blanks at its ends"}},
      {kTop + "local:\n  device: gpu\n",
       {"s.yaml:4:11:", "local.device", "\"gpu\"", "auto, cpu or cuda"}},
      {kTop + "local: cuda\n", {"s.yaml:3:8:", "local", "\"cuda\"", "keys and values"}},
      {kTop + "local:\n  condor: [1]\n", {"s.yaml:4:11:", "local.condor", "a list"}},
      {kTop + "account: a b\n", {"s.yaml:3:10:", "account", "\"a b\""}},
      {kTop + "account: 'x;touch y'\n", {"s.yaml:3:10:", "\"x;touch y\""}},
      {kTop + "account: 1e3\n", {"s.yaml:3:10:", "quotation marks"}},
      {kTop + "account: -x\n", {"s.yaml:3:10:", "\"-x\""}},
      {kTop + "partition: \"a\\n#SBATCH --wrap=x\"\n", {"s.yaml:3:12:", "\\x0a"}},
      {kTop + "partition: gpu --wrap\n", {"s.yaml:3:12:", "partition"}},
      {kTop + "constraint: a100;b\n", {"s.yaml:3:13:", "constraint"}},
      {kTop + "constraint: \"$(X)\"\n", {"s.yaml:3:13:", "constraint"}},
      // Arguments.
      {kTop + "arguments: 50 10\n", {"s.yaml:3:12:", "arguments", "\"50 10\"", "a list"}},
      {kTop + "arguments: {lr: 1}\n", {"s.yaml:3:12:", "a map", "a list"}},
      {kTop + "arguments: [50, [10]]\n", {"s.yaml:3:17:", "arguments[1]", "a list"}},
      {kTop + "arguments:\n- 50\n-\n- 3\n", {"arguments[1]", "nothing"}},
      {kTop + "arguments: [50, ~]\n", {"s.yaml:3:17:", "arguments[1]", "nothing"}},
      {kTop + "arguments: [\"a\\nb\"]\n", {"s.yaml:3:13:", "arguments[0]", "\\x0a"}},
      {kTop + "arguments: [\"a\\0b\"]\n", {"s.yaml:3:13:", "arguments[0]", "\\x00"}},
      {in_condor("transfer_files: x.csv"), {"s.yaml:5:21:", "transfer_files", "list of files"}},
      {in_condor("transfer_files: [1]"), {"s.yaml:5:22:", "transfer_files[0]", "quotation marks"}},
  };
  CHECK(files.size() >= 80);
  for (const BadFile& file : files) {
    const std::string message = refusal(file.text);
    INFO("file:\n" << file.text.substr(0, 300) << "\nmessage: " << message);
    CHECK_FALSE(message.empty());
    CHECK(message.find('\n') == std::string::npos);
    CHECK(message.starts_with("s.yaml:"));
    CHECK(message.size() < 500);
    for (const std::string& word : file.named) {
      CHECK(message.find(word) != std::string::npos);
    }
  }
}

TEST_CASE("submit: any text is settings or a refusal, never anything else", "[submit]") {
  // Mutations of a good file: cut, doubled, overwritten.
  const std::string good =
      kTop + "arguments: [50, 'a b', \"c\\n\"]\nlocal: {device: cpu}\ntime: 1-02:03:04\n";
  const std::string bytes = std::string("\0\t\n\r :#-[]{},&*!|>'\"%@`~\\x\xff\xc3\x80<?0", 33);
  unsigned random = 1;
  const auto next = [&random](std::size_t below) {
    random = random * 1664525U + 1013904223U;
    return static_cast<std::size_t>(random >> 8U) % below;
  };
  int refused = 0;
  constexpr int kTries = 20000;
  for (int i = 0; i < kTries; ++i) {
    std::string text = good;
    for (std::size_t edits = 1 + next(4); edits > 0; --edits) {
      const std::size_t at = next(text.size());
      switch (next(3)) {
        case 0:
          text[at] = bytes[next(bytes.size())];
          break;
        case 1:
          text.insert(at, 1, bytes[next(bytes.size())]);
          break;
        default:
          text.erase(at, 1 + next(8));
          break;
      }
      if (text.empty()) {
        text = "\n";
      }
    }
    try {
      parse_settings("s.yaml", text, "/home");
    } catch (const ddp::UsageError& error) {
      ++refused;
      const std::string message = error.what();
      if (!message.starts_with("s.yaml:") || message.find('\n') != std::string::npos) {
        INFO(text << "\n" << message);
        REQUIRE(message.starts_with("s.yaml:"));
        REQUIRE(message.find('\n') == std::string::npos);
      }
    }
  }
  CHECK(refused > kTries / 4);
  CHECK(refused < kTries);
}
