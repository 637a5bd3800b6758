# cmake -DSOURCE=<repository> -DBUILD=<build tree> -DWITHOUT=<folder> -DPROGRAM=<program> [-DOPTIONS=<a|b>] -P run.cmake:
# fails unless the program prints the same text with the libraries of BUILD and with the one without kernels in WITHOUT; then
# BUILD's test_torch runs with it. OPTIONS: the libraries are first built there with AUTOPAR_KERNELS=OFF, and numerics runs.
cmake_minimum_required(VERSION 3.25)

if(OPTIONS)
  string(REPLACE "|" ";" OPTIONS "${OPTIONS}")
  execute_process(COMMAND ${CMAKE_COMMAND} -S "${SOURCE}" -B "${WITHOUT}" ${OPTIONS} -DAUTOPAR_KERNELS=OFF
    -DAUTOPAR_BUILD_TESTS=OFF -DAUTOPAR_BUILD_EXAMPLES=OFF -DAUTOPAR_BUILD_TOOLS=OFF OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ${CMAKE_COMMAND} --build "${WITHOUT}" --target autopar_torch OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
endif()
set(texts)
foreach(libraries IN ITEMS "${BUILD}" "${WITHOUT}")
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
  execute_process(COMMAND ${CMAKE_COMMAND} -E env "LD_LIBRARY_PATH=${WITHOUT}" OMP_NUM_THREADS=1
    "XDG_CACHE_HOME=${WITHOUT}/cache" "${BUILD}/tests/${program}" --filenames-as-tags "${filter}"
    OUTPUT_VARIABLE text ERROR_VARIABLE log RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "without kernels, ${program} ${filter} ends with ${status}:\n${text}\n${log}")
  endif()
  string(REGEX MATCH "All tests passed[^\n]*" passed "${text}")
  message(STATUS "${program} ${filter}: ${passed}")
endfunction()

passes(test_torch "~[.]~[nightly]~[#products_test]") # which calls kernels/gemm
if(OPTIONS)
  file(GLOB files RELATIVE "${SOURCE}/tests/numerics" "${SOURCE}/tests/numerics/*_test.cpp")
  foreach(file IN LISTS files)
    cmake_path(GET file STEM name)
    passes(numerics "[#${name}]~[.]~[nightly]")
  endforeach()
endif()
