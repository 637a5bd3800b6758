# What happens when a rank throws, dies, stalls or leaves: one test a scenario, judged by failure.sh.
add_executable(mpi_failure_ranks "${CMAKE_CURRENT_LIST_DIR}/failure_ranks.cpp")
target_link_libraries(mpi_failure_ranks PRIVATE autopar::runtime autopar_warnings)
foreach(scenario IN ITEMS none late slow planned alike alike-uncaught throws tells leaves stalls dies exits dies-busy unwatched-dies
                          unwatched-dies-busy wrong-size broken-launcher no-launcher)
  foreach(ranks IN ITEMS 2 4)
    set(test mpi.failure.${scenario}.${ranks})
    add_test(NAME ${test} COMMAND "${CMAKE_CURRENT_LIST_DIR}/failure.sh" $<TARGET_FILE:mpi_failure_ranks>
      "${MPIEXEC_EXECUTABLE}" "${MPIEXEC_NUMPROC_FLAG}" ${scenario} ${ranks})
    # They wait more than they compute: none needs a core for each rank.
    set_tests_properties(${test} PROPERTIES LABELS mpi TIMEOUT 90
      ENVIRONMENT "${AUTOPAR_TEST_ENVIRONMENT}")
  endforeach()
endforeach()
