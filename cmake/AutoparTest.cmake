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

# autopar_has_nightly(<result> <file>...): whether one of the files has test cases tagged [.nightly].
function(autopar_has_nightly result)
  set(${result} FALSE PARENT_SCOPE)
  foreach(file IN LISTS ARGN)
    file(STRINGS "${file}" tagged REGEX "\\[\\.nightly\\]" LIMIT_COUNT 1)
    if(tagged)
      set(${result} TRUE PARENT_SCOPE)
    endif()
  endforeach()
endfunction()

# autopar_allow_for_sanitizers(<seconds>): sanitized programs take several times as long.
macro(autopar_allow_for_sanitizers seconds)
  if(AUTOPAR_SANITIZE)
    math(EXPR ${seconds} "10 * ${${seconds}}")
  endif()
endmacro()

# autopar_add_test_program(<name> MAIN catch|mpi LIBRARY <target> FILES <file>...)
function(autopar_add_test_program name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "MAIN;LIBRARY" "FILES")
  add_executable(${name} ${arg_FILES})
  target_link_libraries(${name} PRIVATE ${arg_LIBRARY} autopar_${arg_MAIN}_main autopar_warnings)
  if(AUTOPAR_UNITY)
    set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 6)
  endif()
  if(arg_LIBRARY STREQUAL "autopar::autopar") # such a test spends its time in the library
    target_link_libraries(${name} PRIVATE autopar_torch_test_flags)
    if(AUTOPAR_PCH)
      target_precompile_headers(${name} REUSE_FROM autopar_torch_test_pch)
    endif()
  else()
    target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>) # more takes a compiler longer than it saves
  endif()
endfunction()

# autopar_add_unit_test(<name> LIBRARY <target> FILES <file>... [LABEL unit] [TIMEOUT 300]): one process. Test cases tagged
# [.nightly] run in a test nightly.<name> of their own.
function(autopar_add_unit_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "LIBRARY;LABEL;TIMEOUT" "FILES")
  autopar_default(arg_LABEL unit)
  autopar_default(arg_TIMEOUT 300)
  autopar_allow_for_sanitizers(arg_TIMEOUT)
  autopar_add_test_program(${name} MAIN catch LIBRARY ${arg_LIBRARY} FILES ${arg_FILES})
  add_test(NAME ${arg_LABEL}.${name} COMMAND ${name})
  set_tests_properties(${arg_LABEL}.${name} PROPERTIES LABELS ${arg_LABEL} TIMEOUT ${arg_TIMEOUT}
    ENVIRONMENT "${AUTOPAR_TEST_ENVIRONMENT}")
  if(arg_LABEL MATCHES "threads|fuzz" OR name MATCHES "_huge$") # limits of time, which others would use up
    set_tests_properties(${arg_LABEL}.${name} PROPERTIES PROCESSORS 2)
  endif()
  autopar_has_nightly(nightly ${arg_FILES})
  if(nightly)
    add_test(NAME nightly.${name} COMMAND ${name} [nightly])
    set_tests_properties(nightly.${name} PROPERTIES LABELS nightly TIMEOUT 14400
      ENVIRONMENT "${AUTOPAR_TEST_ENVIRONMENT}")
  endif()
endfunction()

# autopar_add_mpi_test(<name> LIBRARY <target> FILES <file>... [RANKS 1 2 3 4] [NIGHTLY_RANKS] [LABEL mpi] [TIMEOUT 120]):
# the same program once for each number of ranks. It fails if the launcher's world is of another size.
function(autopar_add_mpi_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "LIBRARY;LABEL;TIMEOUT" "FILES;RANKS;NIGHTLY_RANKS")
  autopar_default(arg_LABEL mpi)
  autopar_default(arg_TIMEOUT 120)
  autopar_default(arg_RANKS 1 2 3 4)
  autopar_allow_for_sanitizers(arg_TIMEOUT)
  autopar_add_test_program(${name} MAIN mpi LIBRARY ${arg_LIBRARY} FILES ${arg_FILES})
  autopar_has_nightly(nightly ${arg_FILES})
  foreach(ranks IN LISTS arg_RANKS arg_NIGHTLY_RANKS)
    set(test ${arg_LABEL}.${name}.${ranks})
    set(label ${arg_LABEL})
    if(ranks IN_LIST arg_NIGHTLY_RANKS)
      set(test nightly.${name}.whole.${ranks})
      set(label nightly)
    endif()
    add_test(NAME ${test}
      COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks} ${MPIEXEC_PREFLAGS} $<TARGET_FILE:${name}>)
    set_tests_properties(${test} PROPERTIES LABELS ${label} PROCESSORS ${ranks} TIMEOUT ${arg_TIMEOUT}
      ENVIRONMENT "${AUTOPAR_TEST_ENVIRONMENT};TEST_RANKS=${ranks}")
    if(nightly)
      add_test(NAME nightly.${name}.${ranks} COMMAND
        ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks} ${MPIEXEC_PREFLAGS} $<TARGET_FILE:${name}> [nightly])
      set_tests_properties(nightly.${name}.${ranks} PROPERTIES LABELS nightly PROCESSORS ${ranks} TIMEOUT 14400
        ENVIRONMENT "${AUTOPAR_TEST_ENVIRONMENT};TEST_RANKS=${ranks}")
    endif()
  endforeach()
endfunction()

# autopar_add_gpu_test(<name> LIBRARY <target> FILES <file>... [RANKS 2] [TIMEOUT 300]): as autopar_add_mpi_test, one GPU
# a rank. With fewer devices the main ends with 77, which ctest reports as skipped, not as passed.
function(autopar_add_gpu_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "LIBRARY;TIMEOUT" "FILES;RANKS")
  autopar_default(arg_TIMEOUT 300)
  autopar_default(arg_RANKS 2)
  autopar_add_mpi_test(${name} LABEL gpu LIBRARY ${arg_LIBRARY} FILES ${arg_FILES} RANKS ${arg_RANKS}
    TIMEOUT ${arg_TIMEOUT})
  target_compile_definitions(${name} PRIVATE AUTOPAR_TEST_NEEDS_GPU=1)
  target_link_libraries(${name} PRIVATE autopar_gpu_check)
  foreach(ranks IN LISTS arg_RANKS)
    set_tests_properties(gpu.${name}.${ranks} PROPERTIES SKIP_RETURN_CODE 77 RESOURCE_LOCK gpu)
  endforeach()
endfunction()

# autopar_add_compile_fail_test(<name> LIBRARY <target> FILE <file>): the file must not compile, and the compiler's output
# must contain the text of each of its lines `// expect: TEXT`.
function(autopar_add_compile_fail_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "LIBRARY;FILE" "")
  set(includes "$<TARGET_PROPERTY:${arg_LIBRARY},INTERFACE_INCLUDE_DIRECTORIES>")
  add_test(NAME unit.compile_fail.${name}
    COMMAND ${CMAKE_COMMAND} "-DCOMPILER=${CMAKE_CXX_COMPILER}" "-DFILE=${arg_FILE}" "-DINCLUDES=${includes}"
      -P "${PROJECT_SOURCE_DIR}/cmake/check_compile_fail.cmake")
  set_tests_properties(unit.compile_fail.${name} PROPERTIES LABELS unit TIMEOUT 120)
endfunction()

# autopar_default(<variable> <value>...): the value where the caller gave none.
macro(autopar_default variable)
  if(NOT DEFINED ${variable})
    set(${variable} ${ARGN})
  endif()
endmacro()
