# Runs each program of the pages on 2 ranks, in a process of its own: a process makes one World.
file(READ programs.txt programs)
foreach(program IN LISTS programs)
  execute_process(COMMAND "${MPIEXEC}" "${MPIEXEC_NUMPROC_FLAG}" 2 ./docs_programs ${program} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
