# Runs fashion_mnist (PROGRAM): the MLP's loss curve on 2 stages x 2 replicas is the one-process curve; the CNN learns; a
# missing data set is named.
file(REMOVE_RECURSE "${WORK}")
file(MAKE_DIRECTORY "${WORK}")

include("${CMAKE_CURRENT_LIST_DIR}/run.cmake")

set(curve --model mlp --fp64 --steps 100)
run(output "${PROGRAM}" ${curve} --loss-file one.txt)
run(output "${MPIEXEC}" "${MPIEXEC_NUMPROC_FLAG}" 4 "${PROGRAM}" ${curve} --stages 2 --replicas 2,2 --loss-file four.txt)
if(NOT output MATCHES "2 stages")
  message(FATAL_ERROR "the forced plan was not used:\n${output}")
endif()
find_package(Python3 REQUIRED COMPONENTS Interpreter)
file(WRITE "${WORK}/compare.py" "
one, four = ([float(line) for line in open(name)] for name in ('one.txt', 'four.txt'))
assert len(one) == len(four) == 100, (len(one), len(four))
worst = max(abs(a - b) for a, b in zip(one, four))
assert worst <= 1e-9, worst
assert one[-1] < one[0]
")
run(output "${Python3_EXECUTABLE}" compare.py)

# As the quickstart runs it, but for one epoch of its two.
run(output "${MPIEXEC}" "${MPIEXEC_NUMPROC_FLAG}" 4 "${PROGRAM}" --epochs 1)
string(REGEX MATCHALL "test accuracy [0-9.]+" lines "${output}")
list(LENGTH lines epochs)
string(REGEX MATCH "[0-9.]+$" accuracy "${lines}")
message(STATUS "${lines}")
if(NOT epochs EQUAL 1 OR accuracy LESS 83)
  message(FATAL_ERROR "the test accuracy after ${epochs} epochs is ${accuracy} %, less than 83 % after one:\n${output}")
endif()
foreach(pattern IN ITEMS "plan: [1-4] stage" "samples/s" "#\\] 100\\.0 %")
  if(NOT output MATCHES "${pattern}")
    message(FATAL_ERROR "'${pattern}' is missing in\n${output}")
  endif()
endforeach()

execute_process(COMMAND "${PROGRAM}" --data "${WORK}/nowhere" ERROR_VARIABLE error RESULT_VARIABLE code)
if(code EQUAL 0 OR NOT error MATCHES "nowhere/train-images.*dataset-fashion-mnist")
  message(FATAL_ERROR "a missing data set ended with ${code}:\n${error}")
endif()

# A file that cannot be written is found before the training, on all ranks; a full disk at its end.
foreach(ranks IN ITEMS 1 2)
  execute_process(COMMAND "${MPIEXEC}" "${MPIEXEC_NUMPROC_FLAG}" ${ranks} "${PROGRAM}" --loss-file "${WORK}/none/losses.txt"
    OUTPUT_VARIABLE output ERROR_VARIABLE error RESULT_VARIABLE code)
  if(NOT code EQUAL 2 OR NOT error MATCHES "losses.txt: --loss-file cannot be written: No such file" OR output MATCHES "plan:")
    message(FATAL_ERROR "a loss file in no folder ended with ${code}:\n${output}${error}")
  endif()
endforeach()
execute_process(COMMAND "${PROGRAM}" --model mlp --steps 1 --loss-file /dev/full
  OUTPUT_QUIET ERROR_VARIABLE error RESULT_VARIABLE code)
if(NOT code EQUAL 2 OR NOT error MATCHES "/dev/full: the losses could not all be written")
  message(FATAL_ERROR "losses on a full disk ended with ${code}:\n${error}")
endif()
