# How a room (a folder of src/) and its tests become targets.
#
#   firkin_room(plan SOURCES cost_curve.cpp timeline.cpp DEPENDS base)        -> target firkin_plan, alias firkin::plan
#   firkin_room(ddp TORCH SOURCES ... DEPENDS plan comm)                      -> also sees LibTorch, precompiled
#   firkin_test(plan SOURCES timeline_test.cpp)                               -> build/tests/plan_test, one ctest entry per test
#   firkin_test(ddp TORCH SEPARATE SOURCES ...)                               -> also where files are joined, these are not

add_library(firkin_warnings INTERFACE)
target_compile_options(firkin_warnings INTERFACE -Wall -Wextra -Wshadow)
if(NOT SKBUILD)  # pip install . must not fail where another compiler warns of something else
  target_compile_options(firkin_warnings INTERFACE -Werror)
endif()

find_program(CCACHE ccache)
if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # ccache accepts a precompiled header only with these settings (its manual, "Precompiled headers").
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE})
  add_compile_options($<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
endif()

function(firkin_use_torch target)
  target_link_libraries(${target} PRIVATE firkin_libtorch)
  if(target STREQUAL firkin_torch_pch)
    return()
  endif()
  target_precompile_headers(${target} REUSE_FROM firkin_torch_pch)
endfunction()

function(firkin_room name)
  cmake_parse_arguments(arg "TORCH" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(firkin_${name} STATIC ${arg_SOURCES})
  add_library(firkin::${name} ALIAS firkin_${name})
  # include/: the public headers, firkin/ROOM/FILE.h. src/: those of rooms that are not installed, ROOM/FILE.h.
  target_include_directories(firkin_${name} PUBLIC $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include> $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/src>)
  target_compile_features(firkin_${name} PUBLIC cxx_std_20)
  target_link_libraries(firkin_${name} PRIVATE $<BUILD_INTERFACE:firkin_warnings> $<BUILD_INTERFACE:firkin_fmt>)
  foreach(room IN LISTS arg_DEPENDS)
    target_link_libraries(firkin_${name} PUBLIC firkin_${room})
  endforeach()
  if(arg_TORCH)
    # firkin::libtorch: what firkinConfig.cmake makes where the package is used.
    target_link_libraries(firkin_${name} PUBLIC $<BUILD_INTERFACE:firkin_libtorch> $<INSTALL_INTERFACE:firkin::libtorch>)
    target_precompile_headers(firkin_${name} REUSE_FROM firkin_torch_pch)
  endif()
endfunction()

function(firkin_test name)
  cmake_parse_arguments(arg "TORCH;SEPARATE" "TIMEOUT" "SOURCES;DEPENDS;LABELS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  add_executable(${name}_test ${arg_SOURCES})
  set_target_properties(${name}_test PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_link_libraries(${name}_test PRIVATE firkin_${name} firkin_warnings firkin_fmt GTest::gmock GTest::gtest_main)
  foreach(room IN LISTS arg_DEPENDS)
    target_link_libraries(${name}_test PRIVATE firkin_${room})
  endforeach()
  target_compile_definitions(${name}_test PRIVATE FIRKIN_SOURCE_DIR="${CMAKE_SOURCE_DIR}" FIRKIN_BINARY_DIR="${CMAKE_BINARY_DIR}")
  if(arg_TORCH)
    target_precompile_headers(${name}_test REUSE_FROM firkin_torch_pch)
  else()  # a precompiled header is only taken with the -O that it was made with
    target_compile_options(${name}_test PRIVATE $<$<CONFIG:Release>:-O1>)  # most of a test's time is its compilation
  endif()
  if(arg_SEPARATE OR NOT arg_TORCH)  # without LibTorch a file is quick to compile, and test files like the same short names
    set_target_properties(${name}_test PROPERTIES UNITY_BUILD OFF)
  endif()
  gtest_discover_tests(${name}_test TEST_PREFIX ${name}. DISCOVERY_TIMEOUT 60
    PROPERTIES LABELS "${name};${arg_LABELS}" TIMEOUT ${arg_TIMEOUT})
endfunction()
