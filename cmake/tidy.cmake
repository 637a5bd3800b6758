# cmake [-DCLANG_TIDY=<program>] [-DWORK=<folder>] -P cmake/tidy.cmake [-- <header>...]: fails where clang-tidy finds fault with
# the headers of the layers core to plan: all of them, or those that are named, by their paths in the repository.
#
# One unit includes them all, since parsing what they share is what takes time. These layers need no library but C++'s.
cmake_minimum_required(VERSION 3.25)
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH root)
if(NOT CLANG_TIDY)
  set(CLANG_TIDY clang-tidy-14)
endif()
if(NOT WORK)
  set(WORK "${root}/build/tidy")
endif()

set(headers)
set(are_named FALSE)
math(EXPR last "${CMAKE_ARGC} - 1")
foreach(i RANGE ${last})
  if(are_named)
    list(APPEND headers "${CMAKE_ARGV${i}}")
  elseif(CMAKE_ARGV${i} STREQUAL "--")
    set(are_named TRUE)
  endif()
endforeach()
if(NOT headers)
  foreach(layer IN ITEMS core graph cost schedule plan)
    file(GLOB_RECURSE found RELATIVE "${root}" "${root}/include/autopar/${layer}/*.hpp")
    list(APPEND headers ${found})
  endforeach()
endif()
list(LENGTH headers count)

list(TRANSFORM headers REPLACE "^include/(.+)$" "#include <\\1>" OUTPUT_VARIABLE lines)
list(JOIN lines "\n" text)
file(WRITE "${WORK}/headers.cpp" "${text}\n")
execute_process(
  COMMAND "${CLANG_TIDY}" --quiet "--config-file=${root}/.clang-tidy" "${WORK}/headers.cpp"
    -- -std=c++20 "-I${root}/include"
  RESULT_VARIABLE result OUTPUT_VARIABLE faults ERROR_VARIABLE notes)
if(NOT result EQUAL 0)
  message(NOTICE "${faults}${notes}") # FATAL_ERROR would break its lines anew
  message(FATAL_ERROR "clang-tidy on ${WORK}/headers.cpp: ${result}")
endif()
message(STATUS "tidy: ${count} headers without a fault")
