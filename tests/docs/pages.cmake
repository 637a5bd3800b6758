# cmake -DROOT=<repository> [-DPYTHON=<python3>] -P pages.cmake: fails where a link of README.md or docs/ leads nowhere, where README.md
# is longer than a newcomer reads, and where the chart is not that of its tables.
cmake_minimum_required(VERSION 3.25)

set(wrong "")
file(GLOB pages "${ROOT}/docs/*.md")
foreach(page IN ITEMS "${ROOT}/README.md" LISTS pages)
  cmake_path(GET page PARENT_PATH folder)
  file(READ "${page}" text)
  string(REGEX REPLACE "```[^`]*```" "" text "${text}")
  string(REPLACE "](" "<link>" text "${text}") # lists take brackets for their own
  string(REGEX MATCHALL "<link>[^)# \n]+" links "${text}")
  foreach(link IN LISTS links)
    string(REPLACE "<link>" "" link "${link}")
    if(NOT link MATCHES "^https?:" AND NOT EXISTS "${folder}/${link}")
      string(APPEND wrong "\n  ${page}: ${link} is not there")
    endif()
  endforeach()
endforeach()

file(READ "${ROOT}/README.md" text)
string(REGEX REPLACE "[^\n]" "" text "${text}")
string(LENGTH "${text}" length)
if(length GREATER 150)
  string(APPEND wrong "\n  README.md has ${length} lines; what not every newcomer needs goes to docs/")
endif()

if(PYTHON)
  execute_process(COMMAND "${PYTHON}" "${ROOT}/docs/images/ratios.py" "${ROOT}/benchmarks/README.md"
    OUTPUT_VARIABLE drawn COMMAND_ERROR_IS_FATAL ANY)
  file(READ "${ROOT}/docs/images/ratios.svg" chart)
  if(NOT drawn STREQUAL chart)
    string(APPEND wrong "\n  docs/images/ratios.svg is not what ratios.py makes of benchmarks/README.md: run it again")
  endif()
endif()
if(wrong)
  message(FATAL_ERROR "${wrong}")
endif()
