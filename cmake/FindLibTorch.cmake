# Finds LibTorch without its own CMake package, which stops when there is no CUDA toolkit even for a CPU program.
#   LIBTORCH (cache or environment)   folder with include/ and lib/, and no other folder is searched
#   CMAKE_PREFIX_PATH (as well)       folders as LIBTORCH, as Python's torch.utils.cmake_prefix_path, or with Python's site-packages
#   Torch_DIR                         LibTorch's CMake package
# The default is the wheel in .venv, else the system.
# Defines LibTorch_VERSION, LibTorch_LIB_DIR and the target LibTorch::cpu. LibTorch::cuda is defined too if libtorch_cuda.so and the headers of
# CUDA and NCCL are found, in the toolkit or in the NVIDIA wheels next to torch. nvcc is never needed: the suite has no kernels of its own.
# LibTorch_FMT_INCLUDE_DIR is empty if LibTorch does not ship fmt.

if(NOT LIBTORCH AND DEFINED ENV{LIBTORCH})
  set(LIBTORCH "$ENV{LIBTORCH}")
endif()

set(_libtorch_roots "${LIBTORCH}")
set(_libtorch_elsewhere NO_DEFAULT_PATH)
if(NOT LIBTORCH)
  set(_libtorch_elsewhere "")
  if(Torch_DIR)
    set(_libtorch_roots "${Torch_DIR}/../../..")
  endif()
  cmake_path(CONVERT "$ENV{CMAKE_PREFIX_PATH}" TO_CMAKE_PATH_LIST _prefixes)
  foreach(_prefix IN LISTS CMAKE_PREFIX_PATH _prefixes)
    file(GLOB _packages "${_prefix}/lib*/python3*/*-packages/torch")
    list(APPEND _libtorch_roots "${_prefix}" "${_prefix}/../.." ${_packages})
  endforeach()
  file(GLOB _wheel "${PROJECT_SOURCE_DIR}/.venv/lib/python3.*/site-packages/torch")
  list(APPEND _libtorch_roots ${_wheel})
endif()

find_path(LibTorch_INCLUDE_DIR torch/csrc/distributed/c10d/Backend.hpp HINTS ${_libtorch_roots} PATH_SUFFIXES include ${_libtorch_elsewhere} NO_CACHE)
# All else comes from the same LibTorch, and is not cached: an earlier LibTorch would win over the one asked for.
get_filename_component(_libtorch_root "${LibTorch_INCLUDE_DIR}/.." ABSOLUTE)
set(_lib lib lib64 "lib/${CMAKE_LIBRARY_ARCHITECTURE}")
find_library(LibTorch_CPU_LIBRARY torch_cpu HINTS "${_libtorch_root}" PATH_SUFFIXES ${_lib} NO_DEFAULT_PATH NO_CACHE)
find_library(LibTorch_C10_LIBRARY c10 HINTS "${_libtorch_root}" PATH_SUFFIXES ${_lib} NO_DEFAULT_PATH NO_CACHE)
# LibTorch's copy of fmt, which common/fmt.cpp compiles.
set(LibTorch_FMT_INCLUDE_DIR "")
if(EXISTS "${LibTorch_INCLUDE_DIR}/fmt/format-inl.h")
  set(LibTorch_FMT_INCLUDE_DIR "${LibTorch_INCLUDE_DIR}")
endif()

set(_version_header "${LibTorch_INCLUDE_DIR}/torch/headeronly/version.h")
if(EXISTS "${_version_header}")
  file(STRINGS "${_version_header}" _version REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
  string(REGEX MATCHALL "[0-9]+" _version "${_version}")
  list(JOIN _version "." LibTorch_VERSION)
elseif(LibTorch_INCLUDE_DIR)
  set(LibTorch_VERSION "without torch/headeronly/version.h")
endif()

include(FindPackageHandleStandardArgs)
list(JOIN _libtorch_roots ", " _libtorch_roots)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY LibTorch_INCLUDE_DIR
  VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE "Expected LibTorch in .venv (run tools/setup.sh bench once), in -DLIBTORCH=/path or in -DCMAKE_PREFIX_PATH=/path, got \"${_libtorch_roots}\".")

if(LibTorch_FOUND AND NOT TARGET LibTorch::cpu)
  add_library(LibTorch::cpu INTERFACE IMPORTED GLOBAL)
  target_include_directories(LibTorch::cpu SYSTEM INTERFACE "${LibTorch_INCLUDE_DIR}" "${LibTorch_INCLUDE_DIR}/torch/csrc/api/include")
  # Without these c10d's headers are empty.
  target_compile_definitions(LibTorch::cpu INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
  target_link_libraries(LibTorch::cpu INTERFACE "${LibTorch_CPU_LIBRARY}" "${LibTorch_C10_LIBRARY}")
  target_compile_features(LibTorch::cpu INTERFACE cxx_std_20)
  # LibTorch's own libraries may need libraries which only the machines that run programs have, such as CUDA's. DT_RPATH goes before
  # LD_LIBRARY_PATH, where another LibTorch may be, of another version.
  target_link_options(LibTorch::cpu INTERFACE -Wl,--allow-shlib-undefined -Wl,--disable-new-dtags)

  get_filename_component(LibTorch_LIB_DIR "${LibTorch_CPU_LIBRARY}" DIRECTORY)
  find_library(LibTorch_CUDA_LIBRARY torch_cuda HINTS "${LibTorch_LIB_DIR}" NO_DEFAULT_PATH NO_CACHE)
  find_library(LibTorch_C10_CUDA_LIBRARY c10_cuda HINTS "${LibTorch_LIB_DIR}" NO_DEFAULT_PATH NO_CACHE)
  file(GLOB _nvidia_wheels "${LibTorch_LIB_DIR}/../../nvidia/*/include")
  # The runtime's headers include headers of two other packages, the compiler's and CCCL's.
  foreach(_header IN ITEMS cuda_runtime_api.h crt/host_config.h nv/target nccl.h)
    unset(_folder)
    find_path(_folder ${_header} HINTS ${_nvidia_wheels} ENV CUDA_HOME PATH_SUFFIXES include include/cccl PATHS /usr/local/cuda NO_CACHE)
    list(APPEND _cuda_include_dirs "${_folder}")
    if(NOT _folder)
      message(STATUS "CUDA headers: no ${_header} beside LibTorch or in the toolkit")
      set(_cuda_headers_missing TRUE)
    endif()
  endforeach()

  if(LibTorch_CUDA_LIBRARY AND LibTorch_C10_CUDA_LIBRARY AND NOT _cuda_headers_missing)
    add_library(LibTorch::cuda INTERFACE IMPORTED)
    target_include_directories(LibTorch::cuda SYSTEM INTERFACE ${_cuda_include_dirs})
    target_compile_definitions(LibTorch::cuda INTERFACE USE_C10D_NCCL)
    # --no-as-needed: static initializers register CUDA with LibTorch, and no symbol refers to them.
    target_link_libraries(LibTorch::cuda INTERFACE LibTorch::cpu
      -Wl,--no-as-needed "${LibTorch_CUDA_LIBRARY}" "${LibTorch_C10_CUDA_LIBRARY}" -Wl,--as-needed)
  endif()
endif()
