# How tests become ctest entries, in two tiers: `make test` runs the first, every behaviour once, and `make test-all` also entries that have the
# label `full`: full products, long runs, repetitions.
#
#   firkin_test(plan SOURCES timeline_test.cpp)                        -> build/tests/plan_test, one entry: plan
#   firkin_test(ddp TORCH SOURCES late_test.cpp)                       -> one entry a file: ddp.late
#   firkin_test(ddp TORCH SOURCES a_test.cpp FULL a_test.cpp)          -> ddp.a, and ddp.a.full of those suites in it whose names end in Full
#   firkin_python_test(cli.a a_test.py LABELS cli FULL TRUE)           -> cli.a, and cli.a.full of those tests in it that are pytest.mark.full
#   set_property(TEST lab.hosts APPEND PROPERTY LABELS full)           -> an entry that is of the second tier as a whole
#
# COST: seconds, of those tests that take half a minute and more. ctest starts the longest first, by what it measured before, in a new build
# folder by these. PROCESSORS: half cores, one for those that mostly wait. So `ctest -j 4` is for two cores.

# ctest entry `name`; FULL true: also `name`.full, of the second tier. IN_FIRST, IN_FULL: the words behind COMMAND that choose a tier.
function(firkin_test_entry name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "FULL" "COMMAND;IN_FIRST;IN_FULL;LABELS;ENVIRONMENT")
  if(arg_FULL)
    add_test(NAME ${name} COMMAND ${arg_COMMAND} ${arg_IN_FIRST})
    add_test(NAME ${name}.full COMMAND ${arg_COMMAND} ${arg_IN_FULL})
    set_tests_properties(${name}.full PROPERTIES LABELS "${arg_LABELS};full" TIMEOUT 1800)
    set(second ${name}.full)
  else()
    add_test(NAME ${name} COMMAND ${arg_COMMAND})
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT 1200)
  set_tests_properties(${name} ${second} PROPERTIES SKIP_RETURN_CODE 77 PROCESSORS 2 ENVIRONMENT "${arg_ENVIRONMENT}")
endfunction()

# Test files of Python's in this folder, which share a process. tests/conftest.py finds what else they need. An entry of which pytest skips
# every test says so, with the exit code of success.
execute_process(COMMAND ${FIRKIN_PYTHON} -c "import pytest, pytest_timeout" RESULT_VARIABLE has_no_pytest OUTPUT_QUIET ERROR_QUIET)
if(has_no_pytest)
  message(FATAL_ERROR "${FIRKIN_PYTHON} has no pytest and pytest-timeout, which the tests need: tools/bootstrap test installs them in .venv")
endif()
function(firkin_python_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "FULL" "LABELS")
  list(TRANSFORM arg_UNPARSED_ARGUMENTS PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  firkin_test_entry(${name} FULL ${arg_FULL} LABELS ${arg_LABELS} ENVIRONMENT "FIRKIN_BUILD=${PROJECT_BINARY_DIR}"
    COMMAND ${FIRKIN_PYTHON} -m pytest -v --durations=5 -p no:cacheprovider ${arg_UNPARSED_ARGUMENTS} IN_FIRST -m "not full" IN_FULL -m full)
  set(all_skipped "=== [0-9]+ skipped(, [0-9]+ deselected)?(, [0-9]+ warnings?)? in ")
  set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "${all_skipped}")
  if(arg_FULL)
    set_tests_properties(${name}.full PROPERTIES SKIP_REGULAR_EXPRESSION "${all_skipped}")
  endif()
endfunction()

# How tests are compiled: most of a test's time is its compilation, so not optimised, and with precompiled headers. These are only taken with
# the options and definitions that they were made with. With one, g++ 12 warns of its own std::string (GCC bug 105651).
add_library(firkin_test_options INTERFACE)
target_link_libraries(firkin_test_options INTERFACE GTest::gmock firkin_fmt)
target_compile_options(firkin_test_options INTERFACE
  $<$<CONFIG:Release>:-O0> $<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds;-Wno-restrict;-Wno-stringop-overflow>)

# main(), and what every test without LibTorch includes.
add_library(firkin_test_main STATIC tests/main.cpp)
target_link_libraries(firkin_test_main PUBLIC GTest::gmock PRIVATE firkin_test_options nlohmann_json::nlohmann_json)
target_precompile_headers(firkin_test_main PRIVATE <gmock/gmock.h> <fmt/format.h> <nlohmann/json.hpp>)
function(firkin_light_test_options target)
  target_link_libraries(${target} PRIVATE firkin_test_options)
  target_precompile_headers(${target} REUSE_FROM firkin_test_main)
endfunction()

if(FIRKIN_WITH_TORCH)
  firkin_torch_precompiled(firkin_torch_test_pch ${PROJECT_SOURCE_DIR}/tests/torch.h)
  target_link_libraries(firkin_torch_test_pch PRIVATE firkin_test_options firkin_base)
endif()
function(firkin_torch_test_options target)
  target_link_libraries(${target} PRIVATE firkin_test_options)
  target_precompile_headers(${target} REUSE_FROM firkin_torch_test_pch)
endfunction()

# A test program: GoogleTest, and one ctest entry for the whole of it, or with EACH_FILE one for each of its files NAME_test.cpp, whose tests
# share a process. FULL: the files with suites of the second tier.
function(firkin_test_program target prefix)
  cmake_parse_arguments(PARSE_ARGV 2 arg "EACH_FILE" "" "LABELS;FULL")
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  target_link_libraries(${target} PRIVATE firkin_test_main)
  set(common LABELS ${arg_LABELS} ENVIRONMENT OMP_NUM_THREADS=1 IN_FIRST --first IN_FULL --full)
  if(NOT arg_EACH_FILE)
    list(LENGTH arg_FULL full)
    firkin_test_entry(${prefix} FULL ${full} ${common} COMMAND ${target})
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "_test\\.cpp$")
  foreach(source IN LISTS sources)
    string(REPLACE "_test.cpp" "" file ${source})
    list(FIND arg_FULL ${source} place)
    math(EXPR full "${place} + 1")
    firkin_test_entry(${prefix}.${file} FULL ${full} ${common} COMMAND ${target} --file=${source})
  endforeach()
endfunction()

function(firkin_test name)
  cmake_parse_arguments(arg "TORCH;COMPUTES" "" "SOURCES;DEPENDS;FULL" ${ARGN})
  add_executable(${name}_test ${arg_SOURCES})
  target_link_libraries(${name}_test PRIVATE firkin_${name} firkin_warnings firkin_fmt)
  foreach(module IN LISTS arg_DEPENDS)
    target_link_libraries(${name}_test PRIVATE firkin_${module})
  endforeach()
  # Not all of ddp's in one, which would be compiled last, and alone.
  set_target_properties(${name}_test PROPERTIES UNITY_BUILD_BATCH_SIZE 7)
  if(arg_TORCH)
    firkin_torch_test_options(${name}_test)
    firkin_test_program(${name}_test ${name} EACH_FILE LABELS ${name} FULL ${arg_FULL})
  else()
    target_compile_definitions(${name}_test PRIVATE FIRKIN_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
    if(arg_COMPUTES)  # for longer than its compilation takes, also in what the linker takes from it for the module's own
      target_compile_options(${name}_test PRIVATE $<$<CONFIG:Release>:-O1>)
    else()
      firkin_light_test_options(${name}_test)
    endif()
    firkin_test_program(${name}_test ${name} LABELS ${name} FULL ${arg_FULL})
  endif()
endfunction()
