# Finds LibTorch without its own CMake package, which stops when there is no CUDA toolkit even for a CPU program.
#   LIBTORCH (cache or environment)   folder with include/ and lib/; default: the wheel in .venv
# Defines LibTorch_VERSION, LibTorch_CUDA_VERSION_MAJOR (0 without CUDA) and the target LibTorch::cpu. LibTorch::cuda is defined too if
# libtorch_cuda.so and the headers of CUDA and NCCL are found, in the toolkit or in the NVIDIA wheels next to torch. nvcc is never needed:
# the suite has no kernels of its own.

if(NOT LIBTORCH AND DEFINED ENV{LIBTORCH})
  set(LIBTORCH "$ENV{LIBTORCH}")
endif()
set(LIBTORCH "${LIBTORCH}" CACHE PATH "LibTorch to use instead of the wheel in .venv")

set(_libtorch_root "${LIBTORCH}")
if(NOT LIBTORCH)
  file(GLOB _libtorch_root "${PROJECT_SOURCE_DIR}/.venv/lib/python3.*/site-packages/torch")
endif()

find_path(LibTorch_INCLUDE_DIR torch/csrc/distributed/c10d/Backend.hpp HINTS ${_libtorch_root} PATH_SUFFIXES include NO_DEFAULT_PATH)
# LibTorch's copy of fmt, which common/fmt.cpp compiles.
find_path(LibTorch_FMT_INCLUDE_DIR fmt/format-inl.h HINTS ${_libtorch_root} PATH_SUFFIXES include NO_DEFAULT_PATH)
find_library(LibTorch_CPU_LIBRARY torch_cpu HINTS ${_libtorch_root} PATH_SUFFIXES lib NO_DEFAULT_PATH)
find_library(LibTorch_C10_LIBRARY c10 HINTS ${_libtorch_root} PATH_SUFFIXES lib NO_DEFAULT_PATH)

set(_version_header "${LibTorch_INCLUDE_DIR}/torch/headeronly/version.h")
if(EXISTS "${_version_header}")
  file(STRINGS "${_version_header}" _version REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
  string(REGEX MATCHALL "[0-9]+" _version "${_version}")
  list(JOIN _version "." LibTorch_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY LibTorch_INCLUDE_DIR LibTorch_FMT_INCLUDE_DIR
  VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE "Expected LibTorch in .venv (run tools/setup.sh bench once) or in -DLIBTORCH=/path, got \"${_libtorch_root}\".")

if(LibTorch_FOUND AND NOT TARGET LibTorch::cpu)
  add_library(LibTorch::cpu INTERFACE IMPORTED)
  target_include_directories(LibTorch::cpu SYSTEM INTERFACE "${LibTorch_INCLUDE_DIR}" "${LibTorch_INCLUDE_DIR}/torch/csrc/api/include")
  # Without these c10d's headers are empty.
  target_compile_definitions(LibTorch::cpu INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
  target_link_libraries(LibTorch::cpu INTERFACE "${LibTorch_CPU_LIBRARY}" "${LibTorch_C10_LIBRARY}")
  target_compile_features(LibTorch::cpu INTERFACE cxx_std_20)
  # DT_RPATH goes before LD_LIBRARY_PATH, where another LibTorch may be, of another version.
  target_link_options(LibTorch::cpu INTERFACE -Wl,--disable-new-dtags)

  get_filename_component(_libtorch_lib "${LibTorch_CPU_LIBRARY}" DIRECTORY)
  get_filename_component(_site_packages "${_libtorch_lib}/../.." ABSOLUTE)
  find_library(LibTorch_CUDA_LIBRARY torch_cuda HINTS "${_libtorch_lib}" NO_DEFAULT_PATH)
  find_library(LibTorch_C10_CUDA_LIBRARY c10_cuda HINTS "${_libtorch_lib}" NO_DEFAULT_PATH)
  file(GLOB _nvidia_wheels "${_site_packages}/nvidia/*/include")
  # The runtime's headers include headers of two other packages, the compiler's and CCCL's.
  set(_parts CUDA CUDA_CRT CUDA_CCCL NCCL)
  set(_headers cuda_runtime_api.h crt/host_config.h nv/target nccl.h)
  foreach(_part _header IN ZIP_LISTS _parts _headers)
    find_path(LibTorch_${_part}_INCLUDE_DIR ${_header}
              HINTS ${_nvidia_wheels} ENV CUDA_HOME PATH_SUFFIXES include include/cccl PATHS /usr/local/cuda)
    mark_as_advanced(LibTorch_${_part}_INCLUDE_DIR)
    list(APPEND _cuda_include_dirs "${LibTorch_${_part}_INCLUDE_DIR}")
    if(NOT LibTorch_${_part}_INCLUDE_DIR)
      message(STATUS "CUDA headers: no ${_header} beside LibTorch or in the toolkit")
      set(_cuda_headers_missing TRUE)
    endif()
  endforeach()

  set(LibTorch_CUDA_VERSION_MAJOR 0)
  if(LibTorch_CUDA_LIBRARY AND LibTorch_C10_CUDA_LIBRARY AND NOT _cuda_headers_missing)
    # Wheels and archives of LibTorch say their CUDA version. The headers of a toolkit may have another version.
    file(STRINGS "${LibTorch_CUDA_INCLUDE_DIR}/cuda_runtime_api.h" _cuda REGEX "define CUDART_VERSION +[0-9]+")
    string(REGEX MATCH "[0-9]+$" _cuda "${_cuda}")
    math(EXPR LibTorch_CUDA_VERSION_MAJOR "${_cuda} / 1000")
    if(EXISTS "${LibTorch_INCLUDE_DIR}/../version.py")
      file(STRINGS "${LibTorch_INCLUDE_DIR}/../version.py" _cuda REGEX "^cuda.*'[0-9]+\\.")
    elseif(EXISTS "${LibTorch_INCLUDE_DIR}/../build-version")
      file(STRINGS "${LibTorch_INCLUDE_DIR}/../build-version" _cuda REGEX "\\+cu[0-9][0-9]")
    endif()
    if("${_cuda}" MATCHES "'([0-9]+)\\.|\\+cu([0-9][0-9])")
      set(LibTorch_CUDA_VERSION_MAJOR ${CMAKE_MATCH_1}${CMAKE_MATCH_2})
    endif()
    add_library(LibTorch::cuda INTERFACE IMPORTED)
    target_include_directories(LibTorch::cuda SYSTEM INTERFACE ${_cuda_include_dirs})
    target_compile_definitions(LibTorch::cuda INTERFACE USE_C10D_NCCL)
    # --no-as-needed: static initializers register CUDA with LibTorch, and no symbol refers to them.
    target_link_libraries(LibTorch::cuda INTERFACE LibTorch::cpu
      -Wl,--no-as-needed "${LibTorch_CUDA_LIBRARY}" "${LibTorch_C10_CUDA_LIBRARY}" -Wl,--as-needed)
  endif()
endif()
mark_as_advanced(LibTorch_INCLUDE_DIR LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY LibTorch_CUDA_LIBRARY LibTorch_C10_CUDA_LIBRARY)
