#include "common/model/flat_parameters.hpp"

#include <cstring>
#include <unordered_set>

#include "common/base/hash.hpp"
#include "common/data/samples.hpp"

namespace ddp {

torch::Tensor view_like(const torch::Tensor& flat, int64_t offset, const torch::Tensor& like) {
  const bool dense = like.is_non_overlapping_and_dense();
  const at::IntArrayRef strides = dense ? like.strides() : at::IntArrayRef();  // none: contiguous
  return torch::empty({0}, flat.options())
      .set_(flat.storage(), flat.storage_offset() + offset, like.sizes(), strides);
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
  TORCH_CHECK(!flat.parameters.empty(),
              "Expected a module with parameters that require a gradient, got none");
  const torch::Tensor& first = flat.parameters.front();
  int64_t total = 0;
  for (const torch::Tensor& parameter : flat.parameters) {
    TORCH_CHECK(
        parameter.options().type_equal(first.options()) && parameter.device() == first.device(),
        "Expected all trainable parameters to be ", first.toString(), " on ", first.device(),
        ", got ", parameter.toString(), " on ", parameter.device());
    total += padded_elements(parameter);
  }
  const torch::TensorOptions plain = first.options().requires_grad(false);
  flat.data = torch::zeros({total}, plain);
  flat.grad = allocate_gradients ? allocate_gradients(total, first.scalar_type())
                                 : torch::empty({total}, plain);
  flat.grad.zero_();  // the gaps too
  int64_t offset = 0;
  for (const torch::Tensor& parameter : flat.parameters) {
    flat.grad_views.push_back(view_like(flat.grad, offset, parameter));
    const torch::Tensor view = view_like(flat.data, offset, parameter);
    view.copy_(parameter);
    parameter.set_data(view);
    offset += padded_elements(parameter);
  }
  flat.rebind_grads();
  return flat;
}

std::string parameter_hash(const torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  Hash hash;
  for (const torch::Tensor& parameter : module.parameters()) {
    const torch::Tensor host = as_rows(parameter.detach().to(torch::kCPU));
    hash.update(host.const_data_ptr(), host.nbytes());
  }
  return hash.hex();
}

}  // namespace ddp
