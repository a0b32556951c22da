#include <string_view>

#include "common/device/blas.hpp"

#include <dlfcn.h>

#include "common/device/hardware.hpp"

namespace ddp {
namespace {

/// @param library RTLD_DEFAULT: looks where LibTorch's own calls look, first in preloaded libraries
template <typename Function>
Function* find(const char* name, void* library = RTLD_DEFAULT) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

}  // namespace

Blas find_blas() {
  void* const libtorch = dlopen(DDP_LIBTORCH_CPU, RTLD_LAZY | RTLD_GLOBAL);
  if (libtorch == nullptr) {
    return {.warning = std::string("LibTorch cannot be opened: ") + dlerror()};
  }
  leave_openmp_place();
  const auto product = find<void()>("sgemm_");
  const bool is_own = product == find<void()>("sgemm_", libtorch);
  Dl_info source{};
  dladdr(reinterpret_cast<void*>(product), &source);
  Blas blas{.path = source.dli_fname == nullptr ? "" : source.dli_fname};
  blas.warning = is_own ? "" : blas.path + " computes the matrix products, not LibTorch's library";
  void* const library = dlopen(source.dli_fname, RTLD_LAZY);
  const auto mkl_version = find<void(char*, int)>("MKL_Get_Version_String");
  const auto mkl_branch = find<int()>("mkl_serv_cbwr_get_auto_branch");
  if (const auto config = find<const char*()>("openblas_get_config", library)) {
    blas.version = config();
    blas.code_path = find<const char*()>("openblas_get_corename", library)();
  } else if (mkl_version != nullptr && mkl_branch != nullptr && is_own) {
    // "Intel(R) oneAPI Math Kernel Library Version 2024.2-Product Build ..."
    char text[200] = "";
    mkl_version(text, sizeof(text));
    const std::string from = text + std::string_view(text).find("Version ") + 8;
    blas.version = "MKL " + from.substr(0, from.find_first_of("- "));
    // Constants of MKL_CBWR; 2 is for processors that are not Intel's.
    std::map<int, std::string> code_paths = {
        {2, "AVX2 at most"}, {10, "AVX2"}, {12, "AVX512"}, {14, "AVX512_E1"}};
    blas.code_path = code_paths[mkl_branch()];
    if (instruction_sets().find(" avx512vl") != std::string::npos &&
        !blas.code_path.starts_with("AVX512")) {
      blas.warning = "MKL leaves AVX-512 unused";
    }
  }
  blas.warning += blas.warning.empty() ? "" : ": see docs/guides/blas.md";
  return blas;
}

}  // namespace ddp
