# Two hosts on this machine, which support/two_hosts.sh makes of namespaces: skipped, not passed, where it cannot.
# autopar_add_two_hosts_test(<name> <command>... [ENVIRONMENT <variable>...])
function(autopar_add_two_hosts_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "ENVIRONMENT")
  add_test(NAME mpi.two_hosts.${name} COMMAND ${arg_UNPARSED_ARGUMENTS})
  set_tests_properties(mpi.two_hosts.${name} PROPERTIES LABELS mpi TIMEOUT 120 PROCESSORS 4 SKIP_RETURN_CODE 77
    ENVIRONMENT "${AUTOPAR_TEST_ENVIRONMENT};${arg_ENVIRONMENT}")
endfunction()

add_library(finalize_marks MODULE "${CMAKE_CURRENT_SOURCE_DIR}/support/finalize_marks.cpp")
target_link_libraries(finalize_marks PRIVATE ${CMAKE_DL_LIBS} autopar_warnings)
set(marks $<TARGET_FILE:finalize_marks>)
set(two_hosts "${PROJECT_SOURCE_DIR}/tests/support/two_hosts.sh")
if(TARGET mpi_torch)
  set(hosts 0 4 "All tests passed" ${marks} "${MPIEXEC_EXECUTABLE}"
    $<TARGET_FILE:mpi_torch> --filenames-as-tags "[#hosts_test]~[.]")
  autopar_add_two_hosts_test(names "${two_hosts}" one two ${hosts} ENVIRONMENT TEST_HOSTS=2 TEST_RANKS=4)
  autopar_add_two_hosts_test(one_name "${two_hosts}" node node ${hosts} ENVIRONMENT TEST_HOSTS=2 TEST_RANKS=4)
endif()
if(TARGET autopar::training)
  add_executable(two_hosts_snapshots "${CMAKE_CURRENT_LIST_DIR}/two_hosts_snapshots.cpp")
  target_link_libraries(two_hosts_snapshots PRIVATE autopar::training autopar::autopar autopar_warnings)
  autopar_add_two_hosts_test(snapshots "${two_hosts}" one two 0 4 "what one host lost, the other had" ${marks}
    "${MPIEXEC_EXECUTABLE}" $<TARGET_FILE:two_hosts_snapshots> "${CMAKE_CURRENT_BINARY_DIR}/two_hosts_runs")
endif()
if(TARGET gpt)
  autopar_add_two_hosts_test(training "${CMAKE_CURRENT_LIST_DIR}/two_hosts_training.sh" $<TARGET_FILE:gpt>
    "${MPIEXEC_EXECUTABLE}" "${two_hosts}" ${marks} "${CMAKE_CURRENT_BINARY_DIR}/two_hosts")
endif()
