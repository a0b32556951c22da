#include "common/data/data_files.hpp"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>

#include "common/base/hash.hpp"
#include "common/base/mapped_file.hpp"
#include "common/base/parse.hpp"
#include "common/base/refuse.hpp"
#include "common/data/csv_file.hpp"
#include "common/data/tensor_file.hpp"

namespace ddp {
namespace {

namespace fs = std::filesystem;

/// A model with more outputs is a slip: a label that is a number of something else.
constexpr int64_t kMostClasses = 1'000'000;

struct Parts {
  Samples train;
  std::optional<Samples> test;
};

std::optional<torch::Tensor> find_tensor(const TensorFile& file, const std::string& name) {
  const auto found =
      std::ranges::find(file.tensors, name, &std::pair<std::string, torch::Tensor>::first);
  return found == file.tensors.end() ? std::nullopt : std::optional(found->second);
}

/// "Float x 2 x 3"
std::string described(const torch::Tensor& tensor) {
  std::string text = c10::toString(tensor.scalar_type());
  for (const int64_t extent : tensor.sizes()) {
    text += " x " + std::to_string(extent);
  }
  return text;
}

/// Tensors `prefix`features and `prefix`labels as samples, none if neither is there.
std::optional<Samples> samples_in(const TensorFile& file, const std::string& path,
                                  const std::string& prefix) {
  const std::string features_name = prefix + "features";
  const std::string labels_name = prefix + "labels";
  const auto features = find_tensor(file, features_name);
  const auto labels = find_tensor(file, labels_name);
  if (!features && !labels) {
    return std::nullopt;
  }
  if (!features || !labels) {
    refuse("data file {} has tensor {} alone, expected {} too", path,
           features ? features_name : labels_name, features ? labels_name : features_name);
  }
  const auto refuse_tensor = [&](const std::string& name, const torch::Tensor& tensor,
                                 const std::string& expected) {
    refuse("data file {} has {} of {}, expected {}", path, name, described(tensor), expected);
  };
  const bool is_pixels = features->scalar_type() == torch::kUInt8;
  if ((!is_pixels && features->scalar_type() != torch::kFloat32) || features->dim() < 2 ||
      features->numel() == 0) {
    refuse_tensor(features_name, *features,
                  "float32, or uint8 for pixels, of samples x features, one of each at least");
  }
  const int64_t rows = features->size(0);
  const bool is_classes = labels->scalar_type() == torch::kInt64 && labels->dim() == 1;
  const bool is_values = labels->scalar_type() == torch::kFloat32 &&
                         (labels->dim() == 1 || (labels->dim() == 2 && labels->size(1) == 1));
  if ((!is_classes && !is_values) || labels->size(0) != rows) {
    refuse_tensor(
        labels_name, *labels,
        fmt::format("int64 classes or float32 values, one for each of the {} samples in {}", rows,
                    features_name));
  }
  return Samples{features->view({rows, -1}), is_classes ? *labels : labels->view({rows, 1})};
}

/// A look here and there, because all of it may be more than there is time for.
void look_at_rows(const torch::Tensor& features, Hash& content) {
  constexpr int64_t kLooks = 64;
  const int64_t rows = features.size(0);
  const auto row_bytes = static_cast<int64_t>(features.nbytes()) / rows;
  const int64_t bytes = std::min<int64_t>(row_bytes, 1 << 12);
  for (int64_t look = 0; look < kLooks; ++look) {
    const auto* const row =
        static_cast<const char*>(features[rows * look / kLooks].const_data_ptr());
    // Not always a row's beginning: pictures may all have the same edge.
    content.update(row + (row_bytes - bytes) * look / kLooks, static_cast<size_t>(bytes));
  }
}

Parts read_tensors(const std::string& path, Hash& content) {
  const TensorFile file =
      map_tensor_file(path, {"features", "labels", "test_features", "test_labels"});
  std::optional<Samples> train = samples_in(file, path, "");
  if (!train) {
    refuse("data file {} has no tensors features and labels, expected both", path);
  }
  std::optional<Samples> test = samples_in(file, path, "test_");
  if (test && (test->in_features() != train->in_features() ||
               test->input.scalar_type() != train->input.scalar_type() ||
               test->target.scalar_type() != train->target.scalar_type())) {
    refuse(
        "data file {} has test samples of {} features ({}) with {} labels, expected {} ({}) "
        "with {} as the others",
        path, test->in_features(), c10::toString(test->input.scalar_type()),
        c10::toString(test->target.scalar_type()), train->in_features(),
        c10::toString(train->input.scalar_type()), c10::toString(train->target.scalar_type()));
  }
  for (const Samples* const samples : {&*train, test ? &*test : nullptr}) {
    if (samples != nullptr) {
      look_at_rows(samples->input, content);
      expect_random_reads(samples->input.const_data_ptr(), samples->input.nbytes());
    }
  }
  return {*std::move(train), std::move(test)};
}

Parts read_images(const std::string& path, Hash& content) {
  const auto images = std::make_shared<const ImageFolder>(path);
  for (const std::string& file : images->files()) {
    content.update(file);
  }
  return {Samples{{},
                  torch::tensor(images->labels(), torch::kInt64),
                  torch::arange(static_cast<int64_t>(images->size())),
                  images},
          std::nullopt};
}

Parts read_table(const std::string& path, Hash& content) {
  Samples all = read_csv_file(path);
  content.update(all.input.const_data_ptr(), all.input.nbytes());
  return {std::move(all), std::nullopt};
}

/// How many classes, of both parts: the largest label is the last of them.
int64_t count_classes(const std::string& path, const Parts& parts) {
  int64_t most = 0;
  for (const Samples* const samples : {&parts.train, &*parts.test}) {
    const auto [smallest, largest] = torch::aminmax(samples->target);
    if (smallest.item<int64_t>() < 0 || largest.item<int64_t>() >= kMostClasses) {
      refuse(
          "data file {} has labels from {} to {}, expected classes from 0 to at most {} (or "
          "values with a fraction, as 3.0, for regression)",
          path, smallest.item<int64_t>(), largest.item<int64_t>(), kMostClasses - 1);
    }
    most = std::max(most, largest.item<int64_t>());
  }
  if (most == 0) {
    refuse("data file {} has labels of one class, expected two or more", path);
  }
  return most + 1;
}

void check_finite(const std::string& path, const Samples& samples) {
  if (!samples.target.isfinite().all().item<bool>()) {
    refuse("data file {} has labels that are not finite, expected numbers", path);
  }
}

/// A fifth of the samples becomes the test part. Which ones is drawn, always alike: a file may be
/// sorted by class, or have its classes in turns.
void hold_out(const std::string& path, Parts& parts) {
  constexpr int64_t kOneOf = 5;
  const int64_t rows = parts.train.target.size(0);
  if (rows < 2) {
    refuse("data file {} has {} samples, expected 2 or more: one of five is held out", path, rows);
  }
  const torch::Tensor drawn =
      torch::randperm(rows, at::detail::createCPUGenerator(/*seed=*/0), torch::kInt64);
  const int64_t held_out = (rows + kOneOf - 1) / kOneOf;
  parts.test = parts.train;
  // In the order in which they lie in the file.
  parts.test->rows = std::get<0>(drawn.narrow(0, 0, held_out).sort());
  parts.train.rows = std::get<0>(drawn.narrow(0, held_out, rows - held_out).sort());
}

bool is_folder(const std::string& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

/// The last part of the path, as text that JSON takes: a file's name is any bytes.
std::string name_of(const std::string& path) {
  const fs::path normal = fs::path(path).lexically_normal();
  const std::string name =
      normal.has_filename() ? normal.filename() : normal.parent_path().filename();
  using nlohmann::json;
  return json::parse(json(name).dump(-1, ' ', false, json::error_handler_t::replace));
}

}  // namespace

bool is_data_file(const std::string& dataset) {
  return dataset != "synthetic" && dataset != "digits" && dataset != "fashion-mnist" &&
         (dataset.ends_with(".safetensors") || dataset.ends_with(".csv") || is_folder(dataset));
}

Dataset load_data_file(const Options& options, Hash& content) {
  const std::string& path = options.dataset;
  Parts parts = is_folder(path)                  ? read_images(path, content)
                : path.ends_with(".safetensors") ? read_tensors(path, content)
                                                 : read_table(path, content);
  const bool classification = parts.train.target.scalar_type() == torch::kInt64;
  if (!parts.test) {
    hold_out(path, parts);
  }
  const Samples& train = parts.train;
  if (!classification) {
    check_finite(path, train);
    check_finite(path, *parts.test);
  }
  for (const Samples& samples : {train, *parts.test}) {
    content.update(samples.target.const_data_ptr(), samples.target.nbytes());
  }
  return {
      .name = name_of(path),
      .train = train,
      .test = *parts.test,
      .layers = mlp_layers(train.in_features(),
                           options.hidden.empty() ? std::vector<int64_t>{128, 128} : options.hidden,
                           classification ? count_classes(path, parts) : 1),
      .loss_floor = std::numeric_limits<double>::quiet_NaN(),
      .fingerprint = {}};
}

}  // namespace ddp
