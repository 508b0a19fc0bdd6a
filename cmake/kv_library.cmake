# reprise_kv: the cache as one archive for engines that are not ours, with its public headers and a package for
# find_package(reprise). `cmake --install <build> --prefix P --component kv` installs it (docs/library.md).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/public_headers.txt)
file(STRINGS ${PROJECT_SOURCE_DIR}/src/public_headers.txt REPRISE_KV_HEADERS REGEX "^[a-z]")

add_library(reprise_kv STATIC)
set_target_properties(reprise_kv PROPERTIES LINKER_LANGUAGE CXX EXPORT_NAME kv
                      ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
foreach(folder base env prefix block tier cache)
  if(TARGET reprise_${folder})
    # So that it links into a shared object, a Python extension say. Without the second, gcc would inline nothing
    # that another object could replace.
    set_target_properties(reprise_${folder} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    target_compile_options(reprise_${folder} PRIVATE -fno-semantic-interposition)
    target_sources(reprise_kv PRIVATE $<TARGET_OBJECTS:reprise_${folder}>)
  endif()
endforeach()
target_compile_features(reprise_kv PUBLIC cxx_std_20)
target_link_libraries(reprise_kv PUBLIC absl::status absl::statusor
                      PRIVATE absl::strings absl::span OpenSSL::Crypto zstd::libzstd_shared Threads::Threads)

install(TARGETS reprise_kv EXPORT reprise ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT kv
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT reprise NAMESPACE reprise:: FILE reprise-targets.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/reprise COMPONENT kv)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/reprise-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)  # 0.x: a minor version may break
install(FILES ${PROJECT_SOURCE_DIR}/cmake/reprise-config.cmake
              ${PROJECT_BINARY_DIR}/package/reprise-config-version.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/reprise COMPONENT kv)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT kv)
install(CODE "set(headers \"${REPRISE_KV_HEADERS}\")
set(source_dir \"${PROJECT_SOURCE_DIR}/src\")
set(staging_dir \"${PROJECT_BINARY_DIR}/package/include\")
set(include_dir \"${CMAKE_INSTALL_INCLUDEDIR}\")" COMPONENT kv)
install(SCRIPT ${PROJECT_SOURCE_DIR}/cmake/install_headers.cmake COMPONENT kv)

# In the build tree the folders themselves are used; this is for those who link the archive alone.
add_custom_target(install_kv COMMAND ${CMAKE_COMMAND} --install ${PROJECT_BINARY_DIR} --component kv
                  DEPENDS reprise_kv USES_TERMINAL)
