#include "common/fused/fused_mlp.hpp"

namespace ddp {

std::unique_ptr<FusedMlp> make_fused_mlp(const Mlp& model, int64_t batch_size, int threads,
                                         const AllocateFunction& allocate_gradients) {
  const FlatParameters flat = flatten_parameters(*model, allocate_gradients);
  const size_t parameters = model->parameters().size();
  TORCH_CHECK(flat.parameters.size() == parameters && flat.data.scalar_type() == torch::kFloat32,
              "Expected a float32 model all of whose ", parameters, " parameters are trained, got ",
              flat.parameters.size(), " trained ones, ", flat.data.scalar_type());
  return flat.data.is_cpu() ? fused::make_cpu_mlp(flat, batch_size, threads)
                            : fused::make_aten_mlp(flat, batch_size);
}

}  // namespace ddp
