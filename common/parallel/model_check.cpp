#include "common/parallel/model_check.hpp"

#include <sstream>
#include <unordered_map>

#include "common/base/exit_codes.hpp"
#include "common/model/flat_parameters.hpp"
#include "common/parallel/default_group.hpp"

namespace ddp {
namespace {

/// Parameters and buffers, line by line: names, sizes and types.
std::string model_text(const torch::nn::Module& module, const std::vector<std::string>& ignored) {
  std::ostringstream text;
  std::unordered_map<const torch::TensorImpl*, std::string> names;
  for (const auto& [name, parameter] : kept(module.named_parameters(), ignored)) {
    text << name << " " << parameter.sizes() << " " << parameter.dtype()
         << (parameter.requires_grad() ? "" : " frozen");
    if (parameter.layout() == torch::kStrided && !parameter.is_contiguous()) {
      text << " strides " << parameter.strides();
    }
    const auto [first, is_new] = names.emplace(parameter.unsafeGetTensorImpl(), name);
    text << (is_new ? "" : " tied to " + first->second) << "\n";
  }
  for (const auto& [name, buffer] : kept(module.named_buffers(), ignored)) {
    text << name << " " << buffer.sizes() << " " << buffer.dtype() << " buffer\n";
  }
  return text.str();
}

/// @throws UsageError unless the group can send the tensor and, if it learns, average its gradients
void expect_sendable(const std::string& name, const torch::Tensor& tensor,
                     const torch::Device& expected) {
  const torch::Device device = tensor.device();
  if (device.type() != expected.type() ||
      (expected.has_index() && device.index() != expected.index())) {
    refuse(
        "{} is on {}, expected the process group's {}: move the model there first, "
        "then wrap it",
        name, device.str(), expected.str());
  }
  if (tensor.layout() != torch::kStrided || tensor.is_quantized() ||
      (tensor.requires_grad() && tensor.element_size() < 2)) {
    refuse("{} is a {}, expected a dense tensor, of numbers of 16 bits or more if it is trained",
           name, tensor.toString());
  }
}

}  // namespace

NamedTensors kept(const torch::OrderedDict<std::string, torch::Tensor>& items,
                  const std::vector<std::string>& ignored) {
  NamedTensors tensors = items.pairs();
  std::erase_if(tensors, [&ignored](const auto& item) {
    return std::ranges::find(ignored, item.first) != ignored.end();
  });
  return tensors;
}

std::shared_ptr<void> take_parameters(const torch::nn::Module& module,
                                      const std::vector<std::string>& ignored) {
  static std::mutex mutex;
  static std::unordered_map<const torch::TensorImpl*, std::weak_ptr<void>> owners;
  const std::lock_guard<std::mutex> lock(mutex);
  std::erase_if(owners, [](const auto& entry) { return entry.second.expired(); });
  const auto own = std::make_shared<char>();
  for (const auto& [name, parameter] : kept(module.named_parameters(), ignored)) {
    std::weak_ptr<void>& owner = owners[parameter.unsafeGetTensorImpl()];
    if (const auto other = owner.lock(); other != nullptr && other != own) {
      refuse(
          "parameter {} belongs to another DistributedDataParallel, expected one at a time: wrap "
          "the whole model, once",
          name);
    }
    owner = own;
  }
  return own;
}

std::vector<torch::Tensor> same_parameters(const torch::nn::Module& module,
                                           const ProcessGroup& process_group,
                                           const std::vector<std::string>& ignored,
                                           const std::string& settings) {
  std::vector<torch::Tensor> parameters = trainable_parameters(module);
  const auto named = module.named_parameters();
  for (const std::string& name : ignored) {
    const torch::Tensor* const parameter = named.find(name);
    if (parameter != nullptr) {
      std::erase_if(parameters, [&](const auto& other) { return other.is_same(*parameter); });
    } else if (!module.named_buffers().contains(name)) {
      refuse("ignored: got {}, expected a name of named_parameters() or named_buffers()", name);
    }
  }
  process_group.board().same("model", settings + model_text(module, ignored));
  for (const auto& [name, parameter] : kept(named, ignored)) {
    expect_sendable("parameter " + name, parameter, process_group.device());
  }
  for (const auto& [name, buffer] : kept(module.named_buffers(), ignored)) {
    expect_sendable("buffer " + name, buffer, process_group.device());
  }
  if (parameters.empty()) {
    refuse("got a module none of whose parameters requires a gradient, expected one");
  }
  return parameters;
}

void expect_same_weights(const torch::nn::Module& module, const CallSite& site) {
  const ProcessGroup& process_group = default_process_group();
  if (!process_group.all_reduces()) {
    return;
  }
  std::string hash = parameter_hash(module);
  const torch::Tensor own =
      torch::from_blob(hash.data(), {static_cast<int64_t>(hash.size())}, torch::kUInt8);
  const torch::Tensor of_ranks =
      process_group.all_gather(own.to(process_group.device()), site.in("expect_same_weights"))
          .to(torch::kCPU);
  const auto digest = [&of_ranks](int rank) {
    return std::string(static_cast<const char*>(of_ranks[rank].const_data_ptr()), 16);
  };
  std::string others;
  for (int rank = 1; rank < process_group.world_size(); ++rank) {
    if (!of_ranks[rank].equal(of_ranks[0])) {
      others +=
          fmt::format("{}rank {} has digest {}", others.empty() ? "" : ", ", rank, digest(rank));
    }
  }
  if (!others.empty()) {
    throw Error(ExitCode::kTrainingFailed,
                fmt::format("the weights differ: {}, expected rank 0's {}", others, digest(0)));
  }
}

}  // namespace ddp
