# autopar::hdf5: HDF5's C library. CMake's own FindHDF5 needs a C compiler in the project.
find_path(Hdf5C_INCLUDE_DIR hdf5.h PATH_SUFFIXES hdf5/serial)
find_library(Hdf5C_LIBRARY NAMES hdf5_serial hdf5)
mark_as_advanced(Hdf5C_INCLUDE_DIR Hdf5C_LIBRARY)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Hdf5C REQUIRED_VARS Hdf5C_LIBRARY Hdf5C_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "apt-get install libhdf5-dev, or add its prefix to CMAKE_PREFIX_PATH")
if(Hdf5C_FOUND AND NOT TARGET autopar::hdf5)
  add_library(autopar::hdf5 UNKNOWN IMPORTED)
  set_target_properties(autopar::hdf5 PROPERTIES
    IMPORTED_LOCATION "${Hdf5C_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${Hdf5C_INCLUDE_DIR}")
endif()
