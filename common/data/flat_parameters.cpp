#include "common/data/flat_parameters.hpp"

#include <cstring>
#include <unordered_set>

#include "common/base/hash.hpp"

namespace ddp {
namespace {

torch::Tensor on_storage(const torch::Tensor& flat, int64_t offset, at::IntArrayRef sizes,
                         at::IntArrayRef strides = {}) {
  return torch::empty({0}, flat.options())
      .set_(flat.storage(), flat.storage_offset() + offset, sizes, strides);
}

}  // namespace

torch::Tensor view_like(const torch::Tensor& flat, int64_t offset, const torch::Tensor& like) {
  return like.is_non_overlapping_and_dense()
             ? on_storage(flat, offset, like.sizes(), like.strides())
             : on_storage(flat, offset, like.sizes());
}

int64_t padded_elements(const torch::Tensor& tensor) {
  constexpr int64_t kLineBytes = 64;
  const int64_t line = kLineBytes / static_cast<int64_t>(tensor.element_size());
  return (tensor.numel() + line - 1) / line * line;
}

void move_gradient(const torch::Tensor& parameter, const torch::Tensor& place,
                   const torch::Tensor& divisor) {
  torch::Tensor& current = parameter.mutable_grad();
  torch::Tensor target = place;
  if (current.defined() && current.is_sparse()) {
    current = current.to_dense();
  }
  if (!current.defined()) {
    target.zero_();
  } else if (divisor.defined()) {
    at::div_out(target, current.detach(), divisor);
  } else if (current.is_same(place)) {
    return;
  } else if (current.is_cpu() && current.strides() == place.strides() &&
             current.dtype() == place.dtype() && current.sizes() == place.sizes() &&
             !current.is_neg() && !current.is_conj() && !current._is_zerotensor()) {
    // memcpy, because an operator takes ten times as long for a small gradient.
    std::memmove(target.mutable_data_ptr(), current.const_data_ptr(), target.nbytes());
  } else {
    target.copy_(current.detach());
  }
  current = place;
}

void FlatParameters::rebind_grads() const {
  for (size_t i = 0; i < parameters.size(); ++i) {
    move_gradient(parameters[i], grad_views[i]);
  }
}

std::vector<torch::Tensor> trainable_parameters(const torch::nn::Module& module) {
  std::vector<torch::Tensor> trainable;
  std::unordered_set<const torch::TensorImpl*> seen;
  for (const torch::Tensor& parameter : module.parameters()) {
    if (parameter.requires_grad() && seen.insert(parameter.unsafeGetTensorImpl()).second) {
      trainable.push_back(parameter);
    }
  }
  return trainable;
}

FlatParameters flatten_parameters(const torch::nn::Module& module,
                                  const AllocateFunction& allocate_gradients) {
  const torch::NoGradGuard no_grad;
  FlatParameters flat;
  flat.parameters = trainable_parameters(module);
  int64_t total = 0;
  for (const torch::Tensor& parameter : flat.parameters) {
    const torch::Tensor& front = flat.parameters.front();
    TORCH_CHECK(
        parameter.options().type_equal(front.options()) && parameter.device() == front.device(),
        "Expected all trainable parameters to be ", front.toString(), " on ", front.device(),
        ", got ", parameter.toString(), " on ", parameter.device());
    flat.offsets.push_back(total);
    total += padded_elements(parameter);
  }
  TORCH_CHECK(total > 0, "Expected a module with parameters that require a gradient, got none");

  const torch::Tensor& first = flat.parameters.front();
  const auto laid_out = [&](const auto& tensor_of) {
    for (size_t i = 0; i < flat.parameters.size(); ++i) {
      const torch::Tensor tensor = tensor_of(flat.parameters[i]);
      if (!tensor.defined() || !tensor_of(first).defined() ||
          !tensor.storage().is_alias_of(tensor_of(first).storage()) ||
          tensor.storage_offset() != flat.offsets[i] || !tensor.is_non_overlapping_and_dense() ||
          tensor.strides() != flat.parameters[i].strides()) {
        return false;
      }
    }
    return tensor_of(first).storage().nbytes() == static_cast<size_t>(total * first.element_size());
  };

  const torch::TensorOptions plain = first.options().requires_grad(false);
  if (laid_out([](const torch::Tensor& parameter) { return parameter.detach(); })) {
    flat.data = on_storage(first.detach(), 0, {total});
  } else {
    flat.data = torch::zeros({total}, plain);
    for (size_t i = 0; i < flat.parameters.size(); ++i) {
      const torch::Tensor view = view_like(flat.data, flat.offsets[i], flat.parameters[i]);
      view.copy_(flat.parameters[i]);
      flat.parameters[i].set_data(view);
    }
  }
  if (laid_out([](const torch::Tensor& parameter) { return parameter.grad(); })) {
    flat.grad = on_storage(first.grad(), 0, {total});
  } else {
    flat.grad = allocate_gradients ? allocate_gradients(total, first.scalar_type())
                                   : torch::empty({total}, plain);
    flat.grad.zero_();
  }
  for (size_t i = 0; i < flat.parameters.size(); ++i) {
    flat.grad_views.push_back(view_like(flat.grad, flat.offsets[i], flat.parameters[i]));
  }
  flat.rebind_grads();
  return flat;
}

std::string parameter_hash(const torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  Hash hash;
  for (const torch::Tensor& parameter : module.parameters()) {
    const torch::Tensor host =
        parameter.detach().to(torch::kCPU).resolve_conj().resolve_neg().contiguous();
    hash.update(host.const_data_ptr(), host.nbytes());
  }
  return hash.hex();
}

}  // namespace ddp
