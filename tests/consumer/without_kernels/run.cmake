# cmake -DSOURCE=<repository> -DBUILD=<build tree> -DWORK=<folder> -DPROGRAM=<program> -DOPTIONS=<a|b> -P run.cmake: builds
# the libraries with AUTOPAR_KERNELS=OFF, and fails unless the program prints the same text with these and with BUILD's.
# Then BUILD's test_torch runs with these libraries, and with -DNIGHTLY=ON the files of numerics.
cmake_minimum_required(VERSION 3.25)
string(REPLACE "|" ";" OPTIONS "${OPTIONS}")

execute_process(COMMAND ${CMAKE_COMMAND} -S "${SOURCE}" -B "${WORK}" ${OPTIONS} -DAUTOPAR_KERNELS=OFF
  -DAUTOPAR_BUILD_TESTS=OFF -DAUTOPAR_BUILD_EXAMPLES=OFF -DAUTOPAR_BUILD_TOOLS=OFF OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build "${WORK}" --target autopar_torch OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
set(texts)
foreach(libraries IN ITEMS "${BUILD}" "${WORK}")
  execute_process(COMMAND ${CMAKE_COMMAND} -E env "LD_LIBRARY_PATH=${libraries}" OMP_NUM_THREADS=1 "${PROGRAM}"
    OUTPUT_VARIABLE text ERROR_VARIABLE log RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "with the libraries of ${libraries} the program ends with ${status}:\n${log}")
  endif()
  list(APPEND texts "${text}")
endforeach()
list(GET texts 0 with)
list(GET texts 1 without)
if(NOT with STREQUAL without OR with STREQUAL "")
  message(FATAL_ERROR "losses and parameters differ, with kernels:\n${with}\nwithout:\n${without}")
endif()
message(STATUS "equal with and without kernels:\n${with}")

function(passes program filter)
  execute_process(COMMAND ${CMAKE_COMMAND} -E env "LD_LIBRARY_PATH=${WORK}" OMP_NUM_THREADS=1
    "XDG_CACHE_HOME=${WORK}/cache" "${BUILD}/tests/${program}" --filenames-as-tags "${filter}"
    OUTPUT_VARIABLE text ERROR_VARIABLE log RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "without kernels, ${program} ${filter} ends with ${status}:\n${text}\n${log}")
  endif()
  string(REGEX MATCH "All tests passed[^\n]*" passed "${text}")
  message(STATUS "${program} ${filter}: ${passed}")
endfunction()

passes(test_torch "~[.]~[nightly]~[#products_test]") # which calls kernels/gemm
if(NIGHTLY)
  file(GLOB files RELATIVE "${SOURCE}/tests/numerics" "${SOURCE}/tests/numerics/*_test.cpp")
  foreach(file IN LISTS files)
    cmake_path(GET file STEM name)
    passes(numerics "[#${name}]~[.]~[nightly]")
  endforeach()
endif()
