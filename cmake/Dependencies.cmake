# Header-only libraries: the copies in third_party/, or the system's if it has packages of them that are new enough.
# pip's build takes the copies in any case, so that a wheel does not depend on where it was built.

# firkin_find(fmt 9 fmt::fmt-header-only): makes the target of that name.
macro(firkin_find package version target)
  if(NOT SKBUILD)
    find_package(${package} ${version} QUIET)
  endif()
  if(NOT TARGET ${target})
    string(TOLOWER ${package} folder)
    add_library(${target} INTERFACE IMPORTED)
    target_include_directories(${target} SYSTEM INTERFACE ${PROJECT_SOURCE_DIR}/third_party/${folder})
  endif()
endmacro()

firkin_find(nlohmann_json 3.11 nlohmann_json::nlohmann_json)
if(FIRKIN_BUILD_PROGRAM)
  firkin_find(CLI11 2.1 CLI11::CLI11)
endif()
find_package(Threads REQUIRED)
if(FIRKIN_BUILD_TESTS)
  find_package(GTest REQUIRED)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
endif()

# fmt, header-only. LibTorch ships a copy of its own. A build with LibTorch uses that one, so that a process has only
# one version. A symbolic link to fmt/ hides the rest of LibTorch's headers from the modules that do not use LibTorch.
add_library(firkin_fmt INTERFACE)
if(FIRKIN_WITH_TORCH OR FIRKIN_PYTHON_ENGINE)
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/fmt_only)
  file(CREATE_LINK ${FIRKIN_LIBTORCH}/include/fmt ${PROJECT_BINARY_DIR}/fmt_only/fmt SYMBOLIC)
  target_include_directories(firkin_fmt SYSTEM INTERFACE ${PROJECT_BINARY_DIR}/fmt_only)
else()
  firkin_find(fmt 9 fmt::fmt-header-only)
  target_link_libraries(firkin_fmt INTERFACE fmt::fmt-header-only)
endif()
target_compile_definitions(firkin_fmt INTERFACE FMT_HEADER_ONLY=1)
