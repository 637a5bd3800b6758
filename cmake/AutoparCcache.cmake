# ccache where it is installed. The sloppiness is what it needs to cache units that use a precompiled header.
find_program(AUTOPAR_CCACHE ccache)
mark_as_advanced(AUTOPAR_CCACHE)
if(AUTOPAR_CCACHE AND PROJECT_IS_TOP_LEVEL AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND};-E;env;CCACHE_SLOPPINESS=pch_defines,time_macros;${AUTOPAR_CCACHE}")
endif()
