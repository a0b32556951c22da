#include "common/backends/mpi/mpi_reduction.hpp"

#include <array>
#include <map>

#include "common/backends/shm/shm_kernels.hpp"
#include "common/base/exit_codes.hpp"

namespace ddp::mpi {
namespace {

template <DType kDType, ReduceOp kOp>
void combine(void* theirs, void* ours, int* count, MPI_Datatype*) {
  const std::array<const void*, 2> inputs = {theirs, ours};
  shm::kernels().reduce({kDType, kOp, static_cast<size_t>(*count), inputs, {&ours, 1}});
}

template <DType kDType, ReduceOp kOp>
MPI_Op create() {
  MPI_Op created = MPI_OP_NULL;
  MPI_Op_create(combine<kDType, kOp>, /*commute=*/1, &created);
  return created;
}

/// Made at the first use and never freed: MPI does that in the end.
template <DType kDType>
MPI_Op own(ReduceOp op) {
  static const std::map<ReduceOp, MPI_Op> ops = {
      {ReduceOp::kSum, create<kDType, ReduceOp::kSum>()},
      {ReduceOp::kProduct, create<kDType, ReduceOp::kProduct>()},
      {ReduceOp::kMin, create<kDType, ReduceOp::kMin>()},
      {ReduceOp::kMax, create<kDType, ReduceOp::kMax>()}};
  return ops.at(op);
}

MPI_Op builtin(ReduceOp op) {
  static const std::map<ReduceOp, MPI_Op> ops = {{ReduceOp::kSum, MPI_SUM},
                                                 {ReduceOp::kProduct, MPI_PROD},
                                                 {ReduceOp::kMin, MPI_MIN},
                                                 {ReduceOp::kMax, MPI_MAX}};
  return ops.at(op);
}

bool is_order(ReduceOp op) {
  return op == ReduceOp::kMin || op == ReduceOp::kMax;
}

}  // namespace

Reduction find_reduction(DType dtype, ReduceOp op) {
  switch (dtype) {
    case DType::kFloat32:
      return {MPI_FLOAT, is_order(op) ? own<DType::kFloat32>(op) : builtin(op)};
    case DType::kFloat64:
      return {MPI_DOUBLE, is_order(op) ? own<DType::kFloat64>(op) : builtin(op)};
    case DType::kFloat16:
      return {MPI_UINT16_T, own<DType::kFloat16>(op)};
    case DType::kBFloat16:
      return {MPI_UINT16_T, own<DType::kBFloat16>(op)};
    case DType::kInt32:
      return {MPI_INT32_T, builtin(op)};
    case DType::kInt64:
      return {MPI_INT64_T, builtin(op)};
    case DType::kInt8:
      return {MPI_INT8_T, builtin(op)};
    case DType::kUint8:
      return {MPI_UINT8_T, builtin(op)};
    case DType::kBool:
      return {MPI_C_BOOL, op == ReduceOp::kSum || op == ReduceOp::kMax ? MPI_LOR : MPI_LAND};
  }
  throw Error(ExitCode::kTrainingFailed, "--backend mpi: got an unknown type");
}

}  // namespace ddp::mpi
