# The functions that make tests. A test binary links the layer it tests and autopar_test_support (Catch, catch_shim.hpp).

# What every test process gets: no oversubscribed OpenMP, a cache folder that is not the user's, and Open MPI willing to run
# as root with more ranks than cores.
set(AUTOPAR_TEST_ENVIRONMENT
  OMP_NUM_THREADS=1
  "XDG_CACHE_HOME=${PROJECT_BINARY_DIR}/tests/cache"
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe)

# Sanitizers: what libtorch and the MPI library do is not ours to mend; reasons stand in the files.
if(AUTOPAR_SANITIZE)
  set(suppressions "${PROJECT_SOURCE_DIR}/tests/support")
  list(APPEND AUTOPAR_TEST_ENVIRONMENT
    "LSAN_OPTIONS=suppressions=${suppressions}/lsan.supp:print_suppressions=0"
    "TSAN_OPTIONS=suppressions=${suppressions}/tsan.supp:second_deadlock_stack=1"
    "ASAN_OPTIONS=detect_container_overflow=0"
    "UBSAN_OPTIONS=print_stacktrace=1"
    UCX_MEM_EVENTS=n) # UCX's hook in madvise runs at a thread's end, when the sanitizer's state of it is gone
endif()

# autopar_add_test_program(<name> LIBRARIES <target>... FILES <file>... [MPI]): the files, in batches where AUTOPAR_UNITY.
# MPI: its main starts MPI, and every rank runs every test case.
function(autopar_add_test_program name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "MPI" "" "LIBRARIES;FILES")
  add_executable(${name} ${arg_FILES})
  target_link_libraries(${name} PRIVATE
    ${arg_LIBRARIES} $<IF:$<BOOL:${arg_MPI}>,autopar_mpi_main,autopar_catch_main> autopar_warnings)
  set_target_properties(${name} PROPERTIES UNITY_BUILD ${AUTOPAR_UNITY} UNITY_BUILD_BATCH_SIZE 0)
  if("autopar::autopar" IN_LIST arg_LIBRARIES) # such a test spends its time in the library
    set_target_properties(${name} PROPERTIES UNITY_BUILD_BATCH_SIZE 14)
    target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/src") # what users do not include
    autopar_precompile(${name})
    if(AUTOPAR_UNITY_BATCH)
      set_target_properties(${name} PROPERTIES UNITY_BUILD_BATCH_SIZE ${AUTOPAR_UNITY_BATCH})
    endif()
  else()
    target_link_libraries(${name} PRIVATE autopar_light_optimisation)
  endif()
endfunction()

# autopar_add_tests(<program> <name> LABEL <label> FILES <file>... [TIMEOUT 300] [PROCESSORS 1] [RANKS <n>...]
# [NIGHTLY_RANKS <n>...]): the test <label>.<name>, of the program's test cases that are in these files; a test
# nightly.<name> of those tagged [.nightly]. RANKS makes <label>.<name>.<n> of it, launched on n ranks, NIGHTLY_RANKS
# nightly.<name>.whole.<n>.
function(autopar_add_tests program name)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "LABEL;TIMEOUT;PROCESSORS" "FILES;RANKS;NIGHTLY_RANKS")
  autopar_default(arg_TIMEOUT 300)
  autopar_default(arg_PROCESSORS 1)
  autopar_default(arg_RANKS 0)
  if(AUTOPAR_SANITIZE) # sanitized programs take several times as long
    math(EXPR arg_TIMEOUT "10 * ${arg_TIMEOUT}")
  endif()
  set(cases)
  set(nightly_cases)
  foreach(file IN LISTS arg_FILES) # Catch picks them by the files' names
    cmake_path(GET file STEM stem)
    list(APPEND cases "[#${stem}]~[.]")
    file(STRINGS "${file}" tagged REGEX "\\[\\.nightly\\]" LIMIT_COUNT 1)
    if(tagged)
      list(APPEND nightly_cases "[#${stem}][nightly]")
    endif()
  endforeach()
  list(JOIN cases "," cases)
  list(JOIN nightly_cases "," nightly_cases)
  foreach(ranks IN LISTS arg_RANKS)
    string(REGEX REPLACE "^\\.0$" "" suffix ".${ranks}")
    autopar_add_test_entry(${arg_LABEL}.${name}${suffix}
      "${program}" "${cases}" ${ranks} ${arg_LABEL} ${arg_TIMEOUT} ${arg_PROCESSORS})
    if(nightly_cases)
      autopar_add_test_entry(nightly.${name}${suffix} "${program}" "${nightly_cases}" ${ranks} nightly 14400 1)
    endif()
  endforeach()
  foreach(ranks IN LISTS arg_NIGHTLY_RANKS)
    autopar_add_test_entry(nightly.${name}.whole.${ranks} "${program}" "${cases}" ${ranks} nightly ${arg_TIMEOUT} 1)
  endforeach()
endfunction()

# One entry of ctest. Ranks: 0 = without the launcher; a launcher's world of another size fails. Label gpu: a GPU a rank, the
# main ends with 77 where they are not, and so does what stands for a program that is not built: skipped, not passed.
function(autopar_add_test_entry test program cases ranks label timeout processors)
  set(command $<TARGET_FILE:${program}> --filenames-as-tags ${cases})
  set(environment ${AUTOPAR_TEST_ENVIRONMENT})
  if(ranks)
    list(PREPEND command ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks} ${MPIEXEC_PREFLAGS})
    list(APPEND environment TEST_RANKS=${ranks})
    set(processors ${ranks})
  endif()
  if(label STREQUAL "gpu" AND NOT AUTOPAR_HAS_GPU_TESTS)
    set(command sh -c "echo 'skipped: ${program} is not built, as AUTOPAR_GPU_TESTS=${AUTOPAR_GPU_TESTS}' && exit 77")
  endif()
  add_test(NAME ${test} COMMAND ${command})
  set_tests_properties(${test} PROPERTIES LABELS ${label} TIMEOUT ${timeout} PROCESSORS ${processors}
    ENVIRONMENT "${environment}" FAIL_REGULAR_EXPRESSION "No tests ran|No test cases matched")
  if(label STREQUAL "gpu")
    set_tests_properties(${test} PROPERTIES SKIP_RETURN_CODE 77 RESOURCE_LOCK gpu)
  endif()
endfunction()

# autopar_add_compile_fail_test(<label>.<name> LIBRARY <target> FILES <file>...): a unit of these files must not compile, and the
# compiler's output must contain the text of each of their lines `// expect: TEXT`.
function(autopar_add_compile_fail_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "LIBRARY" "FILES")
  set(includes "$<TARGET_PROPERTY:${arg_LIBRARY},INTERFACE_INCLUDE_DIRECTORIES>")
  add_test(NAME ${name}
    COMMAND ${CMAKE_COMMAND} "-DCOMPILER=${CMAKE_CXX_COMPILER}" "-DFILES=${arg_FILES}" "-DINCLUDES=${includes}"
      "-DUNIT=${CMAKE_CURRENT_BINARY_DIR}/compile_fail/${name}.cpp" -P "${PROJECT_SOURCE_DIR}/cmake/check_compile_fail.cmake")
  string(REGEX MATCH "^[a-z]+" label ${name})
  set_tests_properties(${name} PROPERTIES LABELS ${label} TIMEOUT 120)
endfunction()

# autopar_default(<variable> <value>...): the value where the caller gave none.
macro(autopar_default variable)
  if(NOT DEFINED ${variable})
    set(${variable} ${ARGN})
  endif()
endmacro()
