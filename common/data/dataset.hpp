// common/data/dataset.hpp - the data: a synthetic teacher, real images, or the user's own files.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/data/samples.hpp"
#include "common/launch/options.hpp"

namespace ddp {

struct Dataset {
  std::string name;
  Samples train;
  Samples test;  ///< held out: never trained on
  std::vector<int64_t> layers;  ///< widths of the MLP that fits, --hidden included
  std::string fingerprint;  ///< name, sizes and a hash of the samples: equal on all ranks

  bool classification() const { return layers.back() > 1; }
};

/// The widths of an MLP.
std::vector<int64_t> mlp_layers(int64_t in_features, std::vector<int64_t> hidden,
                                int64_t out_features);

/// @throws UsageError if a file is missing, truncated or not the published one, or if the options
/// do not fit
Dataset load_dataset(const Options& options);
/// The same by its name, as --dataset has it.
Dataset load_dataset(const std::string& name);

}  // namespace ddp
