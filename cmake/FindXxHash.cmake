# autopar::xxhash, header only: the include folder of xxhash.h (0.8 has XXH3).
find_path(XxHash_INCLUDE_DIR xxhash.h)
mark_as_advanced(XxHash_INCLUDE_DIR)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(XxHash REQUIRED_VARS XxHash_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "apt-get install libxxhash-dev, or add its prefix to CMAKE_PREFIX_PATH")
if(XxHash_FOUND AND NOT TARGET autopar::xxhash)
  add_library(autopar::xxhash INTERFACE IMPORTED)
  set_target_properties(autopar::xxhash PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${XxHash_INCLUDE_DIR}")
endif()
