// bench/micro/piece.hpp - one piece of a training step, on one rank, and the models it is measured
// with.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "bench/micro/exercise.hpp"
#include "common/model/mlp.hpp"

namespace ddp::micro {

struct Model {
  const char* name;
  std::vector<std::int64_t> layers;
  std::int64_t batch_per_rank;
};

/// Those of bench, from one that is all overhead to one that is all arithmetic.
inline const std::vector<Model>& models() {
  static const std::vector<Model> list = {
      {"S", {64, 128, 128, 10}, 32},
      {"M", {784, 512, 512, 10}, 64},
      {"L", {1024, 1024, 1024, 1024}, 64},
  };
  return list;
}

inline std::int64_t parameter_count(const torch::nn::Module& module) {
  std::int64_t count = 0;
  for (const torch::Tensor& parameter : module.parameters()) {
    count += parameter.numel();
  }
  return count;
}

inline Mlp make_model(const Model& model, const torch::Device& device) {
  torch::manual_seed(0);
  Mlp mlp(model.layers);
  mlp->to(device);
  return mlp;
}

/// An exercise made of functions, which own what they use.
class Piece : public Exercise {
 public:
  /// @param bytes that must at least be read and written, 0: no measure of this piece
  Piece(std::function<void()> run, std::int64_t bytes, std::function<void()> prepare = {})
      : run_(std::move(run)), prepare_(std::move(prepare)), bytes_(bytes) {}

  void prepare(std::int64_t) override {
    if (prepare_) {
      prepare_();
    }
  }
  void run() override { run_(); }
  void report(const Series& series, benchmark::UserCounters& counters) const override;

 private:
  std::function<void()> run_;
  std::function<void()> prepare_;
  std::int64_t bytes_;
};

}  // namespace ddp::micro
