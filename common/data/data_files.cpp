#include "common/base/exit_codes.hpp"
#include "common/base/files.hpp"
#include "common/data/dataset.hpp"
#include "common/data/tensor_file.hpp"

namespace ddp {
namespace {

constexpr int64_t kMostClasses = 1'000'000;  // larger labels are not classes

/// Tensors `prefix`features and `prefix`labels as samples.
Samples samples_in(const std::map<std::string, torch::Tensor>& tensors, const std::string& path,
                   const std::string& prefix) {
  const std::string features_name = prefix + "features";
  const std::string labels_name = prefix + "labels";
  for (const std::string& name : {features_name, labels_name}) {
    if (!tensors.contains(name)) {
      refuse("data file {} has no tensor {}, expected {} and {}", path, name, features_name,
             labels_name);
    }
  }
  const torch::Tensor& features = tensors.at(features_name);
  const torch::Tensor& labels = tensors.at(labels_name);
  const bool is_pixels = features.scalar_type() == torch::kUInt8;
  if ((!is_pixels && features.scalar_type() != torch::kFloat32) || features.dim() < 2 ||
      features.numel() == 0) {
    refuse(
        "data file {} has {} of {}, expected float32, or uint8 for pixels, of samples x features, "
        "one of each at least",
        path, features_name, c10::str(features.scalar_type(), " ", features.sizes()));
  }
  const int64_t rows = features.size(0);
  const bool is_classes = labels.scalar_type() == torch::kInt64 && labels.dim() == 1;
  const bool is_values = labels.scalar_type() == torch::kFloat32 && labels.dim() >= 1;
  if ((!is_classes && !is_values) || labels.size(0) != rows || labels.numel() != rows) {
    refuse(
        "data file {} has {} of {}, expected int64 classes or float32 values, one for each of the "
        "{} samples in {}",
        path, labels_name, c10::str(labels.scalar_type(), " ", labels.sizes()), rows,
        features_name);
  }
  return {features.view({rows, -1}), is_classes ? labels : labels.view({rows, 1})};
}

/// "2 features (Float) with Long labels"
std::string kind_of(const Samples& samples) {
  return c10::str(samples.in_features(), " features (", samples.input.scalar_type(), ") with ",
                  samples.target.scalar_type(), " labels");
}

/// Number of classes in both parts: the largest label is the last class.
int64_t count_classes(const std::string& path, const Samples& train, const Samples& test) {
  int64_t most = 0;
  for (const Samples& samples : {train, test}) {
    const auto [smallest, largest] = torch::aminmax(samples.target);
    most = std::max(most, largest.item<int64_t>());
    if (smallest.item<int64_t>() < 0 || most >= kMostClasses) {
      refuse(
          "data file {} has labels from {} to {}, expected classes from 0 to at most {} (values of "
          "a regression are float32)",
          path, smallest.item<int64_t>(), most, kMostClasses - 1);
    }
  }
  if (most == 0) {
    refuse("data file {} has labels of one class, expected two or more", path);
  }
  return most + 1;
}

/// Makes a fifth of the samples the test part. The samples are drawn at random, because a file may
/// be sorted by class or have its classes in turns. The seed is fixed, so all runs draw the same
/// samples.
void hold_out(const std::string& path, Dataset& dataset) {
  constexpr int64_t kOneOf = 5;
  const int64_t size = dataset.train.size();
  if (size < 2) {
    refuse("data file {} has {} samples, expected 2 or more: one of five is held out", path, size);
  }
  const torch::Tensor drawn =
      torch::randperm(size, at::detail::createCPUGenerator(/*seed=*/0), torch::kInt64);
  const int64_t held_out = (size + kOneOf - 1) / kOneOf;
  // Sorted: the order of the file.
  dataset.test.rows = std::get<0>(drawn.slice(0, 0, held_out).sort());
  dataset.train.rows = std::get<0>(drawn.slice(0, held_out).sort());
}

}  // namespace

Dataset load_data_file(const std::string& path, const std::vector<int64_t>& hidden) {
  const TensorFile file =
      map_tensor_file(path, {"features", "labels", "test_features", "test_labels"});
  const std::map<std::string, torch::Tensor> tensors(file.tensors.begin(), file.tensors.end());
  const bool has_test = tensors.contains("test_features") || tensors.contains("test_labels");
  const Samples train = samples_in(tensors, path, "");
  const Samples test = has_test ? samples_in(tensors, path, "test_") : train;
  if (kind_of(test) != kind_of(train)) {
    refuse("data file {} has test samples of {}, expected {} as the others", path, kind_of(test),
           kind_of(train));
  }
  Dataset dataset{.train = train, .test = test};
  if (!has_test) {
    hold_out(path, dataset);
  }
  const bool classification = train.target.scalar_type() == torch::kInt64;
  for (const Samples& samples : {dataset.train, dataset.test}) {
    if (!classification && !samples.target.isfinite().all().item<bool>()) {
      refuse("data file {} has labels that are not finite, expected numbers", path);
    }
    expect_random_reads(samples.input.const_data_ptr(), samples.input.nbytes());
  }
  dataset.layers =
      mlp_layers(train.in_features(), hidden.empty() ? std::vector<int64_t>{128, 128} : hidden,
                 classification ? count_classes(path, dataset.train, dataset.test) : 1);
  return dataset;
}

}  // namespace ddp
