// docs/your_model/gpt.cpp - a small GPT that learns the bytes of a text.
// Usage: torchrun --nproc-per-node 2 --no-python gpt FILE [steps] [dropout] [precision]
// Precision: float32, autocast (products in bfloat16), or bfloat16 (weights too).
#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <ddp_cpp/base/command_line.hpp>
#include <ddp_cpp/device/device.hpp>
#include <ddp_cpp/launch/spawn.hpp>
#include <ddp_cpp/parallel/default_group.hpp>
#include <ddp_cpp/parallel/distributed_data_parallel.hpp>
#include <ddp_cpp/parallel/distributed_sampler.hpp>

#include <cmath>
#include <fstream>
#include <iostream>
#include <numbers>

namespace {

namespace nn = torch::nn;

constexpr int64_t kVocabulary = 256;  // V: bytes
constexpr int64_t kContext = 64;  // T: tokens of a sequence
constexpr int64_t kWidth = 128;  // C
constexpr int64_t kHeads = 4;  // H
constexpr int64_t kBlocks = 2;
constexpr int64_t kGlobalBatch = 32;  // sequences of a step, over all ranks
constexpr int64_t kMicroBatch = 4;  // B: sequences of a backward

struct BlockImpl : nn::Module {
  explicit BlockImpl(double dropout) : drop(register_module("drop", nn::Dropout(dropout))) {}

  torch::Tensor forward(torch::Tensor x) {  // (B, T, C) -> (B, T, C)
    torch::Tensor qkv = attention->forward(norm1->forward(x));  // (B, T, 3C)
    qkv = qkv.view({-1, kContext, 3, kHeads, kWidth / kHeads});
    qkv = qkv.permute({2, 0, 3, 1, 4});  // (3, B, H, T, C / H)
    const torch::Tensor heads = torch::scaled_dot_product_attention(  // (B, H, T, C / H)
        qkv[0], qkv[1], qkv[2], {}, is_training() ? drop->options.p() : 0, /*is_causal=*/true);
    x = x + drop->forward(projection->forward(heads.transpose(1, 2).reshape_as(x)));
    return x + drop->forward(contract->forward(torch::gelu(expand->forward(norm2->forward(x)))));
  }

  nn::LayerNorm norm1 = register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({kWidth})));
  nn::Linear attention = register_module("attention", nn::Linear(kWidth, 3 * kWidth));  // C -> 3C
  nn::Linear projection = register_module("projection", nn::Linear(kWidth, kWidth));  // C -> C
  nn::LayerNorm norm2 = register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({kWidth})));
  nn::Linear expand = register_module("expand", nn::Linear(kWidth, 4 * kWidth));  // C -> 4C
  nn::Linear contract = register_module("contract", nn::Linear(4 * kWidth, kWidth));  // 4C -> C
  nn::Dropout drop;
};
TORCH_MODULE(Block);

struct GptImpl : nn::Module {
  explicit GptImpl(double dropout) : drop(register_module("drop", nn::Dropout(dropout))) {
    for (int64_t i = 0; i < kBlocks; ++i) {
      blocks->push_back(Block(dropout));
    }
  }

  torch::Tensor forward(const torch::Tensor& tokens) {  // (B, T) int64 -> (B, T, V)
    const torch::Tensor x = drop->forward(token->forward(tokens) + position->weight);  // (B, T, C)
    return torch::linear(norm->forward(blocks->forward(x)), token->weight);  // tied
  }

  nn::Embedding token = register_module("token", nn::Embedding(kVocabulary, kWidth));  // (V, C)
  nn::Embedding position = register_module("position", nn::Embedding(kContext, kWidth));  // (T, C)
  nn::Dropout drop;
  nn::Sequential blocks = register_module("blocks", nn::Sequential());
  nn::LayerNorm norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({kWidth})));
};
TORCH_MODULE(Gpt);

/// Normal matrices and embeddings, ones in LayerNorm, and zero biases.
void initialize(const Gpt& model) {
  const torch::NoGradGuard no_grad;
  for (const auto& parameter : model->named_parameters()) {
    if (parameter.value().dim() == 2) {
      parameter.value().normal_(0, 0.02);
    } else if (parameter.key().ends_with("bias")) {
      parameter.value().zero_();
    }
  }
}

/// Half a cosine down to a tenth, times a warm-up of ten steps.
double rate(int64_t step, int64_t steps) {
  const double decay = 0.55 + 0.45 * std::cos(std::numbers::pi * double(step) / double(steps));
  return 1e-3 * decay * std::min(1.0, double(step + 1) / 10);
}

void train(const ddp::LaunchEnvironment& launch, const std::string& path, int64_t steps,
           double dropout, const std::string& precision) {
  const torch::Device device = ddp::set_device(launch.local_rank);
  const std::string settings =
      c10::str("steps ", steps, "\ndropout ", dropout, "\nprecision ", precision);
  ddp::init_process_group(launch, device, {.settings = settings});  // collective
  TORCH_CHECK(kGlobalBatch / kMicroBatch % launch.world_size == 0, "ranks: got ", launch.world_size,
              ", expected a divisor of ", kGlobalBatch / kMicroBatch);
  const int64_t micro_batches = kGlobalBatch / kMicroBatch / launch.world_size;  // of a rank
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  const int64_t positions = std::ssize(text) - kContext;  // where a sequence may begin
  TORCH_CHECK(positions >= kGlobalBatch, path, ": got ", text.size(), " bytes, expected at least ",
              kContext + kGlobalBatch);
  const torch::Tensor tokens =
      torch::from_blob(text.data(), {std::ssize(text)}, torch::kUInt8).to(device, torch::kInt64);
  ddp::DistributedSampler sampler(positions, launch.rank, launch.world_size, /*seed=*/42);

  Gpt model(dropout);
  torch::manual_seed(42);
  initialize(model);
  model->to(device, precision == "bfloat16" ? torch::kBFloat16 : torch::kFloat32);
  ddp::DistributedDataParallel parallel_model(model);  // collective
  torch::optim::AdamW optimizer(model->parameters(),
                                torch::optim::AdamWOptions().betas({0.9, 0.95}).weight_decay(0.1));
  torch::manual_seed(42 + launch.rank);  // or all ranks would drop the same units
  at::autocast::set_autocast_dtype(device.type(), torch::kBFloat16);

  const int64_t epoch_steps = positions / kGlobalBatch;
  for (int64_t step = 0; step < steps; ++step) {
    if (step % epoch_steps == 0) {
      sampler.set_epoch(step / epoch_steps);
    }
    for (auto& group : optimizer.param_groups()) {
      group.options().set_lr(rate(step, steps));
    }
    optimizer.zero_grad();
    torch::Tensor step_loss = torch::zeros({}, device);
    for (int64_t micro = 0; micro < micro_batches; ++micro) {
      const auto no_sync = parallel_model.no_sync(micro + 1 < micro_batches);  // all but the last
      const int64_t begin = (step % epoch_steps * micro_batches + micro) * kMicroBatch;
      const torch::Tensor first = sampler.indices().slice(0, begin, begin + kMicroBatch);  // (B)
      const torch::Tensor rows = tokens.index({first.unsqueeze(1) + torch::arange(kContext + 1)});
      at::autocast::set_autocast_enabled(device.type(), precision == "autocast");
      const torch::Tensor output = parallel_model.forward(rows.slice(1, 0, kContext));  // (B, T, V)
      at::autocast::clear_cache();  // or the next step would use old weights
      at::autocast::set_autocast_enabled(device.type(), false);
      const torch::Tensor loss = nn::functional::cross_entropy(
          output.flatten(0, 1).to(torch::kFloat32), rows.slice(1, 1).flatten());
      (loss / micro_batches).backward();  // collective for the last micro-batch
      step_loss += loss.detach() / micro_batches;
    }
    const double norm = nn::utils::clip_grad_norm_(model->parameters(), 1, 2, true);  // NaN throws
    optimizer.step();
    ddp::all_reduce(step_loss, c10d::ReduceOp::AVG);  // collective
    if (launch.rank == 0) {
      std::cout << "step " << step << " | loss " << step_loss.item<double>() << " | norm " << norm
                << std::endl;
    }
  }
  ddp::expect_same_weights(*model);  // collective
  ddp::destroy_process_group();  // collective
}

}  // namespace

int main(int argc, char** argv) {
  return ddp::run_rank([=](const ddp::LaunchEnvironment& launch) {
    TORCH_CHECK(argc > 1 && argc < 6, "words: got ", argc - 1, ", expected FILE and 0 to 3 more");
    const int64_t steps = argc > 2 ? ddp::parse_integer<int64_t>("steps", argv[2], 1) : 200;
    const double dropout = argc > 3 ? ddp::as_number<double>(argv[3]).value_or(-1) : 0.1;
    TORCH_CHECK(dropout >= 0 && dropout < 1, "dropout: got ", argv[3], ", expected 0 to below 1");
    const std::string precision = argc > 4 ? argv[4] : "float32";
    ddp::check_choice("precision", precision, {"float32", "autocast", "bfloat16"});
    train(launch, argv[1], steps, dropout, precision);
  });
}
