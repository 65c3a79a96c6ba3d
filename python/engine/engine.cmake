# firkin._engine: the modules comm and ddp, for one version of PyTorch. It uses PyTorch's pybind11 and not nanobind, so
# that tensors and process groups pass through without conversion.

if(NOT EXISTS ${FIRKIN_LIBTORCH}/version.py OR NOT EXISTS ${FIRKIN_LIBTORCH}/lib/libtorch_python.so)
  message(STATUS "firkin.DataParallel is not built: ${FIRKIN_LIBTORCH} is no PyTorch, only LibTorch")
  return()
endif()
file(STRINGS ${FIRKIN_LIBTORCH}/version.py version_line REGEX "^__version__ = ")
string(REGEX REPLACE ".*= *['\"]([^'\"]+)['\"].*" "\\1" engine_torch "${version_line}")

add_library(firkin_engine MODULE engine/engine.cpp)
set_target_properties(firkin_engine PROPERTIES PREFIX "" OUTPUT_NAME _engine SUFFIX .${Python_SOABI}.so LIBRARY_OUTPUT_DIRECTORY ${package})
target_compile_definitions(firkin_engine PRIVATE TORCH_EXTENSION_NAME=_engine)
target_link_libraries(firkin_engine PRIVATE firkin_ddp firkin_warnings firkin_fmt Python::Module torch_python)
target_link_options(firkin_engine PRIVATE -Wl,--exclude-libs,ALL)
target_precompile_headers(firkin_engine REUSE_FROM firkin_torch_pch)
file(WRITE ${package}/_engine_torch.py "# The PyTorch that firkin._engine was built for.\nVERSION = \"${engine_torch}\"\n")
add_dependencies(python_package firkin_engine)

install(TARGETS firkin_engine LIBRARY DESTINATION firkin COMPONENT python EXCLUDE_FROM_ALL)
install(FILES ${package}/_engine_torch.py DESTINATION firkin COMPONENT python EXCLUDE_FROM_ALL)
