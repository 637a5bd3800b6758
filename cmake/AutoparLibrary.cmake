# One library target a layer: autopar_<layer>, alias autopar::<name>.

# The warnings of our own code. Not exported.
add_library(autopar_warnings INTERFACE)
target_compile_options(autopar_warnings INTERFACE -Wall -Wextra -Wshadow $<$<BOOL:${AUTOPAR_WERROR}>:-Werror>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # false alarm on `"literal" + std::string` (gcc.gnu.org/PR105651)
  target_compile_options(autopar_warnings INTERFACE -Wno-restrict)
endif()
add_library(autopar_strict_warnings INTERFACE)
target_link_libraries(autopar_strict_warnings INTERFACE autopar_warnings)
target_compile_options(autopar_strict_warnings INTERFACE -Wconversion)

# A unit that sees libtorch keeps 1 to 3 GB of trees alive. At gcc's defaults, a quarter of the time goes into collecting
# what is not garbage; so it begins to collect at 3 GB.
add_compile_options("$<$<CXX_COMPILER_ID:GNU>:SHELL:--param ggc-min-heapsize=1900000 --param ggc-min-expand=60>")

# Sanitizers hold for the whole tree: a program that is only partly instrumented reports nonsense.
if(AUTOPAR_SANITIZE)
  add_compile_options(-fsanitize=${AUTOPAR_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${AUTOPAR_SANITIZE})
endif()

# For code of which more optimisation takes a compiler longer than it saves: tests, examples, and what waits for libtorch's
# operators (benchmarks/replay_overhead is as fast as at -O3).
add_library(autopar_light_optimisation INTERFACE)
target_compile_options(autopar_light_optimisation INTERFACE $<$<AND:$<CONFIG:Release>,$<CXX_COMPILER_ID:GNU,Clang>>:-O1>)

# autopar_add_layer_library(<layer> [EXPORT_NAME <name>] [EXCLUDE <regex>] [WITH <layer>]): compiled from src/<layer>/**.cpp
# except the files in src/<layer>/ whose path matches, and from the files of a layer that has no library of its own; without
# sources, an INTERFACE library. Sets AUTOPAR_<layer>_SOURCES.
function(autopar_add_layer_library layer)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "EXPORT_NAME;EXCLUDE;WITH" "")
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/${layer}/*.cpp")
  if(arg_WITH)
    file(GLOB_RECURSE others CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/${arg_WITH}/*.cpp")
    list(APPEND sources ${others})
  endif()
  if(arg_EXCLUDE)
    list(FILTER sources EXCLUDE REGEX "/src/${layer}/${arg_EXCLUDE}/")
  endif()
  if(sources)
    add_library(autopar_${layer} ${sources})
    set_target_properties(autopar_${layer} PROPERTIES
      VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
      BUILD_RPATH_USE_ORIGIN ON INSTALL_RPATH "$ORIGIN" INSTALL_RPATH_USE_LINK_PATH ON)
    target_link_libraries(autopar_${layer} PRIVATE $<BUILD_INTERFACE:autopar_strict_warnings>)
    target_include_directories(autopar_${layer} PRIVATE "${PROJECT_SOURCE_DIR}/src")
    # Else a program's own copies of our inline functions, which may be compiled at -O0, take the place of the library's:
    # it planned four times slower.
    set(shared $<STREQUAL:$<TARGET_PROPERTY:TYPE>,SHARED_LIBRARY>)
    target_link_options(autopar_${layer} PRIVATE $<${shared}:LINKER:-Bsymbolic-functions>)
    if(NOT AUTOPAR_SANITIZE) # a missing definition is found here, not by the user's linker
      target_link_options(autopar_${layer} PRIVATE $<${shared}:LINKER:-z,defs>)
    endif()
    if(AUTOPAR_UNITY AND NOT layer STREQUAL "planner")
      # A unit that sees libtorch takes 10 s before its first line of ours; this many make units of about half a minute.
      set(batch 37)
      if(AUTOPAR_UNITY_BATCH)
        set(batch ${AUTOPAR_UNITY_BATCH})
      endif()
      set_target_properties(autopar_${layer} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${batch})
      # taken for headers, as a unit of the batch includes them
      target_compile_options(autopar_${layer} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
    endif()
  else()
    add_library(autopar_${layer} INTERFACE)
  endif()
  if(arg_EXPORT_NAME)
    set_target_properties(autopar_${layer} PROPERTIES EXPORT_NAME ${arg_EXPORT_NAME})
  endif()
  set(AUTOPAR_${layer}_SOURCES "${sources}" PARENT_SCOPE)
endfunction()

# autopar_library(<layer> HEADERS <folder>... [EXTRA_HEADERS f...] [GENERATED_HEADERS f...] [LINK target...]):
# the public headers (every .hpp under include/autopar/<folder>), links and language level of autopar_<layer>.
function(autopar_library layer)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "HEADERS;EXTRA_HEADERS;GENERATED_HEADERS;LINK")
  set(target autopar_${layer})
  get_target_property(type ${target} TYPE)
  set(scope PUBLIC)
  if(type STREQUAL "INTERFACE_LIBRARY")
    set(scope INTERFACE)
  endif()
  get_target_property(name ${target} EXPORT_NAME)
  if(NOT name)
    set(name ${layer})
    set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  endif()
  add_library(autopar::${name} ALIAS ${target})

  set(headers)
  foreach(folder IN LISTS arg_HEADERS)
    file(GLOB_RECURSE found CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/include/autopar/${folder}/*.hpp")
    list(APPEND headers ${found})
  endforeach()
  foreach(header IN LISTS arg_EXTRA_HEADERS)
    if(EXISTS "${PROJECT_SOURCE_DIR}/${header}")
      list(APPEND headers "${PROJECT_SOURCE_DIR}/${header}")
    endif()
  endforeach()
  target_sources(${target} ${scope} FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}/include" FILES ${headers})
  if(arg_GENERATED_HEADERS)
    target_sources(${target} ${scope} FILE_SET generated_headers TYPE HEADERS
      BASE_DIRS "${PROJECT_BINARY_DIR}/generated" FILES ${arg_GENERATED_HEADERS})
  endif()
  target_compile_features(${target} ${scope} cxx_std_20)
  target_link_libraries(${target} ${scope} ${arg_LINK})
  set_property(GLOBAL APPEND PROPERTY AUTOPAR_LIBRARIES ${layer})
endfunction()
