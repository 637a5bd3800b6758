# Runs imagenet (PROGRAM) on a folder that jpeg_folder writes, with two files that are no JPEGs: losses on 4 ranks by three
# plans, and of a run that was left within an epoch, are those of one process; broken files are named once; weights come back
# from their file; what is missing is named.
file(REMOVE_RECURSE "${WORK}")
file(MAKE_DIRECTORY "${WORK}")

include("${CMAKE_CURRENT_LIST_DIR}/run.cmake")

function(require_once output)
  foreach(pattern IN LISTS ARGN)
    string(REGEX MATCHALL "${pattern}" found "${output}")
    list(LENGTH found count)
    if(NOT count EQUAL 1)
      message(FATAL_ERROR "'${pattern}' is there ${count} times in\n${output}")
    endif()
  endforeach()
endfunction()

cmake_path(GET PROGRAM PARENT_PATH programs)
run(output "${programs}/jpeg_folder" images --train 120 --val 26 --width 40 --height 36)
file(WRITE "${WORK}/images/train/bag/0000.jpg" "")
file(WRITE "${WORK}/images/train/coat/zzzz.jpg" "a text")

set(four "${MPIEXEC}" "${MPIEXEC_NUMPROC_FLAG}" 4)
set(net --model resnet18 --width 0.0625 --image-size 32 --data images)
set(steps ${net} --batch 12 --fp64 --batch-norm exact --log-every 1 --workers 2 --label-smoothing 0.1 --lr 0.05)
set(curve ${steps} --steps 20)
run(one "${PROGRAM}" ${curve} --out one --export weights.safetensors)
require_once("${one}" "bag/0000.jpg: the file is empty" "coat/zzzz.jpg: the file is no JPEG" "2 images could not be read")
run(chosen ${four} "${PROGRAM}" ${curve} --out chosen)
require_once("${chosen}" "bag/0000.jpg: the file is empty" "coat/zzzz.jpg: the file is no JPEG" "2 images could not be read")
run(staged ${four} "${PROGRAM}" ${curve} --out staged --stages 2 --replicas 2)
require_once("${staged}" "plan: 2 stages x 2 replicas")
run(sharded ${four} "${PROGRAM}" ${curve} --out sharded --tensor-parallel 2)
require_once("${sharded}" "plan: 1 stage x 2 replicas x 2 shards")
# Left in the second epoch by two ranks, gone on with by one.
run(output "${MPIEXEC}" "${MPIEXEC_NUMPROC_FLAG}" 2 "${PROGRAM}" ${steps} --steps 13 --out resumed)
run(output "${PROGRAM}" --out resumed --resume --steps 20)

find_package(Python3 REQUIRED COMPONENTS Interpreter)
file(WRITE "${WORK}/compare.py" "
import json
def read(run):
    lines = [json.loads(line) for line in open(run + '/metrics.jsonl')]
    return [l['loss'] for l in lines if 'loss' in l], [l for l in lines if 'top1' in l][-1]
losses, validated = read('one')
assert len(losses) == 20, losses
for run in ('chosen', 'staged', 'sharded', 'resumed'):
    other, other_validated = read(run)
    worst = max(abs(a - b) for a, b in zip(losses, other))
    assert len(other) == 20 and worst <= 1e-9, (run, worst, other)
    assert abs(other_validated['validation_loss'] - validated['validation_loss']) <= 1e-9, (run, other_validated)
    assert [other_validated[k] for k in ('top1', 'top5')] == [validated[k] for k in ('top1', 'top5')], run
print('%.6f' % validated['validation_loss'])
")
run(expected "${Python3_EXECUTABLE}" compare.py)
string(STRIP "${expected}" expected)

run(output "${MPIEXEC}" "${MPIEXEC_NUMPROC_FLAG}" 2 "${PROGRAM}" ${net} --batch 12 --fp64 --validate --load-weights weights.safetensors)
string(REGEX MATCH "validation_loss [0-9.]+" found "${output}")
string(SUBSTRING "${expected}" 0 6 expected)
if(NOT found MATCHES "validation_loss ${expected}")
  message(FATAL_ERROR "weights from a file give ${found}, trained they gave ${expected}")
endif()

function(require_refusal text)
  execute_process(COMMAND "${PROGRAM}" ${ARGN} WORKING_DIRECTORY "${WORK}"
    ERROR_VARIABLE error OUTPUT_VARIABLE output RESULT_VARIABLE code)
  if(code EQUAL 0 OR NOT "${error}${output}" MATCHES "${text}")
    message(FATAL_ERROR "${ARGN} ended with ${code}, without '${text}':\n${output}${error}")
  endif()
endfunction()
require_refusal("nowhere/train: No such file or directory" --data nowhere)
require_refusal("--data is missing" --model resnet18)
require_refusal("there is no network 'resnet17'" --model resnet17 --data images)
require_refusal("weights.safetensors: '[a-z0-9_.]+' is f64" --model resnet18 --data images --batch 12 --load-weights weights.safetensors)
file(REMOVE_RECURSE "${WORK}/images/val")
require_refusal("there is no images/val to validate on; --no-validation does without" ${net} --batch 12)
