// simulator/examples/mlp.hpp - model M, 784-512-512-10, for the examples.
#pragma once

#include <array>

#include "simulator/simulator.hpp"

struct Layer {
  int64_t weight_bytes;
  int64_t bias_bytes;
  double backward_us;
};

/// Layers, the last layer first, as in backward. The first layer needs no gradient of its input.
constexpr std::array<Layer, 3> kLayers = {{
    {4 * 512 * 10, 4 * 10, 15},
    {4 * 512 * 512, 4 * 512, 675},
    {4 * 784 * 512, 4 * 512, 510},
}};

// Round numbers, not measured.
constexpr double kDataUs = 100;
constexpr double kForwardUs = 600;
constexpr double kOptimizerUs = 150;
