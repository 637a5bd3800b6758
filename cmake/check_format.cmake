# cmake -DROOT=<repository> -DCLANG_FORMAT=<program> -P check_format.cmake: fails, naming each place, where a file is not as
# .clang-format has it. `clang-format-14 -i FILE` mends it; other versions format otherwise.
cmake_minimum_required(VERSION 3.25)
set(files)
foreach(folder IN ITEMS include src tests benchmarks examples)
  file(GLOB_RECURSE found "${ROOT}/${folder}/*.hpp" "${ROOT}/${folder}/*.cpp")
  list(APPEND files ${found})
endforeach()
if(NOT files)
  message(FATAL_ERROR "no sources under ${ROOT}")
endif()
execute_process(COMMAND "${CLANG_FORMAT}" --dry-run -Werror --ferror-limit=3 ${files}
  WORKING_DIRECTORY "${ROOT}" RESULT_VARIABLE result ERROR_VARIABLE places)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "not formatted; run clang-format-14 -i on these:\n${places}")
endif()
list(LENGTH files count)
message(STATUS "format: ${count} files are as .clang-format has it")
