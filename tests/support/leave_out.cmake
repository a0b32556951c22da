# leave_out(<test> <label> <reason> [MISSING]): stands for a test that cannot run on this machine. ctest counts it as skipped, and
# tests/run.sh says why. MISSING: the test lacks something that tools/setup.sh installs. Then it fails, because nobody would notice
# the skip.
function(leave_out name label reason)
  if("MISSING" IN_LIST ARGN)
    add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -E echo "cannot run: ${name}: ${reason}")
    set_tests_properties(${name} PROPERTIES FAIL_REGULAR_EXPRESSION "^cannot run: ")
  else()
    add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -E echo "skipped: ${name}: ${reason}")
    set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "^skipped: ")
  endif()
  set_tests_properties(${name} PROPERTIES LABELS ${label})
endfunction()
