# One precompiled header, libtorch's and autopar's, for the programs of tests/ and examples/: a unit that parses them itself
# spends most of its time on it. All have its flags, -O0 among them, as their time goes into the libraries.

add_library(autopar_torch_program_flags INTERFACE)
target_compile_options(autopar_torch_program_flags INTERFACE # ccache needs -fpch-preprocess
  -O0 -g0 $<$<CXX_COMPILER_ID:GNU>:-Winvalid-pch> $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)

if(AUTOPAR_PCH)
  add_executable(autopar_torch_pch "${CMAKE_CURRENT_LIST_DIR}/torch_pch.cpp")
  target_link_libraries(autopar_torch_pch PRIVATE autopar::autopar autopar_warnings autopar_torch_program_flags)
  target_precompile_headers(autopar_torch_pch PRIVATE "${CMAKE_CURRENT_LIST_DIR}/torch_pch.hpp")
endif()

# autopar_precompile(<target>): a program, or a static library of programs, whose units all include libtorch.
function(autopar_precompile target)
  target_link_libraries(${target} PRIVATE autopar_torch_program_flags)
  if(NOT AUTOPAR_PCH)
    return()
  endif()
  get_target_property(type ${target} TYPE)
  if(NOT type STREQUAL "EXECUTABLE") # -fPIE as the header's program, where a library's code is -fPIC
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIE)
  endif()
  target_precompile_headers(${target} REUSE_FROM autopar_torch_pch)
endfunction()
