// simulator/examples/mlp.hpp - model M, 784-512-512-10, as the examples simulate it.
#pragma once

#include <cstdint>
#include <vector>

#include "simulator/simulator.hpp"

/// As backward comes to it.
struct Layer {
  int64_t bytes;  ///< of its gradients
  double backward_us;
  bool is_last;  ///< of backward: the one that sees the input
};

/// The times are no measurement but round numbers; --set NAME=NUMBER gives others.
struct Mlp {
  std::vector<int64_t> widths{784, 512, 512, 10};
  double data_us = ddp::sim::parameter("data_us", 100);
  double forward_us = ddp::sim::parameter("forward_us", 600);
  double backward_us = ddp::sim::parameter("backward_us", 1200);
  double optimizer_us = ddp::sim::parameter("optimizer_us", 150);

  /// Of each weight matrix and bias, in the order of the layers.
  std::vector<int64_t> parameters() const {
    std::vector<int64_t> bytes;
    for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
      bytes.push_back(4 * widths[i] * widths[i + 1]);
      bytes.push_back(4 * widths[i + 1]);
    }
    return bytes;
  }
  int64_t bytes() const {
    int64_t sum = 0;
    for (const int64_t parameter : parameters()) {
      sum += parameter;
    }
    return sum;
  }
  /// The last layer first. Backward's time is divided by operations: a product for the weights'
  /// gradient and one for the input's, which the first layer does not need.
  std::vector<Layer> backward() const {
    double all = 0;
    std::vector<double> operations;
    for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
      operations.push_back((i == 0 ? 1.0 : 2.0) * static_cast<double>(widths[i] * widths[i + 1]));
      all += operations.back();
    }
    std::vector<Layer> layers;
    for (std::size_t i = operations.size(); i-- > 0;) {
      layers.push_back(
          {4 * (widths[i] + 1) * widths[i + 1], backward_us * operations[i] / all, i == 0});
    }
    return layers;
  }
};
