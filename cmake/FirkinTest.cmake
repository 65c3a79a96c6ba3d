# How the tests of a module become a program and its ctest entries.
#
# COST: seconds, of those tests that take half a minute and more. ctest starts the longest first, by what it measured before, in a new build
# folder by these.
#
#   firkin_test(plan SOURCES timeline_test.cpp)                               -> build/tests/plan_test, one ctest entry: plan
#   firkin_test(ddp TORCH SOURCES join_test.cpp)                              -> one ctest entry a file: ddp.join

# main(), and what every test without LibTorch includes, compiled once.
add_library(firkin_test_main STATIC tests/main.cpp)
target_link_libraries(firkin_test_main PUBLIC GTest::gmock PRIVATE firkin_fmt nlohmann_json::nlohmann_json)
target_precompile_headers(firkin_test_main PRIVATE <gmock/gmock.h> <fmt/format.h> <nlohmann/json.hpp>)
# Most of a test's time is its compilation. A precompiled header is only taken with the -O that it was made with.
# With one, g++ 12 warns of its own std::string (GCC bug 105651).
set(firkin_test_options $<$<CONFIG:Release>:-O1> $<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds;-Wno-restrict;-Wno-stringop-overflow>)
target_compile_options(firkin_test_main PRIVATE ${firkin_test_options})

# LibTorch's for tests: what uses a precompiled header is optimised as that header was, whatever its own -O says. A third less time a file.
if(FIRKIN_WITH_TORCH)
  firkin_torch_precompiled(firkin_torch_test_pch <torch/torch.h>)
  target_compile_options(firkin_torch_test_pch PRIVATE $<$<CONFIG:Release>:-O1>)
endif()
function(firkin_torch_test_options target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  target_precompile_headers(${target} REUSE_FROM firkin_torch_test_pch)
endfunction()

# Of a test program: GoogleTest, and one ctest entry for the whole of it, or with EACH_FILE one for each of its files NAME_test.cpp. The tests
# of one file share a process.
function(firkin_test_program target prefix)
  cmake_parse_arguments(arg "EACH_FILE" "" "LABELS" ${ARGN})
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  target_link_libraries(${target} PRIVATE firkin_test_main)
  set(tests)
  if(arg_EACH_FILE)
    get_target_property(sources ${target} SOURCES)
    list(FILTER sources INCLUDE REGEX "_test\\.cpp$")
    foreach(source IN LISTS sources)
      string(REPLACE "_test.cpp" "" file ${source})
      add_test(NAME ${prefix}.${file} COMMAND ${target} --file=${source})
      list(APPEND tests ${prefix}.${file})
    endforeach()
  else()
    add_test(NAME ${prefix} COMMAND ${target})
    list(APPEND tests ${prefix})
  endif()
  set_tests_properties(${tests} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT 600 SKIP_RETURN_CODE 77)
endfunction()

function(firkin_test name)
  cmake_parse_arguments(arg "TORCH" "" "SOURCES;DEPENDS" ${ARGN})
  add_executable(${name}_test ${arg_SOURCES})
  target_link_libraries(${name}_test PRIVATE firkin_${name} firkin_warnings firkin_fmt)
  foreach(module IN LISTS arg_DEPENDS)
    target_link_libraries(${name}_test PRIVATE firkin_${module})
  endforeach()
  if(arg_TORCH)
    firkin_torch_test_options(${name}_test)
    firkin_test_program(${name}_test ${name} EACH_FILE LABELS ${name})
  else()
    target_compile_definitions(${name}_test PRIVATE FIRKIN_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
    target_compile_options(${name}_test PRIVATE ${firkin_test_options})
    target_precompile_headers(${name}_test REUSE_FROM firkin_test_main)
    set_target_properties(${name}_test PROPERTIES UNITY_BUILD OFF)  # a file is quick to compile, and test files like the same short names
    firkin_test_program(${name}_test ${name} LABELS ${name})
  endif()
endfunction()
