# Runs tutorial (PROGRAM) for real on 2 ranks and on one without a launcher, and plans for machines that are not there.
file(MAKE_DIRECTORY "${WORK}")

include("${CMAKE_CURRENT_LIST_DIR}/run.cmake")

function(require output)
  foreach(pattern IN LISTS ARGN)
    if(NOT output MATCHES "${pattern}")
      message(FATAL_ERROR "'${pattern}' is missing in\n${output}")
    endif()
  endforeach()
endfunction()

set(two_ranks "${MPIEXEC}" "${MPIEXEC_NUMPROC_FLAG}" 2 "${PROGRAM}")
set(a100 --plan-only --cluster "${SOURCE}/examples/clusters/a100-40x8.toml")

run(output ${two_ranks} 64 512 10)
require("${output}" "#Parameters=2626560" "Finished on rank 0" "Finished on rank 1")
run(output ${two_ranks} 8 32 6 --stages 2 --steps 3)
require("${output}" "Finished on rank 0" "Finished on rank 1")
run(output "${PROGRAM}" 8 32 4)
require("${output}" "Finished on rank 0")

run(output "${PROGRAM}" 64 512 10 ${a100})
require("${output}" "plan: 1 stage x 8 replicas" "runner-up: [0-9]+ stages?[^\n]* slower:")

# Plain SGD, then Adam, whose state is held in shards.
run(output "${PROGRAM}" 64 5000 100 ${a100} --optimizer-state-factor 0)
require("${output}" "#Parameters=2500500000" "plan: [0-9]+ stages?" "optimizer state 0 x parameters")
run(output "${PROGRAM}" 64 5000 100 ${a100} --optimizer-state-factor 2)
require("${output}" "#Parameters=2500500000" "plan: 1 stage x 4 replicas x 2 shards, 1 micro-batch .ZeRO 3."
  "optimizer state 2 x parameters" "runner-up: 1 stage x 8 replicas")
