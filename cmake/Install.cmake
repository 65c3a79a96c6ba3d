# `cmake --install build --prefix DIR`: the program firkin, and the data-parallel library for other projects.
#
# The program with its data and licences; DIR may be moved afterwards. Headers, libfirkin.a and a package file:
#   find_package(firkin CONFIG REQUIRED)
#   target_link_libraries(app PRIVATE firkin::ddp)      # or firkin::tune, or firkin::plan, without LibTorch

include(CMakePackageConfigHelpers)
include(GNUInstallDirs)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/firkin)

# One library of all modules that one may link, and of those that firkin::tune stands on. Their names say what comes with it: firkin::plan,
# stats and base nothing, the others LibTorch (firkin::libtorch, which firkinConfig.cmake makes where the package is used).
set(light_names base stats plan)
set(installed_modules ${light_names})
if(FIRKIN_WITH_TORCH)
  set(torch_names comm ddp tune)
  list(APPEND installed_modules ${torch_names} measuring results words model trace workload bench)
endif()
add_library(firkin_library STATIC)
set_target_properties(firkin_library PROPERTIES OUTPUT_NAME firkin EXPORT_NAME library LINKER_LANGUAGE CXX)
target_compile_features(firkin_library INTERFACE cxx_std_20)
install(TARGETS firkin_library EXPORT firkin ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
foreach(module IN LISTS installed_modules)
  target_sources(firkin_library PRIVATE $<TARGET_OBJECTS:firkin_${module}>)
  # json_text.h is for the modules above: who uses the package needs no nlohmann-json.
  if(EXISTS ${PROJECT_SOURCE_DIR}/include/firkin/${module})
    install(DIRECTORY include/firkin/${module} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/firkin PATTERN json_text.h EXCLUDE)
  endif()
endforeach()
if(TARGET firkin_nccl_backend)
  target_sources(firkin_library PRIVATE $<TARGET_OBJECTS:firkin_nccl_backend>)
endif()
foreach(name IN LISTS light_names torch_names)
  add_library(firkin_${name}_name INTERFACE)
  set_target_properties(firkin_${name}_name PROPERTIES EXPORT_NAME ${name})
  target_link_libraries(firkin_${name}_name INTERFACE firkin_library)
  if(name IN_LIST torch_names)
    target_link_libraries(firkin_${name}_name INTERFACE firkin::libtorch)
  endif()
  install(TARGETS firkin_${name}_name EXPORT firkin)
endforeach()
install(EXPORT firkin NAMESPACE firkin:: FILE firkinTargets.cmake DESTINATION ${package_dir})

configure_package_config_file(cmake/firkinConfig.cmake.in ${PROJECT_BINARY_DIR}/firkinConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/firkinConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/firkinConfig.cmake ${PROJECT_BINARY_DIR}/firkinConfigVersion.cmake DESTINATION ${package_dir})
if(FIRKIN_WITH_TORCH)
  install(FILES cmake/FirkinPython.cmake cmake/LibTorch.cmake DESTINATION ${package_dir})
endif()
install(FILES LICENSE THIRD_PARTY_NOTICES DESTINATION ${CMAKE_INSTALL_DOCDIR})
if(NOT FIRKIN_BUILD_PROGRAM)
  return()
endif()

# The program. To measure, bin/firkin starts a script that finds LibTorch for firkin-measure, or says in one line what to do: the dynamic
# linker would only name a file. The run path to the LibTorch that it was built with (a link option of LibTorch.cmake) stays.
install(TARGETS firkin RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
if(FIRKIN_WITH_TORCH)
  install(TARGETS firkin-measure RUNTIME DESTINATION ${CMAKE_INSTALL_LIBEXECDIR}/firkin)
  configure_file(cmake/with_libtorch.in ${PROJECT_BINARY_DIR}/with-libtorch @ONLY)
  install(PROGRAMS ${PROJECT_BINARY_DIR}/with-libtorch DESTINATION ${CMAKE_INSTALL_LIBEXECDIR}/firkin)
endif()
install(DIRECTORY data/ DESTINATION ${CMAKE_INSTALL_DATADIR}/firkin)

# cpack makes a tarball of the same; tools/package calls it.
if(FIRKIN_WITH_TORCH AND PROJECT_IS_TOP_LEVEL)
  set(CPACK_GENERATOR TGZ)
  set(CPACK_PACKAGE_FILE_NAME firkin-${PROJECT_VERSION}-torch${torch_series}-linux-${CMAKE_SYSTEM_PROCESSOR})
  set(CPACK_STRIP_FILES ON)
  set(CPACK_VERBATIM_VARIABLES ON)
  include(CPack)
endif()
