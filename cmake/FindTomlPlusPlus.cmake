# autopar::tomlplusplus, header only: the include folder of toml++/toml.h (3.x has it; 3.4 adds toml.hpp beside it).
find_path(TomlPlusPlus_INCLUDE_DIR toml++/toml.h)
mark_as_advanced(TomlPlusPlus_INCLUDE_DIR)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(TomlPlusPlus REQUIRED_VARS TomlPlusPlus_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "apt-get install libtomlplusplus-dev, or add its prefix to CMAKE_PREFIX_PATH")
if(TomlPlusPlus_FOUND AND NOT TARGET autopar::tomlplusplus)
  add_library(autopar::tomlplusplus INTERFACE IMPORTED)
  set_target_properties(autopar::tomlplusplus PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${TomlPlusPlus_INCLUDE_DIR}" INTERFACE_COMPILE_DEFINITIONS TOML_HEADER_ONLY=1)
endif()
