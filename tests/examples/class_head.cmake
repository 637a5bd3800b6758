# Runs class_head (PROGRAM): every head trains as the dense one in one process does; real classes are learnt; the plot is XML.
file(REMOVE_RECURSE "${WORK}")
file(MAKE_DIRECTORY "${WORK}")

include("${CMAKE_CURRENT_LIST_DIR}/run.cmake")

set(small --classes 37 --width 32 --steps 30)
run(one "${PROGRAM}" ${small} --head dense)
run(two "${MPIEXEC}" "${MPIEXEC_NUMPROC_FLAG}" 2 "${PROGRAM}" ${small} --head dense,row,column,chunked)
run(three "${MPIEXEC}" "${MPIEXEC_NUMPROC_FLAG}" 3 "${PROGRAM}" ${small} --head column)
string(REGEX MATCHALL "[ ]37  [^\n]+" lines "${one}${two}${three}")
list(JOIN lines "\n" lines)
file(WRITE "${WORK}/table.txt" "${lines}\n")
run(output "${MPIEXEC}" "${MPIEXEC_NUMPROC_FLAG}" 2 "${PROGRAM}" --sweep 100,2000 --steps 3 --width 32 --plot plot.svg)

find_package(Python3 REQUIRED COMPONENTS Interpreter)
file(WRITE "${WORK}/compare.py" "
import xml.dom.minidom
losses = [float(line.split()[-1]) for line in open('table.txt')]
assert len(losses) == 6, losses
assert max(losses) - min(losses) <= 2e-4, losses
image = xml.dom.minidom.parse('plot.svg')
assert len(image.getElementsByTagName('polyline')) == 2 * 4
")
run(output "${Python3_EXECUTABLE}" compare.py)

run(output "${MPIEXEC}" "${MPIEXEC_NUMPROC_FLAG}" 2 "${PROGRAM}" --head row --steps 300)
string(REGEX MATCH "steps: ([0-9.]+) %" line "${output}")
message(STATUS "${line}")
if(CMAKE_MATCH_1 LESS 75)
  message(FATAL_ERROR "after 300 steps less than 75 % are right:\n${output}")
endif()

execute_process(COMMAND "${PROGRAM}" --head diagonal ERROR_VARIABLE error OUTPUT_VARIABLE output RESULT_VARIABLE code)
if(code EQUAL 0 OR NOT "${error}${output}" MATCHES "diagonal")
  message(FATAL_ERROR "a head that there is not is not refused by name: ${code}\n${output}${error}")
endif()
