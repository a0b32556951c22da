#include "common/data/dataset.hpp"

#include <fmt/ranges.h>
#include <zlib.h>

#include <filesystem>

#include "common/base/exit_codes.hpp"
#include "common/base/hash.hpp"
#include "common/base/parse.hpp"

namespace ddp {
namespace {

namespace fs = std::filesystem;

struct PublishedFile {
  const char* name;
  size_t bytes;  ///< unpacked
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

/// Path of NAME.gz or NAME in the folder --data-dir, or in the installed data folders.
std::string find_published(const std::string& data_dir, const PublishedFile& file) {
  std::vector<std::string> folders = {data_dir};
  if (data_dir.empty()) {
    const fs::path bin = fs::read_symlink("/proc/self/exe").parent_path();
    folders = {bin.parent_path() / "share/ddp_cpp", "/usr/share/datasets/fashion-mnist",
               DDP_DATA_DIR};
  }
  for (const std::string& folder : folders) {
    for (const char* const suffix : {".gz", ""}) {
      const std::string path = fmt::format("{}/{}{}", folder, file.name, suffix);
      if (fs::is_regular_file(path)) {
        return path;
      }
    }
  }
  refuse("--data-dir: found no {} in {}, expected {} or {}.gz there", file.name,
         fmt::join(folders, ", "), file.name, file.name);
}

/// @return the unpacked bytes
std::string read_published(const std::string& data_dir, const PublishedFile& file) {
  const std::string path = find_published(data_dir, file);
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> in(gzopen(path.c_str(), "rb"), gzclose);
  std::string bytes(file.bytes + 1, '\0');  // one byte more: a larger file has another checksum
  const int got = gzread(in.get(), bytes.data(), static_cast<unsigned>(bytes.size()));
  if (got < 0) {
    refuse("data file {} cannot be read or unpacked", path);
  }
  bytes.resize(static_cast<size_t>(got));
  if (const std::string hash = Hash().update(bytes).hex(); hash != file.hash) {
    refuse("data file {} holds {} bytes with checksum {}, expected {} with {}", path, got, hash,
           file.bytes, file.hash);
  }
  return bytes;
}

/// y = w.x + b + 0.1 * noise for one output; for more, classes drawn from softmax(w.x + b).
Dataset synthetic(const DataOptions& options) {
  constexpr double kNoise = 0.1;
  constexpr double kLogitScale = 3.0;  // sharp enough that most labels can be learned
  Dataset dataset;
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
  dataset.train = Samples{input, target}.slice(0, options.dataset_size);
  dataset.test = Samples{input, target}.slice(options.dataset_size, size);
  return dataset;
}

/// Gives the pixels of images mean 0 and variance 1 over the training part.
void standardize(Dataset& dataset) {
  const torch::Tensor pixels = dataset.train.input;
  const double mean = pixels.mean(torch::kFloat64).item<double>();
  const double deviation =
      std::sqrt(pixels.to(torch::kFloat64).sub_(mean).square_().mean().item<double>());
  for (Samples* const samples : {&dataset.train, &dataset.test}) {
    samples->input = samples->input.sub(mean).div_(deviation);
  }
}

/// 1,797 images of handwritten digits, 8x8 pixels. Every fifth image is held out.
Dataset digits(const DataOptions& options) {
  read_published(options.data_dir, kDigits);  // checks the file
  Dataset dataset = load_data_file(find_published(options.data_dir, kDigits), options.hidden);
  standardize(dataset);
  return dataset;
}

/// Bytes after an IDX file's header. read_published() has checked the header by the file's hash.
torch::Tensor idx_values(const std::string& data_dir, const PublishedFile& file,
                         size_t header_bytes) {
  std::string bytes = read_published(data_dir, file);
  const auto size = static_cast<int64_t>(bytes.size() - header_bytes);
  return torch::from_blob(bytes.data() + header_bytes, {size}, torch::kUInt8).clone();
}

/// 60,000 + 10,000 images of clothing, 28x28 pixels, in the published split.
Dataset fashion_mnist(const DataOptions& options) {
  constexpr int64_t kPixels = 784;
  const auto part = [&](const PublishedFile& images, const PublishedFile& labels) {
    const torch::Tensor pixels = idx_values(options.data_dir, images, 16).view({-1, kPixels});
    return Samples{pixels.to(torch::kFloat32),
                   idx_values(options.data_dir, labels, 8).to(torch::kInt64)};
  };
  Dataset dataset{
      .train = part(kFashionTrainImages, kFashionTrainLabels),
      .test = part(kFashionTestImages, kFashionTestLabels),
      .layers = mlp_layers(
          kPixels, options.hidden.empty() ? std::vector<int64_t>{256, 128} : options.hidden, 10)};
  standardize(dataset);
  return dataset;
}

}  // namespace

std::vector<int64_t> mlp_layers(int64_t in_features, std::vector<int64_t> hidden,
                                int64_t out_features) {
  hidden.insert(hidden.begin(), in_features);
  hidden.push_back(out_features);
  return hidden;
}

Dataset load_dataset(const DataOptions& options) {
  const torch::NoGradGuard no_grad;
  if (options.dataset.ends_with(".safetensors")) {
    return load_data_file(options.dataset, options.hidden);
  }
  if (options.dataset == "digits") {
    return digits(options);
  }
  if (options.dataset == "fashion-mnist") {
    return fashion_mnist(options);
  }
  if (options.dataset != kSynthetic) {
    refuse("--dataset: got {}, expected synthetic, digits, fashion-mnist, or a FILE.safetensors",
           quote(options.dataset));
  }
  return synthetic(options);
}

}  // namespace ddp
