# Install rules: one export set a component, so that COMPONENTS core loads and looks for nothing else.
include(CMakePackageConfigHelpers)
set(autopar_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/autopar")

get_property(autopar_layers GLOBAL PROPERTY AUTOPAR_LIBRARIES)
foreach(layer IN LISTS autopar_layers)
  get_target_property(component autopar_${layer} EXPORT_NAME)
  get_target_property(file_sets autopar_${layer} INTERFACE_HEADER_SETS)
  set(header_rules)
  foreach(file_set IN LISTS file_sets)
    list(APPEND header_rules FILE_SET ${file_set} DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
  endforeach()
  install(TARGETS autopar_${layer} EXPORT autopar-${component}
    LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" ${header_rules})
  install(EXPORT autopar-${component} NAMESPACE autopar:: FILE autopar-${component}-targets.cmake
    DESTINATION "${autopar_package_dir}")
endforeach()
if(TARGET autopar_tool)
  install(TARGETS autopar_tool RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
endif()

set(AUTOPAR_PACKAGE_STATIC TRUE)
if(BUILD_SHARED_LIBS)
  set(AUTOPAR_PACKAGE_STATIC FALSE)
endif()
if(NOT DEFINED AUTOPAR_HAS_CUDA)
  set(AUTOPAR_HAS_CUDA 0)
endif()
configure_package_config_file(cmake/autopar-config.cmake.in "${PROJECT_BINARY_DIR}/autopar-config.cmake"
  INSTALL_DESTINATION "${autopar_package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/autopar-config-version.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/autopar-config.cmake" "${PROJECT_BINARY_DIR}/autopar-config-version.cmake"
  cmake/FindLibTorch.cmake cmake/FindNCCL.cmake DESTINATION "${autopar_package_dir}")
