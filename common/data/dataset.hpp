// common/data/dataset.hpp - the datasets: a synthetic teacher, images, or the user's own file.
#pragma once

#include "common/data/samples.hpp"
#include "common/launch/options.hpp"

namespace ddp {

struct Dataset {
  Samples train;
  Samples test;  ///< held out: never trained on
  std::vector<int64_t> layers = {};  ///< widths of a fitting MLP, --hidden included

  bool classification() const { return layers.back() > 1; }
};

/// Widths of an MLP: input, hidden layers, output.
std::vector<int64_t> mlp_layers(int64_t in_features, std::vector<int64_t> hidden,
                                int64_t out_features);

/// Loads the dataset that --dataset names.
/// @throws UsageError if a file is missing, damaged or not the published one, or if the options
/// do not fit the dataset
Dataset load_dataset(const DataOptions& options);

/// Maps FILE.safetensors: the tensors features and labels, and test_features and test_labels if the
/// file has them. Without a test part one of five samples is held out. docs/reference/options.md
/// @param hidden widths of the hidden layers; empty: 128, 128
/// @throws UsageError naming the file, what was found and what was expected
Dataset load_data_file(const std::string& path, const std::vector<int64_t>& hidden);

}  // namespace ddp
