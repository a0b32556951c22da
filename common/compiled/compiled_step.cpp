#include "common/compiled/compiled_step.hpp"

#include <fmt/ranges.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <zlib.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "common/base/exit_codes.hpp"
#include "common/base/files.hpp"
#include "common/base/parse.hpp"
#include "common/data/tensor_file.hpp"
#include "common/device/hardware.hpp"

namespace ddp {
namespace {

using nlohmann::json;

const std::string kDescription = "ddp-step-1";  // key in the metadata of FILE.safetensors

/// @param description see tools/compile_step @throws UsageError if this run cannot use the package
void check_fit(const json& description, const torch::Device& device) {
  const std::string made_for = description.at("device");
  if (made_for != c10::DeviceTypeName(device.type(), /*lower_case=*/true)) {
    refuse("got a package for device {}, expected {}", quote(made_for), device.str());
  }
  if (const std::string torch = description.at("torch"); torch != DDP_TORCH_VERSION) {
    refuse("got a package of torch {}, expected {}", quote(torch), DDP_TORCH_VERSION);
  }
  const std::vector<std::string> here = split(instruction_sets(), ' ');
  for (const std::string set : description.at("instruction_sets")) {
    if (std::ranges::find(here, set) == here.end()) {
      refuse("got a package for processors with {}, expected one for this processor", quote(set));
    }
  }
}

uint32_t checksum(uint32_t before, const void* bytes, size_t size) {
  return size == 0 ? before  // zlib takes a null pointer for its start
                   : static_cast<uint32_t>(crc32_z(before, static_cast<const Bytef*>(bytes), size));
}

/// The submodule in which a tensor of that path is registered, made where there is none.
torch::nn::Module& parent_of(torch::nn::Module& root, const std::vector<std::string>& path) {
  torch::nn::Module* parent = &root;
  for (size_t i = 0; i + 1 < path.size(); ++i) {
    const auto children = parent->named_children();
    const auto* const child = children.find(path[i]);
    parent = child != nullptr
                 ? child->get()
                 : parent->register_module(path[i], std::make_shared<torch::nn::Module>()).get();
  }
  return *parent;
}

/// Reason of an exception, on one line.
std::string reason(const std::exception& error) {
  const auto* const of_torch = dynamic_cast<const c10::Error*>(&error);
  return printable(of_torch != nullptr ? of_torch->what_without_backtrace() : error.what());
}

}  // namespace

CompiledStep::CompiledStep(const std::string& file, const torch::Device& device,
                           const AllocateFunction& allocate_gradients)
    : file_(file) {
  if (file.empty()) {
    refuse(
        "--step: got nothing, expected a package: tools/compile_step MODEL.py --output step.pt2, "
        "or with --layers 20,1 instead of MODEL.py for the stages' model, makes one");
  }
  try {
    load_package(device);
  } catch (const std::exception& error) {
    refuse("--step {}: {}; make one here with tools/compile_step --device {}", file, reason(error),
           c10::DeviceTypeName(device.type(), /*lower_case=*/true));
  }
  flat_ = flatten_parameters(*this, allocate_gradients);
  weight_ = torch::ones({}, torch::TensorOptions(device));
}

CompiledStep::~CompiledStep() = default;

void CompiledStep::load_package(const torch::Device& device) {
  const std::string weights =
      std::filesystem::path(file_).replace_extension(".safetensors").string();
  const TensorFile header = map_tensor_file(weights, {});
  const auto text = header.metadata.find(kDescription);
  if (text == header.metadata.end()) {
    refuse("got no {} in {}, expected the file that was written beside it", kDescription, weights);
  }
  const json description = json::parse(text->second);
  check_fit(description, device);
  const std::vector<std::string> trained = description.at("trained");
  std::vector<std::string> names = trained;
  for (const std::string name : description.at("state")) {
    names.push_back(name);
  }
  const NamedTensors stored = map_tensor_file(weights, names).tensors;
  const std::map<std::string, torch::Tensor> values(stored.begin(), stored.end());
  const MappedFile package(file_);
  uint32_t found = checksum(0, package.bytes().data(), package.bytes().size());
  for (size_t i = 0; i < names.size(); ++i) {
    if (!values.contains(names[i])) {
      refuse("got no tensor {} in {}", quote(names[i]), weights);
    }
    const torch::Tensor& value = values.at(names[i]);
    found = checksum(found, value.const_data_ptr(), value.nbytes());
    const torch::Tensor tensor = value.to(device, /*non_blocking=*/false, /*copy=*/true);
    const std::vector<std::string> path = split(names[i], '.');
    torch::nn::Module& parent = parent_of(*this, path);
    tensors_.push_back(i < trained.size() ? parent.register_parameter(path.back(), tensor)
                                          : parent.register_buffer(path.back(), tensor));
  }
  if (found != description.at("crc32").get<uint32_t>()) {
    refuse("got another checksum of it and {} than that says, expected the two files of one run",
           weights);
  }
  const torch::OrderedDict<std::string, torch::Tensor> state = named_buffers();
  for (const std::string name : description.at("updated")) {
    updated_.push_back(state[name]);
  }
  const auto expected = [&](const char* name) {
    const json& tensor = description.at(name);
    return Expected{name, c10::getStringToDtypeMap().at(tensor.at("dtype")), tensor.at("shape")};
  };
  fewest_samples_ = description.at("fewest_samples");
  input_ = expected("input");
  target_ = expected("target");
  for (auto& [loader, name] : {std::pair(&step_, "step"), std::pair(&evaluate_, "evaluate")}) {
    *loader = std::make_unique<Loader>(file_, name, /*run_single_threaded=*/true,
                                       /*num_runners=*/1, device.index());
  }
}

void CompiledStep::check(const Expected& expected, const torch::Tensor& tensor,
                         int64_t samples) const {
  std::vector<int64_t> shape = expected.shape;
  shape.insert(shape.begin(), samples);
  const torch::Device device = weight_.device();
  if (tensor.scalar_type() != expected.dtype || tensor.sizes() != shape ||
      tensor.device() != device) {
    refuse("--step {}: got {} of shape ({}) and dtype {} on {}, expected ({}) {} on {}", file_,
           expected.name, fmt::join(tensor.sizes(), ", "), c10::toString(tensor.scalar_type()),
           tensor.device().str(), fmt::join(shape, ", "), c10::toString(expected.dtype),
           device.str());
  }
}

int64_t CompiledStep::check_batch(const torch::Tensor& input, const torch::Tensor& target) const {
  const int64_t samples = input.dim() == 0 ? 0 : input.size(0);
  check(input_, input, samples);
  check(target_, target, samples);
  return samples;
}

std::vector<torch::Tensor> CompiledStep::run(Loader& loader,
                                             const std::vector<torch::Tensor>& last) {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> inputs = tensors_;
  for (const torch::Tensor& tensor : last) {
    inputs.push_back(tensor.contiguous());  // the package looks at no strides
  }
  std::vector<torch::Tensor> outputs = loader.boxed_run(std::move(inputs));
  if (!std::ranges::all_of(outputs, &torch::Tensor::defined)) {
    // LibTorch 2.11 goes on after an operator that failed in its proxy executor.
    throw Error(ExitCode::kTrainingFailed,
                fmt::format("--step {}: an operator of it failed, as LibTorch says above", file_));
  }
  return outputs;
}

torch::Tensor CompiledStep::operator()(const torch::Tensor& input, const torch::Tensor& target,
                                       double weight) {
  const int64_t samples = check_batch(input, target);
  if (samples == 0) {
    flat_.rebind_grads();
    flat_.grad.zero_();
    return torch::zeros_like(weight_);
  }
  if (samples < fewest_samples_) {
    throw Error(ExitCode::kTrainingFailed,
                fmt::format("--step {}: got a batch of {}, expected at least {} samples, as the "
                            "model's BatchNorm needs; another --global-batch may help",
                            file_, samples, fewest_samples_));
  }
  if (weight != last_weight_) {
    weight_.fill_(weight);
    last_weight_ = weight;
  }
  const std::vector<torch::Tensor> outputs = run(*step_, {input, target, weight_});
  auto output = outputs.begin();
  const torch::Tensor loss = *output++;
  for (size_t i = 0; i < flat_.parameters.size(); ++i) {
    tensors_[i].mutable_grad() = *output++;
  }
  flat_.rebind_grads();
  for (torch::Tensor& buffer : updated_) {
    buffer.copy_(*output++);
  }
  return loss;
}

Evaluation CompiledStep::evaluate(const Samples& samples) {
  const auto score = [this](const torch::Tensor& input, const torch::Tensor& target) {
    check_batch(input, target);
    const std::vector<torch::Tensor> outputs = run(*evaluate_, {input, target});
    return Scored{.loss = outputs[0], .output = outputs[1]};
  };
  return evaluate_samples(score, parameters(), samples);
}

}  // namespace ddp
