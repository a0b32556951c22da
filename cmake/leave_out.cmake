# leave_out(<test> <label> <reason> [MISSING]): stands where a test cannot run on this machine, so that it is not left out in silence.
# ctest counts it as skipped, and tests/skipped.sh says why. MISSING: the reason is that something is not there which tools/setup.sh
# installs; then it fails, since nobody would look at a skip that must never be.
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
