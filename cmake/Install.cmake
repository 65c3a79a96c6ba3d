# `cmake --install build --prefix DIR`: the program firkin, and the data-parallel library for other projects.
#
# The program with its data, licences and shell completions; DIR may be moved afterwards. Headers and static libraries of base, stats, plan,
# comm, ddp and tune, and a package file:
#   find_package(firkin CONFIG REQUIRED)
#   target_link_libraries(app PRIVATE firkin::ddp)      # or firkin::tune, which is larger, or firkin::plan, without LibTorch

include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

# Those without a folder in include/ are libraries that firkin::tune links.
set(installed_rooms base stats plan)
if(FIRKIN_WITH_TORCH)
  list(APPEND installed_rooms comm ddp results report trace workload bench tune)
endif()
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/firkin)

foreach(room IN LISTS installed_rooms)
  set_target_properties(firkin_${room} PROPERTIES EXPORT_NAME ${room})
  install(TARGETS firkin_${room} EXPORT firkin ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
    INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  # json_text.h is for the rooms above: who uses the package needs no nlohmann-json.
  if(EXISTS ${CMAKE_SOURCE_DIR}/include/firkin/${room})
    install(DIRECTORY include/firkin/${room} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/firkin PATTERN json_text.h EXCLUDE)
  endif()
endforeach()
install(EXPORT firkin NAMESPACE firkin:: FILE firkinTargets.cmake DESTINATION ${package_dir})

configure_package_config_file(cmake/firkinConfig.cmake.in ${CMAKE_BINARY_DIR}/firkinConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/firkinConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/firkinConfig.cmake ${CMAKE_BINARY_DIR}/firkinConfigVersion.cmake DESTINATION ${package_dir})
if(FIRKIN_WITH_TORCH)
  install(FILES cmake/FirkinPython.cmake cmake/LibTorch.cmake DESTINATION ${package_dir})
endif()

# The program. bin/firkin is a script that finds LibTorch for it, or says in one line what to do: the dynamic linker would only name a file.
# The run path to the LibTorch that it was built with (a link option of LibTorch.cmake) stays.
if(FIRKIN_WITH_TORCH)
  install(TARGETS firkin RUNTIME DESTINATION ${CMAKE_INSTALL_LIBEXECDIR}/firkin)
  configure_file(src/cli/installed_firkin.in ${CMAKE_BINARY_DIR}/installed_firkin @ONLY)
  install(PROGRAMS ${CMAKE_BINARY_DIR}/installed_firkin DESTINATION ${CMAKE_INSTALL_BINDIR} RENAME firkin)
else()
  install(TARGETS firkin RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(DIRECTORY data/ DESTINATION ${CMAKE_INSTALL_DATADIR}/firkin)
install(FILES LICENSE THIRD_PARTY_NOTICES DESTINATION ${CMAKE_INSTALL_DOCDIR})

# Completions: the built program prints them.
set(completions ${CMAKE_BINARY_DIR}/completions)
install(CODE "
  file(MAKE_DIRECTORY \"${completions}\")
  foreach(shell bash zsh fish)
    execute_process(COMMAND \"$<TARGET_FILE:firkin>\" completions \${shell} OUTPUT_FILE \"${completions}/\${shell}\" COMMAND_ERROR_IS_FATAL ANY)
  endforeach()")
install(FILES ${completions}/bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME firkin)
install(FILES ${completions}/zsh DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions RENAME _firkin)
install(FILES ${completions}/fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d RENAME firkin.fish)

# cpack makes a tarball of the same; tools/package calls it.
if(FIRKIN_WITH_TORCH)
  set(CPACK_GENERATOR TGZ)
  set(CPACK_PACKAGE_FILE_NAME firkin-${PROJECT_VERSION}-torch${torch_series}-linux-${CMAKE_SYSTEM_PROCESSOR})
  set(CPACK_STRIP_FILES ON)
  set(CPACK_VERBATIM_VARIABLES ON)
  include(CPack)
endif()
