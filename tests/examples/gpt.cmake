# Runs gpt (PROGRAM): its loss curve under several plans is that of one process, and so is that of a run that is
# interrupted and goes on; it samples from a checkpoint; what is wrong is named on all ranks.
file(REMOVE_RECURSE "${WORK}")
file(MAKE_DIRECTORY "${WORK}")

include("${CMAKE_CURRENT_LIST_DIR}/run.cmake")

# fails(<pattern> <command>...): it must end, not with 0, and say so.
function(fails pattern)
  execute_process(COMMAND ${ARGN} WORKING_DIRECTORY "${WORK}" TIMEOUT 60 ERROR_VARIABLE error OUTPUT_VARIABLE output
    RESULT_VARIABLE code)
  if(code EQUAL 0 OR NOT "${output}${error}" MATCHES "${pattern}")
    message(FATAL_ERROR "${ARGN} ended with ${code}, not with '${pattern}':\n${output}${error}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

set(ranks "${MPIEXEC}" "${MPIEXEC_NUMPROC_FLAG}")
set(size --layers 2 --width 16 --heads 2 --length 16)
set(curve ${size} --fp64 --batch 8 --steps 20 --lr 1e-2 --warmup 5 --held-out 6 --validate-every 10 --log-every 1
  --data /usr/share/common-licenses/GPL-3)

run(output "${PROGRAM}" ${curve} --out one)
run(output "${PROGRAM}" --data /usr/share/common-licenses/GPL-3 --write-tokens tokens)
run(output ${ranks} 4 "${PROGRAM}" ${curve} --data nowhere --tokens tokens --out four)
run(output ${ranks} 4 "${PROGRAM}" ${curve} --stages 2 --replicas 2,2 --accumulate 2 --out stages)
if(NOT output MATCHES "plan: [2-9] stages")
  message(FATAL_ERROR "two stages were not used:\n${output}")
endif()
run(output ${ranks} 4 "${PROGRAM}" ${curve} --tensor-parallel 2 --stages 1 --replicas 2 --out shards)
if(NOT output MATCHES "plan: 1 stage x 2 replicas x 2 shards")
  message(FATAL_ERROR "tensor shards were not used:\n${output}")
endif()

# With dropout, rotary positions, a tied head and a vocabulary of its own, in single precision: one of two ranks gets
# Ctrl-C, both save after the same step, and the run goes on bit for bit as one that was left alone.
set(bits ${size} --batch 6 --warmup 4 --decay constant --held-out 6 --validate-every 7 --log-every 1
  --rotary --tied --dropout 0.1 --vocabulary 300 --data /usr/share/common-licenses/GPL-3)
list(JOIN bits " " bit_words)
list(JOIN ranks " " rank_words)
file(WRITE "${WORK}/interrupted.sh" "
${rank_words} 2 sh -c 'echo $$ >pid.new; mv pid.new pid; exec ${PROGRAM} ${bit_words} --steps 30000 --out parts' &
for attempt in $(seq 600); do [ -s parts/metrics.jsonl ] || sleep 0.05; done
kill -INT $(cat pid)
wait $!
")
execute_process(COMMAND sh interrupted.sh WORKING_DIRECTORY "${WORK}" TIMEOUT 60 OUTPUT_VARIABLE output
  ERROR_VARIABLE error RESULT_VARIABLE code)
if(NOT code EQUAL 130 OR NOT output MATCHES "interrupted after step ([0-9]+), which is saved")
  message(FATAL_ERROR "an interrupted run ended with ${code}, not 130:\n${output}${error}")
endif()
math(EXPR steps "${CMAKE_MATCH_1} + 8")
run(output ${ranks} 2 "${PROGRAM}" --out parts --resume --steps ${steps})
run(output ${ranks} 2 "${PROGRAM}" ${bits} --out whole --steps ${steps})

find_package(Python3 REQUIRED COMPONENTS Interpreter)
file(WRITE "${WORK}/compare.py" "
import json
def losses(run):
    lines = [json.loads(line) for line in open(run + '/metrics.jsonl')]
    return [(line['step'], key, line[key]) for line in lines for key in ('loss', 'validation_loss') if key in line]
one = losses('one')
assert len(one) == 20 + 2, one
assert one[-1][2] < one[0][2] - 0.5, one
for run in 'four', 'stages', 'shards':
    other = losses(run)
    assert [entry[:2] for entry in one] == [entry[:2] for entry in other], run
    worst = max(abs(a[2] - b[2]) for a, b in zip(one, other))
    assert worst <= 1e-9, (run, worst)
assert len(losses('whole')) > ${steps}
assert losses('parts') == losses('whole')
")
run(output "${Python3_EXECUTABLE}" compare.py)

set(sample --sample "You may " --sample-length 8 --temperature 0)
run(alone "${PROGRAM}" --out parts ${sample})
run(two ${ranks} 2 "${PROGRAM}" --out parts ${sample})
if(NOT alone MATCHES "^You may ." OR NOT alone STREQUAL two)
  message(FATAL_ERROR "samples of one and of two ranks: '${alone}', '${two}'")
endif()

set(two "${MPIEXEC}" "${MPIEXEC_NUMPROC_FLAG}" 2 "${PROGRAM}")
file(WRITE "${WORK}/short" "A few words.")
fails("nowhere: there is no such file" ${two} --data nowhere)
fails("12 tokens, less than two windows of 128" ${two} --data short)
fails("there is no complete checkpoint in nowhere" ${two} --out nowhere ${sample})
fails("sizes .300, 16., the model has" ${two} --resume --out parts --steps 1000 --width 32)
fails("parts has an earlier run" "${PROGRAM}" ${bits} --out parts)
if(output MATCHES "plan: ")
  message(FATAL_ERROR "it planned before it looked at --out:\n${output}")
endif()
fails("^--ouut is no option. did you mean --out." ${two} --ouut run)
fails("cannot be cut into --heads 3" "${PROGRAM}" --heads 3)
fails("--vocabulary: a vocabulary has from 257" "${PROGRAM}" --vocabulary 100)
fails("--size: huge not in" "${PROGRAM}" --size huge)
