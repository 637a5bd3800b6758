# Runs each program of the pages on 2 ranks, in a process of its own: a process makes one World.
file(READ programs.txt programs)
foreach(program IN LISTS programs)
  file(REMOVE_RECURSE run)
  execute_process(COMMAND "${MPIEXEC}" "${MPIEXEC_NUMPROC_FLAG}" 2 ./docs_programs ${program} COMMAND_ERROR_IS_FATAL ANY)
  file(GLOB_RECURSE saved run/*.safetensors)
  if(program MATCHES "^README" AND NOT saved)
    message(FATAL_ERROR "${program} wrote no checkpoint under ${CMAKE_CURRENT_BINARY_DIR}/run")
  endif()
endforeach()

# Asked for a plan, the README's program plans for machines that are not there, writes both files, trains nothing, ends well.
list(GET programs 0 program)
file(REMOVE_RECURSE run)
file(REMOVE autopar_plan.json autopar_profile.json)
set(cluster "${CMAKE_CURRENT_LIST_DIR}/../../../examples/clusters/a100-40x8.toml")
execute_process(COMMAND "${CMAKE_COMMAND}" -E env "AUTOPAR_PLAN_ONLY=${cluster}" "${MPIEXEC}" "${MPIEXEC_NUMPROC_FLAG}" 2
  ./docs_programs ${program} ERROR_VARIABLE said COMMAND_ERROR_IS_FATAL ANY)
if(NOT EXISTS autopar_plan.json OR NOT EXISTS autopar_profile.json OR EXISTS run)
  message(FATAL_ERROR "AUTOPAR_PLAN_ONLY left no plan and profile in ${CMAKE_CURRENT_BINARY_DIR}, or trained")
endif()
if(NOT said MATCHES "planned \\(see 'autopar_plan.json'\\) and not run")
  message(FATAL_ERROR "AUTOPAR_PLAN_ONLY said: ${said}")
endif()
