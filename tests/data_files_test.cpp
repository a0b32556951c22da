// The user's own data in safetensors files: what is read and what is refused, that every stage ends
// on the same weights, and how little of a large file is read.
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <regex>

#include "common/base/exit_codes.hpp"
#include "common/base/scratch_folder.hpp"
#include "common/data/data_loader.hpp"
#include "common/data/tensor_file.hpp"
#include "common/parallel/distributed_sampler.hpp"
#include "tests/catch.hpp"
#include "tests/support/run_program.hpp"

namespace {

namespace fs = std::filesystem;
using ddp::test::RunOptions;
using ddp::test::RunResult;
using nlohmann::json;

struct Folder : ddp::ScratchFolder {
  Folder() : ScratchFolder("ddp-data-test") {}
  std::string file(const std::string& name) const { return path() + "/" + name; }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(file(name), std::ios::binary | std::ios::trunc) << bytes;
    return file(name);
  }
};

ddp::Dataset load(const std::string& path) {
  ddp::Options options;
  options.dataset = path;
  return ddp::load_dataset(options);
}

/// What load() refuses with, which has to name the file.
std::string refusal(const std::string& path) {
  try {
    load(path);
  } catch (const ddp::UsageError& error) {
    const std::string message = error.what();
    CHECK(message.find(path) != std::string::npos);
    CHECK(message.find('\n') == std::string::npos);
    return message;
  }
  return "loaded";
}

std::string safetensors(const json& header, const std::string& data, const std::string& pad = "") {
  const std::string text = header.dump() + pad;
  std::string bytes(sizeof(uint64_t), '\0');
  bytes[0] = static_cast<char>(text.size() & 255U);
  bytes[1] = static_cast<char>(text.size() >> 8U);
  return bytes + text + data;
}

json entry(const std::string& dtype, const json& shape, int begin, int end) {
  return {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {begin, end}}};
}

/// A header of a multiple of 8 bytes.
std::string aligned(const json& header, const std::string& data) {
  return safetensors(header, data, std::string((8 - header.dump().size() % 8) % 8, ' '));
}

void write_tensors(const std::string& path,
                   const std::vector<std::pair<std::string, torch::Tensor>>& tensors) {
  ddp::write_tensor_file(path, {{}, tensors});
}

std::string program(const std::string& name) {
  return fmt::format("{}/{}", DDP_BIN_DIR, name);
}

/// What stands in the last line, after training for three epochs.
std::string digest(const std::string& command, const std::string& dataset) {
  const Folder scratch;
  RunOptions options;
  options.cwd = scratch.path();
  options.environment.emplace("OMPI_ALLOW_RUN_AS_ROOT", "1");
  options.environment.emplace("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
  std::vector<std::string> argv = ddp::test::words(command);
  for (std::string& word : argv) {
    word = fs::exists(program(word)) ? program(word) : word;
  }
  for (const char* const word :
       {"3", "9", "--global-batch", "8", "--hidden", "8", "--quiet", "--dataset"}) {
    argv.emplace_back(word);
  }
  argv.push_back(dataset);
  const RunResult result = ddp::test::run_program(argv, options);
  INFO(command << ": " << result.out << result.err);
  REQUIRE(result.exit_code == 0);
  std::smatch match;
  REQUIRE(std::regex_search(result.out, match, std::regex("digest ([0-9a-f]{16})")));
  return match[1];
}

/// Of files that are mapped, on a disk or in memory.
double resident_file_mib() {
  std::ifstream status("/proc/self/status");
  double sum_kib = 0;
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssFile:") || line.starts_with("RssShmem:")) {
      sum_kib += std::stod(line.substr(line.find(':') + 1));
    }
  }
  return sum_kib / 1024;
}

}  // namespace

TEST_CASE("a safetensors file: classes or values, pixels or floats, with a test part or without",
          "[tensors]") {
  const Folder folder;
  const std::string path = folder.file("a.safetensors");
  const torch::Tensor features = torch::randn({11, 2, 3});
  const torch::Tensor classes = torch::arange(11).remainder(4);

  write_tensors(path, {{"other", torch::ones({4})}, {"labels", classes}, {"features", features}});
  const torch::Tensor drawn = torch::randperm(11, at::detail::createCPUGenerator(0), torch::kInt64);
  const torch::Tensor held_out = std::get<0>(drawn.slice(0, 0, 3).sort());
  const torch::Tensor others = std::get<0>(drawn.slice(0, 3).sort());
  ddp::Dataset dataset = load(path);
  CHECK(dataset.layers == std::vector<int64_t>{6, 128, 128, 4});
  CHECK(dataset.train.size() == 8);
  const ddp::Samples test = dataset.test.read();
  CHECK(torch::equal(test.input, features.view({11, 6}).index_select(0, held_out)));
  CHECK(torch::equal(test.target, classes.index_select(0, held_out)));
  CHECK(torch::equal(dataset.train.read().input, features.view({11, 6}).index_select(0, others)));
  CHECK(torch::equal(dataset.train.slice(2, 4).read().target,
                     classes.index_select(0, others.slice(0, 2, 4))));

  const torch::Tensor pixels = torch::randint(256, {11, 6}, torch::kUInt8);
  const torch::Tensor values = torch::randn({11});
  write_tensors(path, {{"labels", values},
                       {"test_labels", values.narrow(0, 0, 2).view({2, 1})},
                       {"features", pixels},
                       {"test_features", pixels.narrow(0, 0, 2)}});
  const std::string fingerprint = dataset.fingerprint;
  dataset = load(path);
  CHECK(dataset.layers == std::vector<int64_t>{6, 128, 128, 1});
  CHECK(dataset.fingerprint != fingerprint);
  CHECK(dataset.train.size() == 11);
  CHECK(torch::equal(dataset.train.read().input, pixels.to(torch::kFloat32) / 255));
  CHECK(torch::equal(dataset.test.read().target, values.narrow(0, 0, 2).view({2, 1})));
  ddp::RandomSampler sampler(11, /*seed=*/3);
  ddp::DataLoader loader(dataset.train, sampler, {.batch_per_rank = 11});
  const ddp::Batch& batch = *loader.begin();
  const torch::Tensor order = ddp::shuffled_indices(11, /*seed=*/3, /*epoch=*/0);
  CHECK(torch::equal(batch.input, (pixels.to(torch::kFloat32) / 255).index_select(0, order)));
  CHECK(torch::equal(batch.target, values.view({11, 1}).index_select(0, order)));
}

TEST_CASE("a safetensors file that others wrote: any order in the header, nothing that is wrong",
          "[tensors]") {
  const Folder folder;
  const std::string features(24, '\0');  // 2 x 3 float32
  std::string labels(16, '\0');  // 0 and 1
  labels[8] = 1;
  const json good = {{"features", entry("F32", {2, 3}, 16, 40)},
                     {"labels", entry("I64", {2}, 0, 16)}};
  const auto refused = [&](const std::string& bytes) {
    return refusal(folder.write("a.safetensors", bytes));
  };
  CHECK(refused(aligned(good, labels + features)) == "loaded");

  const auto changed = [&](const std::string& name, const json& other) {
    json header = good;
    header[name] = other;
    return refused(aligned(header, labels + features));
  };
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {refusal(folder.file("none.safetensors")), {"cannot be opened", "No such file"}},
      {refusal(folder.write("empty.safetensors", "")), {"holds 0 bytes"}},
      {refused("1234567"), {"holds 7 bytes"}},
      {refused(std::string(8, '\xff')), {"header claims 18446744073709551615 of 8 bytes"}},
      {refused(safetensors(good, "").substr(0, 40)), {"header claims"}},
      {refused(aligned("x", "")), {"malformed header"}},
      {refused(std::string("\x02\0\0\0\0\0\0\0{{", 10)), {"malformed header"}},
      {refused(aligned(good, labels + features + "x")), {"holds 41 bytes of data, expected 40"}},
      {refused(aligned(good, labels + features.substr(1))), {"features", "[16,40]", "of 39 bytes"}},
      {refused(safetensors(good, labels + features,
                           std::string((8 - good.dump().size() % 8) % 8 + 1, ' '))),
       {"labels", "I64 that is not aligned", "multiple of 8"}},
      {changed("features", entry("F64", {1, 3}, 16, 40)),
       {"features of Double x 1 x 3", "float32"}},
      {changed("features", entry("F32", {6}, 16, 40)),
       {"features of Float x 6", "samples x features"}},
      {changed("features", entry("F32", {2, 2}, 16, 40)),
       {"features", "F32 and shape [2,2] in 24 bytes"}},
      {changed("features", entry("F32", {2, 3}, 8, 32)), {"features", "[8,32]", "begins at 16"}},
      {changed("features", entry("F32", {int64_t{1} << 62, 4}, 16, 40)),
       {"features", "[4611686018427387904,4] in 24 bytes"}},
      {changed("features", entry("I8", {2, 12}, 16, 40)), {"features", "dtype \"I8\"", "F32"}},
      {changed("other", entry("I8", {0}, 8, 16)), {"other", "[8,16]", "begins at 16"}},
      {changed("other", entry("I8", {0}, 40, 48)), {"other", "[40,48]", "of 40 bytes"}},
      {changed("features", entry("F32", json::parse("[[[[[2]]]]]"), 16, 40)),
       {"nested too deeply"}},
      {refused(std::string("\0\0\x20\0\0\0\0\0", 8) + std::string(1 << 22, ' ')),
       {"claims 2097152 of 4194312 bytes", "at most 1048576"}},
      {refused(aligned("{\"" + std::string(5000, 'x'), "")), {"malformed header"}},
      {changed("labels", entry("I32", {4}, 0, 16)), {"labels of Int x 4", "int64 classes"}},
      {changed("labels", entry("F32", {4}, 0, 16)),
       {"labels of Float x 4", "each of the 2 samples"}},
      {changed("labels", entry("I64", {2, 1}, 0, 16)), {"labels of Long x 2 x 1"}},
  };
  for (const auto& [message, parts] : cases) {
    for (const std::string& part : parts) {
      INFO(message << "\nexpected " << part);
      CHECK(message.find(part) != std::string::npos);
    }
  }
  for (const auto& [message, parts] : cases) {
    CHECK(message.size() < 400);
  }
  // Tensors that nobody asked for, of a kind that is not known here, and not aligned.
  CHECK(refused(aligned({{"labels", entry("I64", {2}, 0, 16)},
                         {"features", entry("F32", {2, 3}, 16, 40)},
                         {"ids", entry("U32", {1}, 40, 44)},
                         {"mask", entry("F8_E4M3", {3}, 44, 47)}},
                        labels + features + "1234567")) == "loaded");
  REQUIRE(mkfifo(folder.file("pipe.safetensors").c_str(), 0600) == 0);
  CHECK(refusal(folder.file("pipe.safetensors")).find("no regular file") != std::string::npos);
}

TEST_CASE("labels that are no classes, values that are no numbers, parts that do not fit",
          "[tensors]") {
  const Folder folder;
  const std::string path = folder.file("a.safetensors");
  const torch::Tensor features = torch::zeros({4, 2});
  const torch::Tensor labels = torch::tensor({0, 1, 2, 3});
  const auto refused = [&](const std::vector<std::pair<std::string, torch::Tensor>>& tensors) {
    write_tensors(path, tensors);
    return refusal(path);
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  using Tensors = std::vector<std::pair<std::string, torch::Tensor>>;
  const std::vector<std::pair<Tensors, std::string>> cases = {
      {{{"features", features}, {"labels", labels}}, "loaded"},
      {{{"features", features}}, "has tensor features alone, expected labels too"},
      {{{"labels", labels}}, "has tensor labels alone, expected features too"},
      {{{"x", labels}}, "has no tensors features and labels"},
      {{{"features", features}, {"labels", labels - 1}}, "labels from -1 to 2"},
      {{{"features", features}, {"labels", labels * 1'000'000}}, "labels from 0 to 3000000"},
      {{{"features", features}, {"labels", labels * 0}}, "labels of one class"},
      {{{"features", features}, {"labels", labels * torch::tensor(nan).to(torch::kFloat32)}},
       "labels that are not finite"},
      {{{"features", features.narrow(0, 0, 1)}, {"labels", torch::zeros({1})}}, "has 1 samples"},
      {{{"features", features.narrow(0, 0, 0)}, {"labels", torch::zeros({0})}},
       "features of Float x 0"},
      {{{"features", features}, {"labels", labels}, {"test_labels", labels}},
       "has tensor test_labels alone, expected test_features too"},
      {{{"features", features},
        {"labels", labels},
        {"test_features", torch::zeros({4, 3})},
        {"test_labels", labels}},
       "test samples of 3 features (Float) with Long labels, expected 2 features (Float)"},
      {{{"features", features},
        {"labels", labels},
        {"test_features", features},
        {"test_labels", torch::zeros({4})}},
       "2 features (Float) with Float labels, expected 2 features (Float) with Long"},
      {{{"features", features},
        {"labels", torch::zeros({4})},
        {"test_features", features},
        {"test_labels", torch::full({4}, nan, torch::kFloat32)}},
       "labels that are not finite"},
      {{{"features", features},
        {"labels", labels},
        {"test_features", features},
        {"test_labels", labels + 1}},
       "loaded"},  // a class that training never shows
  };
  for (const auto& [tensors, expected] : cases) {
    const std::string message = refused(tensors);
    INFO(message << "\nexpected " << expected);
    CHECK(message.find(expected) != std::string::npos);
  }
  CHECK(load(path).layers.back() == 5);
}

TEST_CASE("what is held out is a fifth of every class, in whatever order the classes are",
          "[tensors]") {
  const Folder folder;
  const std::string path = folder.file("a.safetensors");
  for (const torch::Tensor& labels :
       {torch::arange(1000).remainder(5), torch::arange(1000).floor_divide(200)}) {
    write_tensors(path, {{"features", torch::zeros({1000, 1})}, {"labels", labels}});
    const ddp::Dataset dataset = load(path);
    const torch::Tensor counts = dataset.test.read().target.bincount();
    INFO(counts);
    CHECK(dataset.test.size() == 200);
    CHECK(counts.min().item<int64_t>() > 20);
    const torch::Tensor both = torch::cat({dataset.train.rows, dataset.test.rows});
    CHECK(torch::equal(std::get<0>(both.sort()), torch::arange(1000)));
  }
}

TEST_CASE("a name is the last part of the path, as text", "[tensors]") {
  const Folder folder;
  const std::string file = folder.file("\xe4.safetensors");
  write_tensors(file, {{"features", torch::zeros({5, 2})}, {"labels", torch::arange(5)}});
  const std::string text = json(load(file).fingerprint).dump();  // which throws at what is none
  CHECK(text.find("\xef\xbf\xbd.safetensors") != std::string::npos);
  CHECK(refusal(folder.file(std::string(300, 'x') + ".safetensors")).find("too long") !=
        std::string::npos);
}

TEST_CASE("other content is another data set, wherever it differs by a row", "[tensors]") {
  const Folder folder;
  const std::string path = folder.file("a.safetensors");
  const torch::Tensor pictures = torch::zeros({64, 3000});
  const torch::Tensor labels = torch::arange(64).remainder(2);
  const auto fingerprint = [&](const torch::Tensor& features, const torch::Tensor& test,
                               int64_t first_class = 0) {
    write_tensors(path, {{"features", features},
                         {"labels", labels},
                         {"test_features", test},
                         {"test_labels", labels + first_class}});
    return load(path).fingerprint;
  };
  torch::Tensor other = pictures.clone();
  other.narrow(1, 1400, 200).fill_(1);  // the edges are the same
  const std::string same = fingerprint(pictures, pictures);
  CHECK(fingerprint(pictures, pictures) == same);
  CHECK(fingerprint(other, pictures) != same);
  CHECK(fingerprint(pictures, other) != same);
  CHECK(fingerprint(pictures, pictures, 1) != same);
}

TEST_CASE("of a file larger than memory a rank reads its samples, and nothing else",
          "[large][measured]") {
  // Holes: the file takes no room, and its pages are read as zeros.
  const int64_t page_bytes = sysconf(_SC_PAGESIZE);
  const int64_t memory_bytes = sysconf(_SC_PHYS_PAGES) * page_bytes;
  constexpr int64_t kFeatures = 1 << 14;
  const int64_t row_bytes = kFeatures * int64_t{sizeof(float)};
  const int64_t rows = memory_bytes / row_bytes + 1000;
  const json header = {
      {"labels", {{"dtype", "F32"}, {"shape", {rows}}, {"data_offsets", {0, rows * 4}}}},
      {"features",
       {{"dtype", "F32"},
        {"shape", {rows, kFeatures}},
        {"data_offsets", {rows * 4, rows * (4 + row_bytes)}}}}};
  const Folder folder;
  const std::string path = folder.write("large.safetensors", aligned(header, ""));
  fs::resize_file(path, fs::file_size(path) + static_cast<uintmax_t>(rows * (4 + row_bytes)));
  const ddp::Dataset dataset = load(path);
  CHECK(dataset.train.size() == rows - (rows + 4) / 5);

  constexpr int64_t kReadRows = 400;
  ddp::DistributedSampler sampler(
      {.dataset_size = dataset.train.size(),
       .num_replicas = static_cast<int>(dataset.train.size() / kReadRows),
       .rank = 1,
       .seed = 0});
  ddp::DataLoader loader(dataset.train, sampler, {.batch_per_rank = 16});
  const double before_mib = resident_file_mib();
  int64_t read = 0;
  for (const ddp::Batch& batch : loader) {
    read += batch.input.size(0);
  }
  const double grown_mib = resident_file_mib() - before_mib;
  // A row that begins within a page ends within another.
  const double expected_mib = static_cast<double>(read * (row_bytes + page_bytes)) / (1 << 20);
  INFO(read << " samples, " << grown_mib << " MiB, expected " << expected_mib);
  CHECK(read >= kReadRows);
  CHECK(grown_mib > 0.5 * expected_mib);
  CHECK(grown_mib < 1.1 * expected_mib);
}

TEST_CASE("every stage reads the same samples of a file", "[parity]") {
  const Folder folder;
  const std::string path = folder.file("a.safetensors");
  const torch::Tensor labels = torch::arange(60).remainder(2);
  const torch::Tensor pixels =
      (torch::arange(60 * 20).view({60, 20}) * 37 + labels.view({60, 1}) * 90)
          .remainder(256)
          .to(torch::kUInt8);
  write_tensors(path, {{"features", pixels}, {"labels", labels}});
  const std::string alone = digest("01_single_gpu", path);
  const std::string two = digest("03_ddp_spawn --nprocs 2", path);
  CHECK(digest("mpirun --oversubscribe -np 2 04_ddp_launcher", path) == two);
  // Pixels are their values / 255.
  write_tensors(path, {{"features", pixels.to(torch::kFloat32) / 255}, {"labels", labels}});
  CHECK(digest("01_single_gpu", path) == alone);
}
