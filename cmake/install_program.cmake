# install_program(<program> <what it does, in a few words>): into bin/, with a manual page made of its --help, by the target `man`.
include(GNUInstallDirs)
find_program(HELP2MAN_PROGRAM help2man)
set(no_man_pages "")
if(NOT HELP2MAN_PROGRAM)
  set(no_man_pages "found no help2man")
elseif(CMAKE_CROSSCOMPILING OR CMAKE_CXX_FLAGS MATCHES "-fsanitize")
  set(no_man_pages "the programs of this build are not run while it is built")
endif()
if(no_man_pages)
  message(STATUS "Manual pages: not made, ${no_man_pages}")
endif()
add_custom_target(man ALL)

function(install_program program purpose)
  get_target_property(libraries ${program} LINK_LIBRARIES)
  if(libraries MATCHES "ddp_(common|parallel|micro)")
    # Named, as for the modules in common/: CMake leaves out what lies in the checkout.
    get_filename_component(libtorch_lib_dir "${LibTorch_CPU_LIBRARY}" DIRECTORY)
    set_target_properties(${program} PROPERTIES INSTALL_RPATH "${libtorch_lib_dir}" BUILD_WITH_INSTALL_RPATH ON)
  endif()
  install(TARGETS ${program} RUNTIME COMPONENT programs)
  if(no_man_pages)
    return()
  endif()
  set(page "${PROJECT_BINARY_DIR}/man/${program}.1")
  set(filter "${PROJECT_SOURCE_DIR}/cmake/help_for_man.awk")
  file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/man")
  # help2man hands its options to a shell.
  add_custom_command(OUTPUT "${page}"
    COMMAND ${CMAKE_COMMAND} -E env LC_ALL=C.UTF-8 "${HELP2MAN_PROGRAM}" --no-info "--name=${purpose}" "--help-option=--help | awk -f '${filter}'"
            "--source=ddp_cpp ${PROJECT_VERSION}" "--output=${page}" ./${program}
    WORKING_DIRECTORY "$<TARGET_FILE_DIR:${program}>" DEPENDS ${program} "${filter}" COMMENT "Manual page of ${program}" VERBATIM)
  add_custom_target(man_${program} DEPENDS "${page}")
  add_dependencies(man man_${program})
  install(FILES "${page}" DESTINATION "${CMAKE_INSTALL_MANDIR}/man1" COMPONENT man)
endfunction()
