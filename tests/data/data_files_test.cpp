// The user's own data in safetensors files: samples, refused files, and the small part of a large
// file that is read.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "common/base/exit_codes.hpp"
#include "common/base/files.hpp"
#include "common/base/process.hpp"
#include "common/data/data_loader.hpp"
#include "common/data/dataset.hpp"
#include "common/data/tensor_file.hpp"
#include "tests/support/catch.hpp"

namespace ddp::test {

/// Reads a file with eight bytes of data and a right checksum, as a snapshot and as data.
/// @param tensors the header after its metadata: R"("t":{"dtype":"F64","shape":[1],...}})"
/// @return true if it is a snapshot @throws unless the file is read or refused by a ddp::Error of
/// one line
bool reads_header(const std::string& tensors);  // in safetensors_fuzz.cpp

}  // namespace ddp::test

namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Tensors = std::vector<std::pair<std::string, torch::Tensor>>;

struct Folder : ddp::ScratchFolder {
  Folder() : ScratchFolder("ddp-data-test") {}
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path() + "/" + name, std::ios::binary | std::ios::trunc) << bytes;
    return path() + "/" + name;
  }
};

/// Message that refuses the file. It must be one line and name the file.
std::string refusal(const std::string& path) {
  const auto message = message_of<ddp::UsageError>([&] { ddp::load_dataset({.dataset = path}); });
  if (message.empty()) {
    return "loaded";
  }
  CHECK_THAT(message, ContainsSubstring(path) && !ContainsSubstring("\n"));
  CHECK(message.size() < 400);
  return message;
}

/// Writes a file with `tensors` and loads it.
ddp::Dataset load(const Folder& folder, const Tensors& tensors) {
  ddp::write_tensor_file(folder.path() + "/a.safetensors", {{}, tensors});
  return ddp::load_dataset({.dataset = folder.path() + "/a.safetensors"});
}

/// A header with its size before it.
std::string with_size(const std::string& text) {
  const uint64_t size = text.size();
  return std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + text;
}

/// Bytes of a file by another writer. Without `pad` the header has a multiple of 8 bytes.
std::string safetensors(const json& header, const std::string& data, const std::string& pad = "") {
  std::string text = header.dump();
  text += std::string((8 - text.size() % 8) % 8, ' ') + pad;
  return with_size(text) + data;
}

json entry(const std::string& dtype, const json& shape, int64_t begin, int64_t end) {
  return {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {begin, end}}};
}

/// Number of pages in memory that are a mapped file's.
int64_t resident_file_pages() {
  std::ifstream sizes("/proc/self/statm");
  int64_t all = 0, resident = 0, of_files = 0;
  sizes >> all >> resident >> of_files;
  return of_files;
}

}  // namespace

TEST_CASE("classes or values, pixels or floats, with a test part or without", "[tensors]") {
  const Folder folder;
  const torch::Tensor features = torch::randn({11, 2, 3});
  const torch::Tensor rows = features.view({11, 6});
  const torch::Tensor classes = torch::arange(11).remainder(4);
  const ddp::Dataset drawn =
      load(folder, {{"other", torch::ones({4})}, {"labels", classes}, {"features", features}});
  CHECK(drawn.layers == std::vector<int64_t>{6, 128, 128, 4});
  CHECK(drawn.train.size() == 8);
  for (const ddp::Samples& part : {drawn.train, drawn.test, drawn.train.slice(2, 4)}) {
    CHECK(torch::equal(part.read().input, rows.index_select(0, part.rows)));
    CHECK(torch::equal(part.read().target, classes.index_select(0, part.rows)));
  }

  const torch::Tensor pixels = torch::randint(256, {11, 6}, torch::kUInt8);
  const torch::Tensor values = torch::randn({11});
  const ddp::Dataset given = load(folder, {{"labels", values},
                                           {"test_labels", values.slice(0, 0, 2).view({2, 1})},
                                           {"features", pixels},
                                           {"test_features", pixels.slice(0, 0, 2)}});
  CHECK(given.layers == std::vector<int64_t>{6, 128, 128, 1});
  CHECK(given.train.size() == 11);
  CHECK(torch::equal(given.train.read().input, pixels.to(torch::kFloat32) / 255));
  CHECK(torch::equal(given.test.read().target, values.slice(0, 0, 2).view({2, 1})));
  ddp::RandomSampler sampler(11, /*seed=*/3);
  ddp::DataLoader loader(given.train, sampler, 11);
  const ddp::Batch& batch = *loader.begin();
  const torch::Tensor shuffled = ddp::shuffled_indices(11, /*seed=*/3, /*epoch=*/0);
  CHECK(torch::equal(batch.input, (pixels.to(torch::kFloat32) / 255).index_select(0, shuffled)));
  CHECK(torch::equal(batch.target, values.view({11, 1}).index_select(0, shuffled)));
}

TEST_CASE("a file that others wrote: any order and alignment, nothing that is wrong", "[tensors]") {
  const Folder folder;
  const std::string data(40, '\0');
  const json good = {{"features", entry("F32", {2, 3}, 16, 40)},
                     {"labels", entry("F32", {2, 1}, 8, 16)},
                     {"ids", entry("U32", {2}, 0, 8)}};  // an unknown type
  const auto changed = [&](const std::string& name, const json& other) {
    json header = good;
    header[name] = other;
    return safetensors(header, data);
  };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {safetensors(good, data), "loaded"},
      {safetensors(good, data, " "), "loaded"},
      {"", "holds 0 bytes"},
      {"1234567", "got 7 bytes"},
      {std::string(8, '\xff'), "header of 18446744073709551615 bytes"},
      {std::string("\1\0\0\0\0\0\0\0{", 9), "got no JSON at byte"},
      {safetensors(good, data + "x"), "got 41 bytes of data, expected 40"},
      {safetensors(good, data.substr(1)),
       "\"features\" at [16,40], expected it to begin at 16 of 39"},
      // As the reference loads them: an empty tensor between others, and no metadata.
      {changed("empty", entry("F32", {0, 7}, 8, 8)), "loaded"},
      {changed("__metadata__", nullptr), "loaded"},
      {changed("__metadata__", 1), "got a header with other fields"},
      {changed("x", {{"y", {{1}}}}), "nested too deeply"},
      {changed("\x1b[2J", entry("I8", {0}, 8, 8)), "loaded"},
      {changed("\x1b[2J", entry("F32", {0}, 8, 7)), "tensor \"\\x1b[2J\" at [8,7]"},
      {changed("features", entry("I8", {2, 12}, 16, 40)), "of dtype \"I8\", expected F64, F32"},
      {changed("features", entry("F32", {6}, 16, 40)), "features of Float [6], expected float32"},
      {changed("features", entry("F32", {2, 2}, 16, 40)), "F32 and shape [2,2] in 24 bytes"},
      {changed("features", entry("F32", {2.0, 3}, 16, 40)), "shape [2.0,3] in 24 bytes"},
      {changed("ids", entry("U8", {4}, 0, 4)), "\"labels\" at [8,16], expected it to begin at 4"},
      {changed("labels", entry("I32", {2}, 8, 16)), "labels of Int [2], expected int64 classes"},
      {changed("labels", entry("F32", {1, 2}, 8, 16)), "one for each of the 2 samples"},
  };
  for (const auto& [bytes, expected] : cases) {
    CHECK_THAT(refusal(folder.write("a.safetensors", bytes)), ContainsSubstring(expected));
  }
  CHECK_THAT(refusal(folder.path() + "/none.safetensors"), ContainsSubstring("No such file"));
}

TEST_CASE("a header that is nested deeply is refused at once, without memory", "[tensors]") {
  const Folder folder;
  const auto header = [&](const std::string& begin, const std::string& again, size_t bytes) {
    std::string text = begin;
    while (text.size() < bytes) {
      text += again;
    }
    return folder.write("a.safetensors", with_size(text));
  };
  const size_t mib = 1 << 20;
  CHECK_THAT(refusal(header("", " ", 60 * mib)),
             ContainsSubstring("got no JSON"));  // its text in memory
  const double before_mib = ddp::peak_rss_mib();
  CHECK_THAT(refusal(header("", "[", 60 * mib)), ContainsSubstring("nested too deeply"));
  CHECK_THAT(refusal(header("", "{\"a\":", 10 * mib)), ContainsSubstring("nested too deeply"));
  CHECK_THAT(refusal(header("{\"__metadata__\":", "[{\"\":", 10 * mib)),
             ContainsSubstring("too deeply"));
  CHECK_THAT(refusal(header("{\"a\":{\"shape\":[1,", "[", 10 * mib)),
             ContainsSubstring("too deeply"));
  CHECK(ddp::peak_rss_mib() - before_mib < 100);
}

TEST_CASE("labels that are no classes, values that are no numbers, parts that do not fit",
          "[tensors]") {
  const Folder folder;
  const torch::Tensor features = torch::zeros({4, 2});
  const torch::Tensor labels = torch::tensor({0, 1, 2, 3});
  const torch::Tensor nan = torch::full({4}, std::numeric_limits<float>::quiet_NaN());
  struct Case {
    torch::Tensor features, labels, test_features, test_labels;  // undefined: not in the file
    std::string expected;
  };
  const std::vector<Case> cases = {
      {features, labels, {}, {}, "loaded"},
      {features, labels, features, labels + 1, "loaded"},  // a class that training does not have
      {features, {}, {}, {}, "has no tensor labels, expected features and labels"},
      {{}, labels, {}, {}, "has no tensor features"},
      {features, labels, {}, labels, "has no tensor test_features"},
      {features, labels, features, {}, "has no tensor test_labels"},
      {features, labels, features, labels * 0, "loaded"},
      {features.to(torch::kFloat64), labels, {}, {}, "features of Double [4, 2]"},
      {features, labels.view({4, 1}), {}, {}, "labels of Long [4, 1]"},
      {features, torch::zeros({4, 2}), {}, {}, "labels of Float [4, 2]"},
      {features, torch::zeros({}), {}, {}, "labels of Float []"},
      {features, labels * 333'333 + 1, {}, {}, "labels from 1 to 1000000"},
      {features, labels - 1, {}, {}, "labels from -1 to 2"},
      {features, labels * 1'000'000, {}, {}, "labels from 0 to 3000000"},
      {features, labels * 0, {}, {}, "labels of one class"},
      {features, nan, {}, {}, "labels that are not finite"},
      {features, torch::zeros({4}), features, nan, "labels that are not finite"},
      {features.slice(0, 0, 1), torch::zeros({1}), {}, {}, "has 1 samples"},
      {features.slice(0, 0, 0), torch::zeros({0}), {}, {}, "features of Float [0, 2]"},
      {features, labels, torch::zeros({4, 3}), labels,
       "test samples of 3 features (Float) with Long labels, expected 2 features (Float)"},
      {features, labels, features, nan, "with Float labels, expected 2 features (Float) with Long"},
  };
  for (const Case& one : cases) {
    ddp::TensorFile file;
    for (const auto& [name, tensor] : Tensors{{"features", one.features},
                                              {"labels", one.labels},
                                              {"test_features", one.test_features},
                                              {"test_labels", one.test_labels}}) {
      if (tensor.defined()) {
        file.tensors.emplace_back(name, tensor);
      }
    }
    ddp::write_tensor_file(folder.path() + "/a.safetensors", file);
    CHECK_THAT(refusal(folder.path() + "/a.safetensors"), ContainsSubstring(one.expected));
  }
}

TEST_CASE("a fifth of every class is held out, in whatever order the classes are", "[tensors]") {
  const Folder folder;
  for (const torch::Tensor& labels :
       {torch::arange(1000).remainder(5), torch::arange(1000).floor_divide(200)}) {
    const ddp::Dataset dataset =
        load(folder, {{"features", torch::zeros({1000, 1})}, {"labels", labels}});
    CHECK(dataset.test.size() == 200);
    CHECK(dataset.test.read().target.bincount().min().item<int64_t>() > 20);
    const torch::Tensor both = torch::cat({dataset.train.rows, dataset.test.rows});
    CHECK(torch::equal(std::get<0>(both.sort()), torch::arange(1000)));
  }
}

TEST_CASE("of a file larger than memory a batch reads its samples, and nothing else",
          "[large][measured]") {
  // A sparse file: it takes no room, and its pages are read as zeros.
  const int64_t page_bytes = sysconf(_SC_PAGESIZE);
  constexpr int64_t kFeatures = 1 << 14;
  constexpr int64_t kRowBytes = kFeatures * int64_t{sizeof(float)};
  constexpr int64_t kReadRows = 400;
  const int64_t rows = sysconf(_SC_PHYS_PAGES) * page_bytes / kRowBytes + 1000;
  const json header = {
      {"labels", entry("F32", {rows}, 0, rows * 4)},
      {"features", entry("F32", {rows, kFeatures}, rows * 4, rows * (4 + kRowBytes))}};
  const Folder folder;
  const std::string path = folder.write("large.safetensors", safetensors(header, ""));
  fs::resize_file(path, fs::file_size(path) + static_cast<uintmax_t>(rows * (4 + kRowBytes)));
  const ddp::Dataset dataset = ddp::load_dataset({.dataset = path});
  CHECK(dataset.train.size() == rows - (rows + 4) / 5);

  const torch::Tensor order = dataset.train.rows.index_select(
      0,
      ddp::shuffled_indices(dataset.train.size(), /*seed=*/0, /*epoch=*/0).slice(0, 0, kReadRows));
  const ddp::Samples batch = dataset.train.room_for(kReadRows);
  const int64_t before = resident_file_pages();
  ddp::gather_rows(dataset.train, order.const_data_ptr<int64_t>(), kReadRows, batch);
  const auto grown = static_cast<double>(resident_file_pages() - before);
  for (const int64_t wrong : {int64_t{-1}, rows}) {
    CHECK_THROWS_AS(ddp::gather_rows(dataset.train, &wrong, 1, batch), c10::Error);
  }
  // A row that begins within a page ends in another page.
  const auto expected = static_cast<double>(kReadRows * (kRowBytes / page_bytes + 1));
  CHECK(grown > 0.5 * expected);
  CHECK(grown < 1.1 * expected);
}

TEST_CASE("safetensors headers are read or refused", "[fuzz]") {
  std::ifstream corpus(DDP_SOURCE_DIR "/tests/data/safetensors_corpus.txt");
  int headers = 0;
  for (std::string line; std::getline(corpus, line); ++headers) {
    INFO(line);
    const size_t tab = line.find('\t');
    CHECK(reads_header(line.substr(tab + 1)) == (line.substr(0, tab) == "read"));
  }
  CHECK(headers > 30);
}
