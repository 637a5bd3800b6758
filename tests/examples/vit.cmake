# Runs vit (PROGRAM): in the same world, a run that Ctrl-C ended after a step and that was started again ends bit-equal to one
# that was left alone; it learns, and the best weights stay. The program is short.
file(REMOVE_RECURSE "${WORK}")
file(MAKE_DIRECTORY "${WORK}")

include("${CMAKE_CURRENT_LIST_DIR}/run.cmake")

file(READ "${SOURCE}/examples/vit.cpp" text)
string(REGEX MATCHALL "\n" ends "${text}")
list(LENGTH ends count)
if(count GREATER 90)
  message(FATAL_ERROR "examples/vit.cpp has ${count} lines, more than 90")
endif()

set(ranks "${MPIEXEC}" "${MPIEXEC_NUMPROC_FLAG}" 2)
list(JOIN ranks " " rank_words)
file(WRITE "${WORK}/interrupted.sh" "
${rank_words} sh -c 'echo $$ >pid.new; mv pid.new pid; exec ${PROGRAM} parts 30' &
for attempt in $(seq 1200); do grep -q '^10,' parts/metrics.csv 2>/dev/null && break; sleep 0.05; done
kill -INT $(cat pid)
wait $!
")
execute_process(COMMAND sh interrupted.sh WORKING_DIRECTORY "${WORK}" TIMEOUT 120 OUTPUT_VARIABLE output
  ERROR_VARIABLE error RESULT_VARIABLE code)
if(NOT code EQUAL 130 OR NOT output MATCHES "interrupted after step [12][0-9], which is saved")
  message(FATAL_ERROR "an interrupted run ended with ${code}, not 130:\n${output}${error}")
endif()
run(output ${ranks} "${PROGRAM}" parts 30)
if(NOT output MATCHES "going on after step")
  message(FATAL_ERROR "it did not go on:\n${output}")
endif()
run(output ${ranks} "${PROGRAM}" whole 30)

foreach(step IN ITEMS 1 10 20 30) # each figure that is due is a line, as nobody looks at a terminal
  if(NOT output MATCHES "step ${step}  loss [^\n]*\n")
    message(FATAL_ERROR "step ${step} is not shown:\n${output}")
  endif()
endforeach()

find_package(Python3 REQUIRED COMPONENTS Interpreter)
file(WRITE "${WORK}/compare.py" "
import csv, json
def figures(run):
    rows = csv.DictReader(open(run + '/metrics.csv'))
    return {(int(row['step']), row['name']): row['value'] for row in rows if row['name'] in ('loss', 'accuracy')}
whole, parts = figures('whole'), figures('parts')
assert [key for key in whole if key[1] == 'loss'] == [(step, 'loss') for step in (1, 10, 20, 30)], whole
assert {key: parts[key] for key in whole} == whole, (whole, parts)
assert float(whole[30, 'loss']) < float(whole[1, 'loss']), whole
for run in 'whole', 'parts':
    best = json.load(open(run + '/best/best.json'))
    assert (best['metric'], best['step'], best['value']) == ('accuracy', 30, float(whole[30, 'accuracy'])), best
")
run(output "${Python3_EXECUTABLE}" compare.py)

# Ranks write to pipes of mpiexec: where its own output is a terminal, the bar is drawn in place; where that is a file, it is not.
file(WRITE "${WORK}/terminal.py" "
import os, pty, sys
seen = []
def read(fd):
    seen.append(os.read(fd, 65536))
    return seen[-1]
command = sys.argv[1:]
assert pty.spawn(command, read) == 0
assert b'\\r\\x1b[K[' in b''.join(seen), seen
seen.clear()
assert pty.spawn(['sh', '-c', ' '.join(command) + ' > file'], read) == 0
assert b'\\r' not in open('file', 'rb').read()
")
run(output "${Python3_EXECUTABLE}" terminal.py ${ranks} "${PROGRAM}" whole 31)
foreach(file IN ITEMS model-0000-g1 model-0001-g1 optimizer-0000-g1 optimizer-0001-g1)
  file(SHA256 "${WORK}/whole/step-00000030/${file}.safetensors" whole)
  file(SHA256 "${WORK}/parts/step-00000030/${file}.safetensors" parts)
  if(NOT whole STREQUAL parts)
    message(FATAL_ERROR "${file} of the run that was interrupted differs")
  endif()
endforeach()
