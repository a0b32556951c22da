#include "common/data/data_files.hpp"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/base/mapped_file.hpp"
#include "common/base/refuse.hpp"
#include "common/data/tensor_file.hpp"

namespace ddp {
namespace {

/// A model with more outputs is a slip: a label that is a number of something else.
constexpr int64_t kMostClasses = 1'000'000;

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
  const bool is_pixels = features->scalar_type() == torch::kUInt8;
  if ((!is_pixels && features->scalar_type() != torch::kFloat32) || features->dim() < 2 ||
      features->numel() == 0) {
    refuse(
        "data file {} has {} of {}, expected float32, or uint8 for pixels, of samples x features, "
        "one of each at least",
        path, features_name, described(*features));
  }
  const int64_t rows = features->size(0);
  const bool is_classes = labels->scalar_type() == torch::kInt64 && labels->dim() == 1;
  const bool is_values = labels->scalar_type() == torch::kFloat32 &&
                         (labels->dim() == 1 || (labels->dim() == 2 && labels->size(1) == 1));
  if ((!is_classes && !is_values) || labels->size(0) != rows) {
    refuse(
        "data file {} has {} of {}, expected int64 classes or float32 values, one for each of the "
        "{} samples in {}",
        path, labels_name, described(*labels), rows, features_name);
  }
  return Samples{features->view({rows, -1}), is_classes ? *labels : labels->view({rows, 1})};
}

/// "2 features (Float) with Long labels"
std::string kind_of(const Samples& samples) {
  return fmt::format("{} features ({}) with {} labels", samples.in_features(),
                     c10::toString(samples.input.scalar_type()),
                     c10::toString(samples.target.scalar_type()));
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

/// How many classes, of both parts: the largest label is the last of them.
int64_t count_classes(const std::string& path, const Samples& train, const Samples& test) {
  int64_t most = 0;
  for (const Samples* const samples : {&train, &test}) {
    const auto [smallest, largest] = torch::aminmax(samples->target);
    if (smallest.item<int64_t>() < 0 || largest.item<int64_t>() >= kMostClasses) {
      refuse(
          "data file {} has labels from {} to {}, expected classes from 0 to at most {} (values of "
          "a regression are float32)",
          path, smallest.item<int64_t>(), largest.item<int64_t>(), kMostClasses - 1);
    }
    most = std::max(most, largest.item<int64_t>());
  }
  if (most == 0) {
    refuse("data file {} has labels of one class, expected two or more", path);
  }
  return most + 1;
}

/// A fifth of the samples becomes the test part. Which ones is drawn, always alike: a file may be
/// sorted by class, or have its classes in turns.
void hold_out(const std::string& path, DataFile& file) {
  constexpr int64_t kOneOf = 5;
  const int64_t rows = file.train.size();
  if (rows < 2) {
    refuse("data file {} has {} samples, expected 2 or more: one of five is held out", path, rows);
  }
  const torch::Tensor drawn =
      torch::randperm(rows, at::detail::createCPUGenerator(/*seed=*/0), torch::kInt64);
  const int64_t held_out = (rows + kOneOf - 1) / kOneOf;
  file.test = file.train;
  // In the order in which they lie in the file.
  file.test->rows = std::get<0>(drawn.narrow(0, 0, held_out).sort());
  file.train.rows = std::get<0>(drawn.narrow(0, held_out, rows - held_out).sort());
}

/// The file's name as text that JSON takes: it is any bytes.
std::string name_of(const std::string& path) {
  using nlohmann::json;
  const std::string name = std::filesystem::path(path).filename();
  return json::parse(json(name).dump(-1, ' ', false, json::error_handler_t::replace));
}

}  // namespace

DataFile read_data_file(const std::string& path) {
  const TensorFile file =
      map_tensor_file(path, {"features", "labels", "test_features", "test_labels"});
  std::optional<Samples> train = samples_in(file, path, "");
  if (!train) {
    refuse("data file {} has no tensors features and labels, expected both", path);
  }
  std::optional<Samples> test = samples_in(file, path, "test_");
  if (test && kind_of(*test) != kind_of(*train)) {
    refuse("data file {} has test samples of {}, expected {} as the others", path, kind_of(*test),
           kind_of(*train));
  }
  return {*std::move(train), std::move(test)};
}

Dataset load_data_file(const Options& options, Hash& content) {
  const std::string& path = options.dataset;
  DataFile file = read_data_file(path);
  if (!file.test) {
    hold_out(path, file);
  }
  const bool classification = file.train.target.scalar_type() == torch::kInt64;
  for (const Samples* const samples : {&file.train, &*file.test}) {
    if (!classification && !samples->target.isfinite().all().item<bool>()) {
      refuse("data file {} has labels that are not finite, expected numbers", path);
    }
    look_at_rows(samples->input, content);
    content.update(samples->target.const_data_ptr(), samples->target.nbytes());
    expect_random_reads(samples->input.const_data_ptr(), samples->input.nbytes());
  }
  return {
      .name = name_of(path),
      .train = file.train,
      .test = *file.test,
      .layers = mlp_layers(file.train.in_features(),
                           options.hidden.empty() ? std::vector<int64_t>{128, 128} : options.hidden,
                           classification ? count_classes(path, file.train, *file.test) : 1),
      .fingerprint = {}};
}

}  // namespace ddp
