# install_program(<program>...): into bin/, where each finds the LibTorch of this build.
include(GNUInstallDirs)

function(install_program)
  foreach(program IN LISTS ARGN)
    get_target_property(libraries ${program} LINK_LIBRARIES)
    if(libraries MATCHES "ddp_(common|parallel|micro)")
      # Named, as for the modules in common/: CMake leaves out what lies in the checkout.
      get_filename_component(libtorch_lib_dir "${LibTorch_CPU_LIBRARY}" DIRECTORY)
      set_target_properties(${program} PROPERTIES INSTALL_RPATH "${libtorch_lib_dir}" BUILD_WITH_INSTALL_RPATH ON)
    endif()
    install(TARGETS ${program} RUNTIME COMPONENT programs)
  endforeach()
endfunction()
