# run(<result> <command>...): its output, from the folder WORK; its failure is the test's.
function(run result)
  execute_process(COMMAND ${ARGN} WORKING_DIRECTORY "${WORK}" OUTPUT_VARIABLE output ERROR_VARIABLE error RESULT_VARIABLE code)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "${ARGN} ended with ${code}\n${output}${error}")
  endif()
  set(${result} "${output}" PARENT_SCOPE)
endfunction()
