# A long training that is killed again and again: a short one in every run, 10,000 steps at night.
if(TARGET autopar_tool AND TARGET autopar::training)
  add_executable(soak "${CMAKE_CURRENT_LIST_DIR}/soak.cpp")
  target_link_libraries(soak PRIVATE autopar::training autopar::autopar autopar_warnings)
  # autopar_add_soak_test(<name> <label> <steps> <save every> <kill every> [<snapshot every>])
  function(autopar_add_soak_test name label)
    add_test(NAME ${name} COMMAND "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/soak.sh" $<TARGET_FILE:autopar_tool>
      "${MPIEXEC_EXECUTABLE}" $<TARGET_FILE:soak> "${CMAKE_CURRENT_BINARY_DIR}/${name}" ${ARGN})
    set_tests_properties(${name} PROPERTIES LABELS ${label} TIMEOUT 1800 PROCESSORS 2
      ENVIRONMENT "${AUTOPAR_TEST_ENVIRONMENT}")
  endfunction()
  autopar_add_soak_test(faults.soak faults 300 20 60)
  autopar_add_soak_test(faults.soak_snapshots faults 300 150 57 10)
  autopar_add_soak_test(nightly.soak nightly 10000 100 500)
  autopar_add_soak_test(nightly.soak_snapshots nightly 10000 1000 493 10)
endif()
