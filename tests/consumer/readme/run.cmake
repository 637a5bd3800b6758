# Runs the README's program on 2 ranks in an empty folder: it ends well and leaves the checkpoint that it says it writes.
file(REMOVE_RECURSE run)
execute_process(COMMAND "${MPIEXEC}" "${MPIEXEC_NUMPROC_FLAG}" 2 ./readme_program COMMAND_ERROR_IS_FATAL ANY)
file(GLOB_RECURSE saved run/*.safetensors)
if(NOT saved)
  message(FATAL_ERROR "the program wrote no checkpoint under ${CMAKE_CURRENT_BINARY_DIR}/run")
endif()
