// common/device/blas.hpp - the library behind LibTorch's matrix products (BLAS).
#pragma once

#include <nlohmann/json.hpp>

namespace ddp {

struct Blas {
  std::string path = {};
  std::string version = {};  ///< of MKL or OpenBLAS, like code_path; other libraries do not tell
  std::string code_path = {};  ///< of the kernels: instructions in MKL, a processor in OpenBLAS
  std::string warning = {};  ///< a sentence without its full stop, or empty
};

inline void to_json(nlohmann::ordered_json& json, const Blas& blas) {
  json = {{"path", blas.path}, {"version", blas.version}};
  json.update({{"code_path", blas.code_path}, {"warning", blas.warning}});
}

/// Opens the build's LibTorch, and asks which library computes for a stage in this environment.
Blas find_blas();

}  // namespace ddp
