# LibTorch's headers cost seconds in every source; ccache makes the second build free.
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Tried on a source that no cache has, because a ccache that cannot write its cache, for example in HOME, fails later.
  string(RANDOM LENGTH 16 name)
  file(WRITE "${PROJECT_BINARY_DIR}/CMakeFiles/try_ccache.cpp" "int a${name};\n")
  execute_process(COMMAND "${CCACHE_PROGRAM}" "${CMAKE_CXX_COMPILER}" -c try_ccache.cpp -o try_ccache.o TIMEOUT 60
                  WORKING_DIRECTORY "${PROJECT_BINARY_DIR}/CMakeFiles" RESULT_VARIABLE ccache_failed OUTPUT_QUIET ERROR_VARIABLE ccache_said)
  if(ccache_failed STREQUAL "0")
    # ccache keeps precompiled headers only if it ignores their time stamps, and serves builds in other folders, such as pip's, only if paths are
    # relative to the folder.
    set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env "CCACHE_BASEDIR=${CMAKE_BINARY_DIR}"
        CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime "${CCACHE_PROGRAM}")
    add_compile_options($<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
  else()
    message(STATUS "ccache: not used, got ${ccache_failed} ${ccache_said}")
  endif()
endif()

# Warnings are a target that our own code links, not global, so they do not apply to system headers.
add_library(ddp_warnings INTERFACE)
# Errors are off for users, because other compilers may have other warnings; on in continuous integration.
option(DDP_WARNINGS_AS_ERRORS "Treat warnings as errors" $ENV{CI})
if(PROJECT_IS_TOP_LEVEL)
  target_compile_options(ddp_warnings INTERFACE
    -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wold-style-cast -Wnon-virtual-dtor -Woverloaded-virtual
    $<$<BOOL:${DDP_WARNINGS_AS_ERRORS}>:-Werror>)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # A class may have members of types from its own source file, which the first forbids in unity builds. g++ 12 warns by the second about
  # overlapping copies in any `"literal" + std::string` (GCC bug 105651).
  target_compile_options(ddp_warnings INTERFACE -Wno-subobject-linkage $<$<VERSION_LESS:${CMAKE_CXX_COMPILER_VERSION},13>:-Wno-restrict>)
endif()

function(add_stage program source)
  add_executable(${program} ${source})
  target_link_libraries(${program} PRIVATE ddp_common ddp_warnings)
  target_precompile_headers(${program} REUSE_FROM ddp_torch_header)
endfunction()
