# Libraries from the system's packages (tools/bootstrap installs them; docs/install.md lists them). A source
# distribution has copies of the header-only ones (tools/package), for systems that lack them.

# firkin_find(fmt 9 libfmt-dev fmt::fmt-header-only): find_package(), which fails with one line that says what to
# install.
macro(firkin_find package version debian target)
  find_package(${package} ${version} QUIET)
  if(NOT TARGET ${target} AND EXISTS ${PROJECT_SOURCE_DIR}/third_party/include)
    add_library(${target} INTERFACE IMPORTED)
    target_include_directories(${target} SYSTEM INTERFACE ${PROJECT_SOURCE_DIR}/third_party/include)
  elseif(NOT TARGET ${target})
    message(FATAL_ERROR "${package} ${version} or later is missing: apt-get install ${debian}")
  endif()
endmacro()

firkin_find(nlohmann_json 3.11 nlohmann-json3-dev nlohmann_json::nlohmann_json)
if(FIRKIN_BUILD_PROGRAM)
  firkin_find(CLI11 2.1 libcli11-dev CLI11::CLI11)
endif()
find_package(Threads REQUIRED)
find_package(ZLIB QUIET)
if(NOT ZLIB_FOUND)
  message(FATAL_ERROR "zlib is missing: apt-get install zlib1g-dev")
endif()
if(FIRKIN_BUILD_TESTS)
  find_package(GTest REQUIRED)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
endif()

# fmt, header-only. LibTorch ships a copy of its own. A build with LibTorch uses that one, so that a process has only
# one version. A symbolic link to fmt/ hides the rest of LibTorch's headers from the modules that do not use LibTorch.
add_library(firkin_fmt INTERFACE)
if(FIRKIN_WITH_TORCH)
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/fmt_only)
  file(CREATE_LINK ${FIRKIN_LIBTORCH}/include/fmt ${PROJECT_BINARY_DIR}/fmt_only/fmt SYMBOLIC)
  target_include_directories(firkin_fmt SYSTEM INTERFACE ${PROJECT_BINARY_DIR}/fmt_only)
else()
  firkin_find(fmt 9 libfmt-dev fmt::fmt-header-only)
  target_link_libraries(firkin_fmt INTERFACE fmt::fmt-header-only)
endif()
target_compile_definitions(firkin_fmt INTERFACE FMT_HEADER_ONLY=1)
