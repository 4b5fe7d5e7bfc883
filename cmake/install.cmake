include(CMakePackageConfigHelpers)
foreach(layer tensor autograd ops nn optim)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/${layer} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/quern
    FILES_MATCHING PATTERN "*.h" PATTERN "detail" EXCLUDE PATTERN "kernels" EXCLUDE)
endforeach()
install(FILES ${PROJECT_SOURCE_DIR}/quern.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/quern)
install(FILES ${PROJECT_BINARY_DIR}/include/quern/quern/ops/ops.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/quern/ops)
install(TARGETS quern EXPORT quern-targets)
install(EXPORT quern-targets NAMESPACE quern:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/quern)
set(QUERN_FIND_OPTIONAL_LIBRARIES)
set(QUERN_OPTIONAL_MODULES)
foreach(name ${QUERN_OPTIONAL_LIBRARIES})
  string(APPEND QUERN_FIND_OPTIONAL_LIBRARIES
    "pkg_check_modules(${name} REQUIRED IMPORTED_TARGET ${QUERN_${name}_MODULE})\n")
  string(APPEND QUERN_OPTIONAL_MODULES " ${QUERN_${name}_MODULE}")
endforeach()
configure_package_config_file(cmake/quern-config.cmake.in quern-config.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/quern)
write_basic_package_version_file(quern-config-version.cmake COMPATIBILITY SameMinorVersion)
# The prefix as seen from the .pc file, so that an install may be moved.
file(RELATIVE_PATH QUERN_PC_TO_PREFIX
  ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(cmake/quern.pc.in quern.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/quern-config.cmake
  ${PROJECT_BINARY_DIR}/quern-config-version.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/quern)
install(FILES ${PROJECT_BINARY_DIR}/quern.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
