# Runs the README's program on 2 ranks in an empty folder: it ends well and leaves the checkpoint that it says it writes.
file(REMOVE_RECURSE run)
execute_process(COMMAND "${MPIEXEC}" "${MPIEXEC_NUMPROC_FLAG}" 2 ./readme_program COMMAND_ERROR_IS_FATAL ANY)
file(GLOB_RECURSE saved run/*.safetensors)
if(NOT saved)
  message(FATAL_ERROR "the program wrote no checkpoint under ${CMAKE_CURRENT_BINARY_DIR}/run")
endif()

# Asked for a plan, the same program plans for machines that are not there, writes both files, trains nothing and ends well.
file(REMOVE_RECURSE run)
file(REMOVE autopar_plan.json autopar_profile.json)
set(cluster "${CMAKE_CURRENT_LIST_DIR}/../../../examples/clusters/a100-40x8.toml")
execute_process(COMMAND "${CMAKE_COMMAND}" -E env "AUTOPAR_PLAN_ONLY=${cluster}" "${MPIEXEC}" "${MPIEXEC_NUMPROC_FLAG}" 2
  ./readme_program ERROR_VARIABLE said COMMAND_ERROR_IS_FATAL ANY)
if(NOT EXISTS autopar_plan.json OR NOT EXISTS autopar_profile.json OR EXISTS run)
  message(FATAL_ERROR "AUTOPAR_PLAN_ONLY left no plan and profile in ${CMAKE_CURRENT_BINARY_DIR}, or trained")
endif()
if(NOT said MATCHES "planned \\(see 'autopar_plan.json'\\) and not run")
  message(FATAL_ERROR "AUTOPAR_PLAN_ONLY said: ${said}")
endif()
