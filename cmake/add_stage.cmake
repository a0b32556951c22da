# add_stage(<program> <main.cpp>): one tutorial program in build/bin.
function(add_stage program source)
  add_executable(${program} ${source})
  target_link_libraries(${program} PRIVATE ddp_common ddp_warnings)
  target_precompile_headers(${program} REUSE_FROM ddp_torch_header)
endfunction()
