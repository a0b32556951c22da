#include "common/data/dataset.hpp"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <memory>
#include <utility>

#include "common/base/exit_codes.hpp"
#include "common/base/hash.hpp"
#include "common/base/parse.hpp"
#include "common/base/refuse.hpp"
#include "common/data/data_files.hpp"

namespace ddp {
namespace {

namespace fs = std::filesystem;

/// A file of the published data: what must be in it once unpacked.
struct PublishedFile {
  const char* name;
  size_t bytes;
  const char* hash;
};

constexpr PublishedFile kDigits{"digits.safetensors", 475320, "9a2c974ecdd18a2d95791ea27751ce72"};
constexpr PublishedFile kFashionTrainImages{"train-images-idx3-ubyte", 47040016,
                                            "e5a664e2905b9295ca72265d7c26283b"};
constexpr PublishedFile kFashionTrainLabels{"train-labels-idx1-ubyte", 60008,
                                            "48a2c630b815ef5a775518db990ebf87"};
constexpr PublishedFile kFashionTestImages{"t10k-images-idx3-ubyte", 7840016,
                                           "00620a3fbea59460a60baf710224b311"};
constexpr PublishedFile kFashionTestLabels{"t10k-labels-idx1-ubyte", 10008,
                                           "ca8383985fa2cbc620515cb4512a5b03"};

/// NAME.gz if it is there, else NAME.
fs::path packed_or_plain(const fs::path& folder, const PublishedFile& file) {
  const fs::path packed = folder / (std::string(file.name) + ".gz");
  return fs::exists(packed) ? packed : folder / file.name;
}

/// The size is known, so a file that claims to be larger is never unpacked.
std::string read_published_file(const fs::path& folder, const PublishedFile& file) {
  const std::string path = packed_or_plain(folder, file);
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> in(gzopen(path.c_str(), "rb"), gzclose);
  if (in == nullptr) {
    throw UsageError(fmt::format(
        "data file {} cannot be opened, expected {} or {}.gz in the folder that --data-dir names",
        path, file.name, file.name));
  }
  std::array<char, size_t{1} << 16> piece;
  std::string bytes;
  bytes.reserve(file.bytes + piece.size());  // memory that a short file never touches
  int got = 0;
  while (bytes.size() <= file.bytes &&  // one more byte than expected: too much data
         (got = gzread(in.get(), piece.data(), piece.size())) > 0) {
    bytes.append(piece.data(), static_cast<size_t>(got));
  }
  if (bytes.size() != file.bytes) {
    throw UsageError(fmt::format("data file {} holds {}, expected {} bytes unpacked", path,
                                 got < 0 ? "damaged gzip data"
                                 : bytes.size() > file.bytes
                                     ? "too much data"
                                     : fmt::format("{} bytes", bytes.size()),
                                 file.bytes));
  }
  const std::string hash = Hash().update(bytes).hex();
  if (hash != file.hash) {
    throw UsageError(
        fmt::format("data file {} has checksum {}, expected {}", path, hash, file.hash));
  }
  return bytes;
}

/// The first candidate that has the file, else the first, so that the error names a likely place.
fs::path find_data_dir(const Options& options, const PublishedFile& file,
                       const std::vector<fs::path>& candidates) {
  if (!options.data_dir.empty()) {
    return options.data_dir;
  }
  const auto found = std::ranges::find_if(candidates, [&](const fs::path& folder) {
    return fs::exists(packed_or_plain(folder, file));
  });
  return found == candidates.end() ? candidates.front() : *found;
}

/// y = w.x + b + 0.1 * noise for one output; for more, classes drawn from softmax(w.x + b).
Dataset synthetic(const Options& options) {
  constexpr double kNoise = 0.1;
  constexpr double kLogitScale = 3.0;  // sharp enough that most labels can be learned
  Dataset dataset;
  dataset.name = "synthetic";
  dataset.layers = options.layers.empty() ? mlp_layers(20, options.hidden, 1) : options.layers;
  const int64_t in_features = dataset.layers.front();
  const int64_t out_features = dataset.layers.back();
  const int64_t test_size = std::max<int64_t>(options.dataset_size / 4, 1);
  const int64_t size = options.dataset_size + test_size;

  at::Generator generator = at::detail::createCPUGenerator(options.seed);
  const torch::Tensor input = torch::randn({size, in_features}, generator);
  // Divided by sqrt(in_features), so that outputs have a variance near 1 at any width.
  const torch::Tensor weight =
      torch::randn({in_features, out_features}, generator) / std::sqrt(double(in_features));
  const torch::Tensor bias = torch::randn({out_features}, generator);
  torch::Tensor target = input.matmul(weight) + bias;
  if (dataset.classification()) {
    const torch::Tensor probability = torch::softmax(kLogitScale * target.to(torch::kFloat64), 1);
    target = probability.multinomial(1, /*replacement=*/false, generator).squeeze(1);
  } else {
    target = target + kNoise * torch::randn({size, 1}, generator);
  }
  dataset.train = {input.narrow(0, 0, options.dataset_size),
                   target.narrow(0, 0, options.dataset_size)};
  dataset.test = {input.narrow(0, options.dataset_size, test_size),
                  target.narrow(0, options.dataset_size, test_size)};
  return dataset;
}

/// Ten classes of images. Pixels get mean 0 and variance 1 over the training part.
Dataset image_dataset(const std::string& name, const Samples& train, const Samples& test,
                      const Options& options, const std::vector<int64_t>& default_hidden) {
  const double mean = train.input.mean(torch::kFloat64).item<double>();
  const double deviation =
      std::sqrt(train.input.to(torch::kFloat64).sub_(mean).square_().mean().item<double>());
  for (const Samples& samples : {train, test}) {
    samples.input.sub_(mean).div_(deviation);
  }
  return {.name = name,
          .train = train,
          .test = test,
          .layers = mlp_layers(train.input.size(1),
                               options.hidden.empty() ? default_hidden : options.hidden, 10),
          .fingerprint = {}};
}

/// 1,797 8x8 images of 10 people's handwritten digits, of which every fifth is held out.
Dataset digits(const Options& options) {
  const fs::path folder = find_data_dir(
      options, kDigits,
      {fs::read_symlink("/proc/self/exe").parent_path().parent_path() / "share", DDP_DATA_DIR});
  read_published_file(folder, kDigits);  // which checks it
  const DataFile file = read_data_file(folder / kDigits.name);
  const auto copy = [](const Samples& samples) {  // that can be written to
    return Samples{samples.input.clone(), samples.target};
  };
  return image_dataset("digits", copy(file.train), copy(file.test.value()), options, {128, 128});
}

/// What follows an IDX file's header, which is big-endian numbers and checked by the file's hash.
torch::Tensor idx_values(const fs::path& folder, const PublishedFile& file, size_t header_bytes,
                         torch::ScalarType dtype) {
  std::string bytes = read_published_file(folder, file);
  const auto size = static_cast<int64_t>(bytes.size() - header_bytes);
  return torch::from_blob(bytes.data() + header_bytes, {size}, torch::kUInt8).to(dtype);
}

/// 60,000 + 10,000 28x28 images of clothing, the published split.
Dataset fashion_mnist(const Options& options) {
  constexpr int64_t kPixels = 784;
  const fs::path folder = find_data_dir(options, kFashionTrainImages,
                                        {"/usr/share/datasets/fashion-mnist", DDP_DATA_DIR});
  const auto part = [&](const PublishedFile& images, const PublishedFile& labels) {
    return Samples{idx_values(folder, images, 16, torch::kFloat32).view({-1, kPixels}),
                   idx_values(folder, labels, 8, torch::kInt64)};
  };
  // Before the call, which evaluates in any order: a missing folder is told by its first file.
  Samples train = part(kFashionTrainImages, kFashionTrainLabels);
  Samples test = part(kFashionTestImages, kFashionTestLabels);
  return image_dataset("fashion-mnist", std::move(train), std::move(test), options, {256, 128});
}

Dataset load(const Options& options) {
  if (options.dataset == "digits") {
    return digits(options);
  }
  if (options.dataset == "fashion-mnist") {
    return fashion_mnist(options);
  }
  if (options.dataset != "synthetic") {
    refuse("--dataset: got {}, expected synthetic, digits, fashion-mnist, or a FILE.safetensors",
           quote(options.dataset));
  }
  return synthetic(options);
}

}  // namespace

std::vector<int64_t> mlp_layers(int64_t in_features, std::vector<int64_t> hidden,
                                int64_t out_features) {
  hidden.insert(hidden.begin(), in_features);
  hidden.push_back(out_features);
  return hidden;
}

Dataset load_dataset(const Options& options) {
  const torch::NoGradGuard no_grad;
  Hash content;
  Dataset dataset;
  if (options.dataset.ends_with(".safetensors")) {
    dataset = load_data_file(options, content);
  } else {
    dataset = load(options);
    for (const torch::Tensor& tensor : {dataset.train.input, dataset.train.target}) {
      content.update(tensor.const_data_ptr(), tensor.nbytes());
    }
  }
  dataset.fingerprint = fmt::format("{} {}+{} samples, hash {}", dataset.name, dataset.train.size(),
                                    dataset.test.size(), content.hex().substr(0, 16));
  return dataset;
}

Dataset load_dataset(const std::string& name) {
  Options options;
  options.dataset = name;
  return load_dataset(options);
}

}  // namespace ddp
