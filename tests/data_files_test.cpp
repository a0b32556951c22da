// The user's own data: safetensors files, tables and folders of images; what is refused, that every
// way to the same samples ends on the same weights, and how little of a large file is read.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <regex>
#include <thread>
#include <tuple>

#include "common/base/exit_codes.hpp"
#include "common/base/process.hpp"
#include "common/base/scratch_folder.hpp"
#include "common/data/data_loader.hpp"
#include "common/data/tensor_file.hpp"
#include "common/parallel/distributed_sampler.hpp"
#include "tests/catch.hpp"
#include "tests/support/run_program.hpp"
#include "tests/support/write_images.hpp"

namespace {

namespace fs = std::filesystem;
using ddp::ImageShape;
using ddp::test::Program;
using ddp::test::RunOptions;
using ddp::test::RunResult;
using nlohmann::json;

struct Folder : ddp::ScratchFolder {
  Folder() : ScratchFolder("ddp-data-test") {}
  std::string file(const std::string& name) const { return path() + "/" + name; }
  std::string write(const std::string& name, const std::string& bytes) const {
    fs::create_directories(fs::path(file(name)).parent_path());
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

/// With little memory, whatever a header claims, unless a sanitizer needs more.
RunResult convert(std::vector<std::string> arguments, const RunOptions& options = {}) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  const std::string limit;
#else
  const std::string limit = "ulimit -v 200000; ";
#endif
  const std::vector<std::string> start = {"sh", "-c", limit + "exec \"$@\"", "sh",
                                          program("images_to_safetensors")};
  arguments.insert(arguments.begin(), start.begin(), start.end());
  return ddp::test::run_program(arguments, options);
}

/// The tool's only line.
std::string conversion_refused(const std::vector<std::string>& arguments) {
  const RunResult result = convert(arguments);
  INFO(result.out << result.err);
  CHECK(result.exit_code == 2);
  CHECK(result.out.empty());
  CHECK(std::ranges::count(result.err, '\n') == 1);
  return result.err;
}

/// Big endian, as in PNG and IDX files.
std::string word(size_t value) {
  return {static_cast<char>(value >> 24U), static_cast<char>(value >> 16U),
          static_cast<char>(value >> 8U), static_cast<char>(value)};
}

std::string png_chunk(const std::string& name, const std::string& data) {
  const std::string both = name + data;
  const auto* const bytes = reinterpret_cast<const Bytef*>(both.data());
  return word(data.size()) + both + word(crc32(0, bytes, static_cast<uInt>(both.size())));
}

/// @param kind bits per channel, kind of colors, 0, 0, 1 if it is interlaced
/// @param rows each after a zero, which says that it is not filtered
std::string png_file(size_t width, size_t height, const std::string& kind,
                     const std::string& chunks, const std::string& rows) {
  std::vector<Bytef> packed(compressBound(rows.size()));
  uLongf size = packed.size();
  compress(packed.data(), &size, reinterpret_cast<const Bytef*>(rows.data()), rows.size());
  return "\x89PNG\r\n\x1a\n" + png_chunk("IHDR", word(width) + word(height) + kind) + chunks +
         png_chunk("IDAT", {packed.begin(), packed.begin() + static_cast<ptrdiff_t>(size)}) +
         png_chunk("IEND", "");
}

/// 8x8 gray pixels: one scan, and 14 for each of so many coefficients, a bit in each.
std::string progressive_jpeg(int coefficients) {
  const auto segment = [](int marker, const std::string& data) {
    return std::string{'\xff', static_cast<char>(marker)} + word(data.size() + 2).substr(2) + data;
  };
  std::string bytes = "\xff\xd8" + segment(0xdb, '\0' + std::string(64, '\x01')) +
                      segment(0xc2, {8, 0, 8, 0, 8, 1, 1, 0x11, 0});
  for (const char table : {'\x00', '\x10'}) {  // one code each, the bit 0, for "nothing"
    bytes += segment(0xc4, std::string{table, 1} + std::string(16, '\0'));
  }
  const auto scan = [&](int coefficient, int done_bits, int bit) {
    bytes += segment(0xda, {1, 1, 0, static_cast<char>(coefficient), static_cast<char>(coefficient),
                            static_cast<char>(done_bits << 4 | bit)}) +
             '\x7f';
  };
  scan(0, 0, 0);
  for (int coefficient = 1; coefficient <= coefficients; ++coefficient) {
    for (int bit = 13; bit >= 0; --bit) {
      scan(coefficient, bit == 13 ? 0 : bit + 1, bit);
    }
  }
  return bytes + "\xff\xd9";
}

/// 60 images of two classes that differ, and so can be learned; the same for each `shape`.
void write_folder(const Folder& folder, const std::string& name, const ImageShape& shape,
                  bool jpeg = false) {
  for (int i = 0; i < 60; ++i) {
    const std::string label = i % 2 == 0 ? "even" : "odd";
    const std::string path = folder.file(name + "/" + label + "/" + std::to_string(100 + i));
    fs::create_directories(fs::path(path).parent_path());
    std::vector<uint8_t> pixels(shape.bytes());
    for (size_t at = 0; at < pixels.size(); ++at) {
      pixels[at] = static_cast<uint8_t>(
          (at * 37 + static_cast<size_t>(i) * 101 + (i % 2 == 0 ? at * at : 0)) % 256);
    }
    jpeg ? ddp::test::write_jpeg(path + ".jpg", shape, pixels)
         : ddp::test::write_png(path + ".png", shape, pixels);
  }
}

ptrdiff_t files_in(const Folder& folder) {
  return std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator());
}

/// All that a loader reads in two epochs.
std::vector<torch::Tensor> read_epochs(const ddp::Samples& samples, int workers, int64_t batch,
                                       int64_t accumulate = 1, int rank = 0, int ranks = 1) {
  ddp::DistributedSampler sampler(
      {.dataset_size = samples.size(), .num_replicas = ranks, .rank = rank, .seed = 3});
  ddp::DataLoader loader(samples, sampler,
                         {.batch_per_rank = batch, .accumulate = accumulate, .workers = workers});
  std::vector<torch::Tensor> read;
  for (const int64_t epoch : {0, 1}) {
    loader.set_epoch(epoch);
    for (const ddp::Batch& item : loader) {
      read.push_back(item.input.clone());
      read.push_back(item.target.clone());
      read.push_back(torch::tensor({item.step_samples_per_rank, item.completes_step ? 1.0 : 0.0}));
    }
  }
  return read;
}

void check_equal(const std::vector<torch::Tensor>& one, const std::vector<torch::Tensor>& other) {
  REQUIRE(one.size() == other.size());
  REQUIRE(!one.empty());
  for (size_t i = 0; i < one.size(); ++i) {
    REQUIRE(torch::equal(one[i], other[i]));
  }
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
    word = word == "torchrun" ? DDP_TORCHRUN : fs::exists(program(word)) ? program(word) : word;
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
  const std::vector<torch::Tensor> read = read_epochs(dataset.train, 0, 11);
  REQUIRE(read.size() == 6);
  CHECK(torch::equal(
      read[0],
      (pixels.to(torch::kFloat32) / 255).index_select(0, ddp::shuffled_indices(11, 3, 0))));
  CHECK(
      torch::equal(read[1], values.view({11, 1}).index_select(0, ddp::shuffled_indices(11, 3, 0))));
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
      {refused(aligned(good, labels + features.substr(1))), {"features", "of 39 bytes"}},
      {refused(safetensors(good, labels + features,
                           std::string((8 - good.dump().size() % 8) % 8 + 1, ' '))),
       {"labels", "I64 that is not aligned", "multiple of 8"}},
      {changed("features", entry("F64", {1, 3}, 16, 40)),
       {"features of Double x 1 x 3", "float32"}},
      {changed("features", entry("F32", {6}, 16, 40)),
       {"features of Float x 6", "samples x features"}},
      {changed("features", entry("F32", {2, 2}, 16, 40)), {"features", "16 bytes at [16,40]"}},
      {changed("features", entry("F32", {2, 3}, 8, 32)), {"features", "[8,32]", "begins at 16"}},
      {changed("features", entry("F32", {int64_t{1} << 62, 4}, 16, 40)), {"features", "fits into"}},
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
       "test samples of 3 features (Float) with Long labels, expected 2 (Float) with Long"},
      {{{"features", features},
        {"labels", labels},
        {"test_features", features},
        {"test_labels", torch::zeros({4})}},
       "test samples of 2 features (Float) with Float labels, expected 2 (Float) with Long"},
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
  write_folder(folder, "photos.csv", {2, 2, 1});
  const ddp::Dataset images = load(folder.file("photos.csv"));
  CHECK(images.name == "photos.csv");
  CHECK(images.layers.front() == 4);
  CHECK(load(folder.file("photos.csv/")).fingerprint == images.fingerprint);
  const std::string file = folder.file("\xe4.safetensors");
  write_tensors(file, {{"features", torch::zeros({5, 2})}, {"labels", torch::arange(5)}});
  const std::string text = json(load(file).fingerprint).dump();  // which throws at what is none
  CHECK(text.find("\xef\xbf\xbd.safetensors") != std::string::npos);
  CHECK(refusal(folder.file(std::string(300, 'x') + ".csv")).find("too long") != std::string::npos);
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

  const auto of_table = [&](const std::string& row) {
    return load(folder.write("a.csv", "a,b\n1,0\n2,1\n" + row)).fingerprint;
  };
  CHECK(of_table("3,1") != of_table("4,1"));

  write_folder(folder, "photos", {2, 2, 1});
  const std::string before = load(folder.file("photos")).fingerprint;
  fs::rename(folder.file("photos/odd/101.png"), folder.file("photos/odd/1.png"));
  CHECK(load(folder.file("photos")).fingerprint != before);
}

TEST_CASE("a table: the target by name or place, classes or values, however it is written",
          "[table]") {
  const Folder folder;
  const std::string path = folder.write("a.csv",
                                        "\xef\xbb\xbf\"a \"\"x\"\", b\",label, c\r\n"
                                        "1.5,0, -2e3\r\n"
                                        "\"2\", 2 ,\"3\"\r\n"
                                        "1e-50,1,0.25");
  const ddp::Dataset dataset = load(path);
  CHECK(dataset.layers == std::vector<int64_t>{2, 128, 128, 3});
  CHECK(torch::equal(dataset.train.input,
                     torch::tensor({{1.5F, -2000.0F}, {2.0F, 3.0F}, {0.0F, 0.25F}})));
  CHECK(torch::equal(dataset.train.target, torch::tensor({0, 2, 1})));
  CHECK(dataset.test.size() == 1);

  const ddp::Dataset values = load(folder.write("b.csv", "nan,inf,c\n1,2,3\n\n+4,5,6.0\n\n"));
  CHECK(values.layers.back() == 1);
  CHECK(torch::equal(values.train.target, torch::tensor({{3.0F}, {6.0F}})));
  CHECK(torch::equal(values.train.input, torch::tensor({{1.0F, 2.0F}, {4.0F, 5.0F}})));
}

TEST_CASE("a table's mistake is named by its line and column", "[table]") {
  const Folder folder;
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"", {"holds 0 bytes"}},
      {"a,b\n", {"has 0 samples, expected 2 or more"}},
      {"a\n1\n", {"line 1", "got 1 column"}},
      {"1,2\n3,4\n", {"line 1", "got a number, \"1\"", "names"}},
      {"a,label,label\n1,2,3\n", {"line 1", "two columns \"label\""}},
      {"a,b\n1,2\n1,2,3\n", {"line 3: got 3 columns, expected 2"}},
      {"a,b\n1,2\n,\n1,2\n", {"line 3: column 1 (\"a\"): got \"\""}},
      {"a,b\n1,2\n+-1,2\n", {"line 3: column 1 (\"a\"): got \"+-1\""}},
      {"a,b\n1,2\nx,2\n",
       {"line 3: column 1 (\"a\"): got \"x\", expected a finite float32 number"}},
      {"a,b\n1,2\n\nx,2\n", {"line 4: column 1"}},
      {"a,b\n1,2\n1,\n", {"line 3: column 2 (\"b\"): got \"\""}},
      {"a,b\n1,2\n1 2,3\n", {"line 3: column 1", "\"1 2\""}},
      {"a,b\r\n1,nan\r\n", {"line 2: column 2", "got \"nan\""}},
      {"a,b\n-inf,1\n", {"line 2: column 1", "got \"-inf\""}},
      {"a,b\n1e39,1\n", {"line 2: column 1", "got \"1e39\""}},
      {"a,b\n0x10,1\n", {"line 2: column 1", "got \"0x10\""}},
      {"a,b\n\"1,1\n", {"line 2: got", "quotation mark"}},
      {"a,b\n\"1\"2,1\n", {"line 2: got", "quotation mark"}},
      {"a,b\n1,0\n1,-1\n", {"labels from -1 to 0", "as 3.0, for regression"}},
      {"a,b\n1,7\n1,7000000\n", {"labels from 7 to 7000000"}},
  };
  for (const auto& [text, parts] : cases) {
    const std::string message = refusal(folder.write("a.csv", text));
    for (const std::string& part : parts) {
      INFO(text << message << "\nexpected " << part);
      CHECK(message.find(part) != std::string::npos);
    }
  }
}

TEST_CASE("a folder of images, and the file that the tool makes of it, are the same samples",
          "[images]") {
  const Folder folder;
  for (const ImageShape& shape : {ImageShape{5, 4, 3}, ImageShape{6, 3, 1}}) {
    for (const bool jpeg : {false, true}) {
      const std::string name = ddp::to_string(shape) + (jpeg ? " jpeg" : " png");
      INFO(name);
      write_folder(folder, name, shape, jpeg);
      folder.write(name + "/even/notes.txt", "no image");
      folder.write(name + "/notes.txt", "no class");
      const std::string file = folder.file(name + ".safetensors");
      const RunResult result = convert({folder.file(name), file});
      INFO(result.out << result.err);
      REQUIRE(result.exit_code == 0);
      CHECK(result.out == file + ": 60 + 0 images, " + ddp::to_string(shape) + "\n");
      const ddp::Dataset decoded = load(folder.file(name));
      const ddp::Dataset stored = load(file);
      CHECK(decoded.layers == stored.layers);
      CHECK(decoded.layers.front() == static_cast<int64_t>(shape.bytes()));
      check_equal({decoded.test.read().input, decoded.test.read().target},
                  {stored.test.read().input, stored.test.read().target});
      check_equal(read_epochs(decoded.train, 0, 7), read_epochs(stored.train, 0, 7));
      const ddp::TensorFile tensors = ddp::map_tensor_file(file, {});
      CHECK(tensors.metadata.at("classes") == R"(["even","odd"])");
    }
  }
}

TEST_CASE("images that cannot be read are named", "[images]") {
  const Folder folder;
  const ImageShape shape{8, 8, 1};
  const std::vector<uint8_t> pixels(shape.bytes(), 77);
  const auto bytes_of = [&](const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  fs::create_directories(folder.file("f/a"));
  CHECK(refusal(folder.file("f")).find("has 1 sub-folders") != std::string::npos);
  fs::create_directories(folder.file("f/b"));
  CHECK(refusal(folder.file("f")).find("/f/a has no file *.png") != std::string::npos);
  ddp::test::write_png(folder.file("f/a/1.png"), shape, pixels);
  ddp::test::write_jpeg(folder.file("f/b/1.JPG"), shape, pixels);
  CHECK(refusal(folder.file("f")) == "loaded");
  const std::string png = bytes_of(folder.file("f/a/1.png"));
  const std::string jpeg = bytes_of(folder.file("f/b/1.JPG"));

  // In the second image: the first one's shape is known, and the file not yet written.
  const auto decoded = [&](const std::string& bytes) {
    folder.write("f/b/1.JPG", bytes);
    const ddp::Dataset dataset = load(folder.file("f"));
    std::string message = "read";
    try {
      read_epochs(dataset.train, 0, 1);
    } catch (const ddp::UsageError& error) {
      message = error.what();
    }
    try {
      read_epochs(dataset.train, 2, 1);
      CHECK(message == "read");
    } catch (const ddp::UsageError& error) {
      CHECK(error.what() == message);  // the same from a worker's thread
    }
    if (message != "read") {
      const ptrdiff_t files = files_in(folder);
      CHECK(message.find(folder.file("f/b/1.JPG")) != std::string::npos);
      CHECK(conversion_refused({folder.file("f"), folder.file("f.safetensors")}).find(message) !=
            std::string::npos);
      CHECK_FALSE(fs::exists(folder.file("f.safetensors")));
      CHECK(files_in(folder) == files);
    }
    return message;
  };
  CHECK(decoded(jpeg) == "read");
  CHECK(decoded(png) == "read");  // its bytes say what it is
  CHECK(decoded("").find("holds 0 bytes that begin neither") != std::string::npos);
  CHECK(decoded("GIF89a").find("neither a PNG nor a JPEG") != std::string::npos);
  CHECK(decoded(jpeg.substr(0, jpeg.size() - 20)).find("cannot be decoded") != std::string::npos);
  CHECK(decoded(jpeg.substr(0, 30)).find("has 0x0 pixels") != std::string::npos);
  CHECK(decoded(png.substr(0, png.size() - 20)).find("cannot be decoded") != std::string::npos);
  ddp::test::write_png(folder.file("other.png"), {8, 9, 1},
                       std::vector<uint8_t>(ImageShape{8, 9, 1}.bytes()));
  CHECK(decoded(bytes_of(folder.file("other.png"))).find("is 8x9 gray, expected 8x8 gray") !=
        std::string::npos);
  ddp::test::write_png(folder.file("other.png"), {8, 8, 3},
                       std::vector<uint8_t>(ImageShape{8, 8, 3}.bytes()));
  CHECK(decoded(bytes_of(folder.file("other.png"))).find("is 8x8 RGB, expected 8x8 gray") !=
        std::string::npos);
  CHECK(decoded(progressive_jpeg(10)) == "read");
  CHECK(decoded(progressive_jpeg(63)).find("more than 500 scans") != std::string::npos);
}

TEST_CASE("a PNG file's numbers are the pixels, on black where it is transparent", "[images]") {
  using namespace std::string_literals;
  const auto pixels_of = [](const std::string& bytes) {
    const ImageShape shape = ddp::image_shape("i", bytes);
    std::vector<int> pixels(shape.bytes());
    std::vector<uint8_t> decoded(shape.bytes());
    ddp::decode_image("i", bytes, shape, decoded.data());
    std::ranges::copy(decoded, pixels.begin());
    return pixels;
  };
  using Pixels = std::vector<int>;
  const std::string gray = "\x08\0\0\0\0"s;
  const std::string gamma = png_chunk("gAMA", word(100000));
  for (const std::string& colors :
       {gamma, png_chunk("sRGB", "\0"s) + png_chunk("gAMA", word(45455)), ""s}) {
    CHECK(pixels_of(png_file(3, 1, gray, colors, "\0\x01\x80\xc8"s)) == Pixels{1, 128, 200});
    const std::string with_alpha = "\x08\x04\0\0\0"s;
    CHECK(pixels_of(png_file(2, 1, with_alpha, colors, "\0\xc8\x80\xc8\0"s)) == Pixels{100, 0});
  }
  // Two bits each, of which the third is transparent.
  CHECK(pixels_of(png_file(4, 1, "\x02\0\0\0\0"s, png_chunk("tRNS", "\0\x02"s), "\0\x1b"s)) ==
        Pixels{0, 85, 0, 255});
  // A palette, of which the first color is half transparent.
  CHECK(pixels_of(png_file(2, 1, "\x01\x03\0\0\0"s,
                           gamma + png_chunk("PLTE", "\x0a\x14\x1e(2<") + png_chunk("tRNS", "\x80"),
                           "\0\x40"s)) == Pixels{5, 10, 15, 40, 50, 60});
  CHECK(pixels_of(png_file(2, 2, "\x08\0\0\0\x01"s, "", "\0a\0b\0cd"s)) ==
        Pixels{'a', 'b', 'c', 'd'});

  const auto refused = [&](const std::string& bytes) {
    try {
      pixels_of(bytes);
    } catch (const ddp::UsageError& error) {
      return std::string(error.what());
    }
    return "read"s;
  };
  const std::string good = png_file(1, 1, gray, gamma, "\0a"s);
  std::string damaged = good;
  damaged[damaged.find("gAMA") + 4] ^= 1;
  CHECK(refused(good) == "read");
  CHECK(refused(damaged) == "image i cannot be decoded: gAMA: CRC error");
  CHECK(refused(good.substr(0, good.size() - 12)) ==
        "image i cannot be decoded: the file ends too early");
  CHECK(refused(png_file(1, 1, gray, "", "\0ab"s)).find("cannot be decoded") != std::string::npos);
  CHECK(refused(png_file(1, 1, "\x10\0\0\0\0"s, "", "\0ab"s)) ==
        "image i has 16 bits per channel, expected 8");
  CHECK(refused(png_file(1 << 14, 1 << 14, gray, "", "\0a"s)) ==
        "image i is 16384x16384 gray in 26 bytes, expected 260111 or more");
}

TEST_CASE("IDX files become tensors, and what is wrong with them is said", "[images]") {
  const Folder folder;
  std::string pixels;
  for (int i = 0; i < 3 * 2 * 4; ++i) {
    pixels += static_cast<char>(i * 10);
  }
  const std::string images_bytes = word(0x0803) + word(3) + word(2) + word(4) + pixels;
  const std::string labels_bytes = word(0x0801) + word(3) + std::string("\x02\x00\x01", 3);
  const std::string images = folder.write("images", images_bytes);
  const std::string labels = folder.write("labels", labels_bytes);
  const std::string out = folder.file("out.safetensors");
  const RunResult result = convert({images, labels, out, "--test", images, labels});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  CHECK(result.out == out + ": 3 + 3 images, 4x2 gray\n");
  const ddp::Dataset dataset = load(out);
  CHECK(dataset.train.size() == 3);
  CHECK(dataset.test.size() == 3);
  CHECK(torch::equal(dataset.train.target, torch::tensor({2, 0, 1})));
  CHECK(torch::equal(dataset.train.input, (torch::arange(24) * 10).to(torch::kUInt8).view({3, 8})));

  const auto refused = [&](const std::string& other_images, const std::string& other_labels) {
    return conversion_refused(
        {folder.write("i", other_images), folder.write("l", other_labels), out});
  };
  const std::string magic = word(0x0803);
  for (const auto& [message, part] : std::vector<std::pair<std::string, std::string>>{
           {refused(labels_bytes, labels_bytes), "begins with 00000801, expected 00000803"},
           {refused(images_bytes, images_bytes), "begins with 00000803, expected 00000801"},
           {refused(images_bytes.substr(0, 10), labels_bytes), "ends within its header"},
           {refused("", labels_bytes), "ends within its header"},
           {refused(images_bytes.substr(0, 30), labels_bytes), "ends after 14 bytes of data"},
           {refused(images_bytes + "x", labels_bytes), "goes on after 3 x 2 x 4 numbers"},
           {refused(images_bytes, labels_bytes + "x"), "goes on after 3 numbers"},
           {refused(images_bytes, word(0x0801) + word(2) + "ab"), "holds 2 labels, expected 3"},
           {refused(magic + word(0) + word(2) + word(4), labels_bytes), "holds 0 images of 4x2"},
           {refused(magic + word(1) + std::string(8, '\xff'), labels_bytes),
            "4294967295x4294967295"},
           // Claimed, and not there.
           {refused(magic + word(0xffffffff) + word(1) + word(1), word(0x0801) + word(0xffffffff)),
            "ends after 0 bytes of data, expected 4294967295 numbers"},
           {refused(magic + word(1) + word(1 << 14) + word(1 << 14) + "abcd",
                    word(0x0801) + word(1) + "a"),
            "ends after 4 bytes of data, expected 1 x 16384 x 16384 numbers"},
           {conversion_refused({folder.file("none"), labels, out}), "none cannot be opened"},
           {conversion_refused({}), "got no arguments"},
           {conversion_refused({images, labels, "out.bin"}), "\"out.bin\" as the last of 3 names"},
           {conversion_refused({images, labels, out, "--tset"}), "\"--tset\""},
           {conversion_refused({images, labels, out, "--test"}), "--test: got 0 names"},
       }) {
    INFO(message);
    CHECK(message.find(part) != std::string::npos);
  }
  CHECK(convert({images, labels, folder.file("no/such/o.safetensors")}).exit_code == 1);
  CHECK(convert({"--help"}).out.starts_with("Usage: images_to_safetensors"));
}

TEST_CASE("the tool's file is there whole or not at all, and nothing beside it", "[images]") {
  const Folder folder;
  const std::string images_bytes =
      word(0x0803) + word(3) + word(100) + word(100) + std::string(30000, 'p');
  const std::string images = folder.write("images", images_bytes);
  const std::string labels = folder.write("labels", word(0x0801) + word(3) + "abc");
  const std::string victim = folder.write("victim", "precious");
  const std::string out = folder.file("o.safetensors");
  fs::create_symlink(victim, out + ".part");  // a name that somebody might guess
  folder.write("o.safetensors.tmp.0123456789abcdef", "of one that was killed");

  // One run that waits for its second image, while another one writes a file of the same name.
  const std::string pipe = folder.file("pipe");
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  const ddp::FileDescriptor pipe_end(open(pipe.c_str(), O_RDWR | O_CLOEXEC));
  Program waiting({program("images_to_safetensors"), pipe, labels, out});
  constexpr ssize_t kGivenBytes = 29000;  // zlib reads ahead
  REQUIRE(write(pipe_end.get(), images_bytes.data(), kGivenBytes) == kGivenBytes);
  const auto has_begun = [&] {
    return std::ranges::any_of(fs::directory_iterator(folder.path()), [](const auto& entry) {
      return entry.path().stem() == "o.safetensors.tmp" && entry.file_size() > 10000;
    });
  };
  for (int i = 0; i < 10000 && !ddp::has_ended(waiting.pid()) && !has_begun(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  CHECK(convert({images, labels, out}).exit_code == 0);
  CHECK(has_begun());
  kill(waiting.pid(), SIGINT);
  CHECK(waiting.wait().signal == SIGINT);
  CHECK(files_in(folder) == 6);  // those above
  CHECK_FALSE(fs::is_symlink(out));
  CHECK(fs::file_size(victim) == 8);
  CHECK(load(out).test.size() == 1);

  const fs::file_time_type written = fs::last_write_time(out);
  const auto check_fails = [&](const std::string& reason, const RunResult& result) {
    CHECK(result.exit_code == 1);
    CHECK(result.err == "images_to_safetensors: error: data file " + out +
                            " cannot be written: " + reason + "\n");
    CHECK(files_in(folder) == 6);
    CHECK(fs::last_write_time(out) == written);
  };
  RunOptions faulty;
  faulty.environment = {{"LD_PRELOAD", DDP_FAULTY_CALLS},
                        {"DDP_FAULT_FOLDER", folder.path()},
                        {"DDP_FAULT", std::to_string(EIO)},
                        {"DDP_FAULT_CALL", "fsync"}};
  check_fails("Input/output error", convert({images, labels, out}, faulty));
  check_fails("File too large, expected room for " + std::to_string(fs::file_size(out)) + " bytes",
              ddp::test::run_program({"prlimit", "--fsize=10000", program("images_to_safetensors"),
                                      images, labels, out}));
}

TEST_CASE("with workers the batches are the same, in the same order, whatever their number",
          "[workers]") {
  const Folder folder;
  write_folder(folder, "f", {4, 4, 3});
  const ddp::Samples images = load(folder.file("f")).train;
  const ddp::Samples tensors{torch::randn({53, 3}), torch::arange(53)};
  for (const ddp::Samples& samples : {images, tensors}) {
    for (const auto& [batch, accumulate, rank, ranks] :
         std::vector<std::tuple<int64_t, int64_t, int, int>>{
             {7, 1, 0, 1}, {2, 3, 2, 3}, {64, 1, 1, 2}}) {
      const auto alone = read_epochs(samples, 0, batch, accumulate, rank, ranks);
      for (const int workers : {1, 2, 5}) {
        check_equal(read_epochs(samples, workers, batch, accumulate, rank, ranks), alone);
      }
    }
  }
}

TEST_CASE("an epoch that is left early begins anew, and threads end with their loader",
          "[workers]") {
  const ddp::Samples samples{torch::arange(64).to(torch::kFloat32).unsqueeze(1), torch::arange(64)};
  ddp::RandomSampler sampler(64, 0);
  ddp::DataLoader loader(samples, sampler, {.batch_per_rank = 4, .workers = 3});
  for (int64_t epoch = 0; epoch < 20; ++epoch) {
    loader.set_epoch(epoch);
    int64_t position = 0;
    for (const ddp::Batch& batch : loader) {
      REQUIRE(torch::equal(batch.target,
                           ddp::shuffled_indices(64, 0, epoch).slice(0, position, position + 4)));
      position += 4;
      if (position == 4 * (epoch % 5 + 1)) {
        break;
      }
    }
  }
}

TEST_CASE("workers read batches of another size from the next epoch on", "[workers]") {
  const Folder folder;
  write_folder(folder, "f", {4, 4, 3});
  const ddp::Samples samples = load(folder.file("f")).train;
  ddp::RandomSampler sampler(samples.size(), 0);
  ddp::DataLoader loader(samples, sampler, {.batch_per_rank = 48, .workers = 3});
  ddp::DataLoader alone(samples, sampler, {.batch_per_rank = 48});
  for (const int64_t batch : {1, 48, 5, 2, 11}) {
    loader.begin();  // and is given up
    loader.set_batch(batch, 2);
    alone.set_batch(batch, 2);
    auto expected = alone.begin();
    for (const ddp::Batch& item : loader) {
      REQUIRE(torch::equal(item.input, (*expected).input));
      REQUIRE(torch::equal(item.target, (*expected).target));
      REQUIRE(item.completes_step == (*expected).completes_step);
      ++expected;
    }
    REQUIRE_FALSE(expected != nullptr);
  }
}

TEST_CASE("the ring is bounded, and an exception comes when its batch is taken", "[workers]") {
  std::atomic<int64_t> begun = 0;
  ddp::Prefetcher ring(3, 4, [&](int64_t batch, size_t, const std::atomic<bool>& /*stops*/) {
    ++begun;
    if (batch == 6) {
      throw ddp::UsageError("batch 6");
    }
  });
  ring.start(100);
  for (int64_t batch = 0; batch < 6; ++batch) {
    CHECK(ring.take() == static_cast<size_t>(batch % 4));
    CHECK(begun.load() <= batch + 4);
    ring.give_back();
  }
  CHECK_THROWS_WITH(ring.take(), "batch 6");
  ring.stop();
  ring.start(2);
  CHECK(ring.take() == 0);
}

TEST_CASE("threads are told when nobody wants their batch any more, and waited for", "[workers]") {
  std::atomic<bool> begun = false;
  std::atomic<bool> left = false;
  ddp::Prefetcher ring(1, 2, [&](int64_t, size_t, const std::atomic<bool>& stops) {
    begun = true;
    while (!stops) {
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    left = true;
  });
  ring.start(1);
  while (!begun) {
  }
  ring.stop();
  CHECK(left);
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
  ddp::DataLoader loader(dataset.train, sampler, {.batch_per_rank = 16, .workers = 2});
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

TEST_CASE("every stage ends on the same weights, from tensors, a table and images", "[parity]") {
  const Folder folder;
  const ImageShape shape{4, 4, 1};
  write_folder(folder, "f", shape);
  const std::string file = folder.file("f.safetensors");
  REQUIRE(convert({folder.file("f"), file}).exit_code == 0);
  const std::string alone = digest("01_single_gpu", file);
  CHECK(digest("01_single_gpu --workers 2", folder.file("f")) == alone);
  const std::string two = digest("03_ddp_spawn --nprocs 2", file);
  CHECK(digest("03_ddp_spawn --nprocs 2 --workers 1", folder.file("f")) == two);
  CHECK(digest("mpirun --oversubscribe -np 2 04_ddp_launcher", file) == two);

  // The same numbers as text, which float32 needs nine digits of.
  std::ofstream table(folder.file("f.csv"));
  const ddp::TensorFile tensors = ddp::map_tensor_file(file, {"features", "labels"});
  const torch::Tensor labels = tensors.tensors[0].second;
  const torch::Tensor pixels = tensors.tensors[1].second.view({60, -1}).to(torch::kFloat32) / 255;
  for (int64_t column = 0; column < pixels.size(1); ++column) {
    table << "p" << column << ",";
  }
  table << "label\n";
  for (int64_t row = 0; row < pixels.size(0); ++row) {
    for (int64_t column = 0; column < pixels.size(1); ++column) {
      table << fmt::format("{},", pixels[row][column].item<float>());
    }
    table << labels[row].item<int64_t>() << "\n";
  }
  table.close();
  CHECK(digest("01_single_gpu", folder.file("f.csv")) == alone);
}
