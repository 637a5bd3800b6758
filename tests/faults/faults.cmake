# Jobs with a faulty rank, and a table of what became of them: some in every run, many at night.
add_executable(fault_ranks "${CMAKE_CURRENT_LIST_DIR}/ranks.cpp")
target_link_libraries(fault_ranks PRIVATE autopar::runtime autopar::io autopar_warnings)
# autopar_add_fault_test(<name> <label> <tries> <ranks>...)
function(autopar_add_fault_test name label tries)
  add_test(NAME ${name} COMMAND "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/faults.sh" $<TARGET_FILE:fault_ranks>
    "${MPIEXEC_EXECUTABLE}" "${MPIEXEC_NUMPROC_FLAG}" ${tries} ${ARGN})
  set_tests_properties(${name} PROPERTIES LABELS ${label} TIMEOUT 5400
    ENVIRONMENT "${AUTOPAR_TEST_ENVIRONMENT}")
endfunction()
autopar_add_fault_test(faults.jobs faults 1 3)
autopar_add_fault_test(nightly.faults nightly 12 2 3 4)

# The same ranks under `autopar run`.
if(TARGET autopar_tool AND AUTOPAR_PYTHON)
  # autopar_add_supervised_test(<name> <label> <length>)
  function(autopar_add_supervised_test name label length)
    add_test(NAME ${name} COMMAND "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/supervised.sh" $<TARGET_FILE:autopar_tool>
      $<TARGET_FILE:fault_ranks> "${MPIEXEC_EXECUTABLE}" "${AUTOPAR_PYTHON}" ${length})
    set_tests_properties(${name} PROPERTIES LABELS ${label} TIMEOUT 1800 PROCESSORS 2
      ENVIRONMENT "${AUTOPAR_TEST_ENVIRONMENT}")
  endfunction()
  autopar_add_supervised_test(faults.supervised faults short)
  autopar_add_supervised_test(nightly.supervised nightly long)
endif()
