# Makes a target of a module (a folder of src/). Its tests: FirkinTest.cmake.
#
#   firkin_module(plan SOURCES cost_curve.cpp timeline.cpp DEPENDS base)        -> target firkin_plan, alias firkin::plan
#   firkin_module(ddp TORCH SOURCES ... DEPENDS plan comm)                      -> also sees LibTorch, precompiled

add_library(firkin_warnings INTERFACE)
target_compile_options(firkin_warnings INTERFACE -Wall -Wextra -Wshadow)

find_program(FIRKIN_CCACHE ccache)
if(FIRKIN_CCACHE AND PROJECT_IS_TOP_LEVEL AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # ccache accepts a precompiled header only with this sloppiness (its manual, "Precompiled headers"). With the base folder, copies of the
  # sources elsewhere share what was compiled.
  set(ccache_settings CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_BASEDIR=${PROJECT_SOURCE_DIR})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env ${ccache_settings} ${FIRKIN_CCACHE})
  add_compile_options($<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
endif()

function(firkin_module name)
  cmake_parse_arguments(arg "TORCH" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(firkin_${name} STATIC ${arg_SOURCES})
  add_library(firkin::${name} ALIAS firkin_${name})
  # include/ has the public headers, firkin/MODULE/FILE.h; src/ has the headers that are not installed, MODULE/FILE.h.
  target_include_directories(firkin_${name} PUBLIC ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  target_compile_features(firkin_${name} PUBLIC cxx_std_20)
  target_link_libraries(firkin_${name} PRIVATE firkin_warnings firkin_fmt)
  foreach(module IN LISTS arg_DEPENDS)
    target_link_libraries(firkin_${name} PUBLIC firkin_${module})
  endforeach()
  if(arg_TORCH)
    target_link_libraries(firkin_${name} PUBLIC firkin_libtorch)
    target_precompile_headers(firkin_${name} REUSE_FROM firkin_torch_pch)
  endif()
endfunction()
