# Traces of jobs whose ranks are killed, and of ranks without a common disk.
if(TARGET autopar::autopar AND AUTOPAR_PYTHON)
  add_executable(trace_ranks "${CMAKE_CURRENT_LIST_DIR}/trace.cpp")
  target_link_libraries(trace_ranks PRIVATE autopar::autopar autopar_warnings)
  add_test(NAME faults.trace COMMAND "${CMAKE_CURRENT_LIST_DIR}/trace.sh" $<TARGET_FILE:trace_ranks>
    "${MPIEXEC_EXECUTABLE}" "${MPIEXEC_NUMPROC_FLAG}" "${AUTOPAR_PYTHON}")
  set_tests_properties(faults.trace PROPERTIES LABELS faults TIMEOUT 300 PROCESSORS 2
    ENVIRONMENT "${AUTOPAR_TEST_ENVIRONMENT}")
endif()
