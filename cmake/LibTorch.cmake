# LibTorch as one target, firkin_libtorch, from the Python wheel or from an unpacked LibTorch.
#
# It is searched in this order: -DFIRKIN_LIBTORCH=DIR (with include/ and lib/), the Python in $FIRKIN_PYTHON, the
# project's .venv. find_package(Torch) would not do, because the CUDA wheels' package file asks for a whole CUDA
# toolkit, which Firkin does not need. This file is installed with the package, so that projects that use Firkin find
# LibTorch too.

if(NOT FIRKIN_TORCH_VERSIONS)
  set(FIRKIN_TORCH_VERSIONS 2.11 2.12 2.13 2.14 2.15)
endif()

include(${CMAKE_CURRENT_LIST_DIR}/FirkinPython.cmake)

if(NOT FIRKIN_LIBTORCH)
  set(print_torch "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0], end='')")
  execute_process(COMMAND ${FIRKIN_PYTHON} -c "${print_torch}" OUTPUT_VARIABLE torch_dir RESULT_VARIABLE failed ERROR_QUIET)
  if(failed AND SKBUILD)
    # pip hides an environment's own packages from a build by a variable, which -E ignores.
    execute_process(COMMAND ${FIRKIN_PYTHON} -E -c "${print_torch}" OUTPUT_VARIABLE torch_dir RESULT_VARIABLE failed ERROR_QUIET)
  endif()
  if(failed)
    message(FATAL_ERROR "no LibTorch: ${FIRKIN_PYTHON} has no torch; set FIRKIN_PYTHON or -DFIRKIN_LIBTORCH=DIR")
  endif()
  set(FIRKIN_LIBTORCH ${torch_dir} CACHE PATH "folder with LibTorch's include/ and lib/")
endif()

file(STRINGS ${FIRKIN_LIBTORCH}/include/torch/headeronly/version.h version_lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
string(REGEX REPLACE "[^0-9;]" "" version_numbers "${version_lines}")
list(JOIN version_numbers "." FIRKIN_TORCH_VERSION)
string(REGEX MATCH "^[0-9]+\\.[0-9]+" torch_series "${FIRKIN_TORCH_VERSION}")
if(NOT torch_series IN_LIST FIRKIN_TORCH_VERSIONS)
  list(JOIN FIRKIN_TORCH_VERSIONS ", " expected)
  set(with_this_one "try this one with -DFIRKIN_TORCH_VERSIONS=${torch_series}")
  if(CMAKE_FIND_PACKAGE_NAME)  # Firkin is compiled already, with the one series that its package file sets
    set(with_this_one "build Firkin from source with this one")
  endif()
  message(FATAL_ERROR "LibTorch ${FIRKIN_TORCH_VERSION} in ${FIRKIN_LIBTORCH}: expected ${expected}; name another with FIRKIN_PYTHON or "
    "-DFIRKIN_LIBTORCH=DIR, or ${with_this_one}")
endif()
message(STATUS "LibTorch ${FIRKIN_TORCH_VERSION} in ${FIRKIN_LIBTORCH}")

add_library(firkin_libtorch INTERFACE)
target_include_directories(firkin_libtorch SYSTEM INTERFACE
  ${FIRKIN_LIBTORCH}/include ${FIRKIN_LIBTORCH}/include/torch/csrc/api/include)
target_link_directories(firkin_libtorch INTERFACE ${FIRKIN_LIBTORCH}/lib)
target_link_options(firkin_libtorch INTERFACE -Wl,-rpath,${FIRKIN_LIBTORCH}/lib)
# Backends register themselves in static initialisers, so the linker must keep libraries of which no symbol is used.
set(FIRKIN_TORCH_LIBRARIES torch torch_cpu c10)
foreach(library torch_cuda c10_cuda)
  if(EXISTS ${FIRKIN_LIBTORCH}/lib/lib${library}.so)
    list(APPEND FIRKIN_TORCH_LIBRARIES ${library})
  endif()
endforeach()
target_link_libraries(firkin_libtorch INTERFACE -Wl,--no-as-needed ${FIRKIN_TORCH_LIBRARIES} -Wl,--as-needed)
target_compile_definitions(firkin_libtorch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)

# firkin_nccl: headers and definitions for the one file that uses NCCL, if LibTorch is a CUDA build. The headers come
# from the wheels that the CUDA build of torch depends on, except for two parts that these lack (crt/ and cccl/), or
# from a CUDA toolkit. If some are missing, everything but NCCL is built.
if(EXISTS ${FIRKIN_LIBTORCH}/lib/libtorch_cuda.so)
  unset(nccl_lacks)
  get_filename_component(torch_site ${FIRKIN_LIBTORCH} DIRECTORY)
  file(GLOB nvidia_folders ${torch_site}/nvidia/cu[0-9]* ${torch_site}/nvidia/cuda_runtime)
  file(GLOB nvidia_libraries ${torch_site}/nvidia/*/lib)
  foreach(folder IN LISTS nvidia_libraries)  # LibTorch's own libraries depend on these
    target_link_options(firkin_libtorch INTERFACE -Wl,-rpath-link,${folder})
  endforeach()
  list(TRANSFORM nvidia_folders APPEND /include OUTPUT_VARIABLE nvidia_headers)
  set(toolkit_headers /usr/local/cuda/include)
  find_path(FIRKIN_CUDA_INCLUDE cuda_runtime_api.h HINTS ${nvidia_headers} PATHS ${toolkit_headers})
  find_path(FIRKIN_CUDA_CRT_INCLUDE crt/host_defines.h HINTS ${nvidia_headers} ${FIRKIN_CUDA_INCLUDE} PATHS ${toolkit_headers})
  find_path(FIRKIN_CUDA_CCCL_INCLUDE cuda/std/utility HINTS ${nvidia_headers} ${FIRKIN_CUDA_INCLUDE} PATHS ${toolkit_headers} PATH_SUFFIXES cccl)
  find_path(FIRKIN_NCCL_INCLUDE nccl.h HINTS ${torch_site}/nvidia/nccl/include PATHS ${toolkit_headers})
  find_library(FIRKIN_CUDART NAMES libcudart.so.13 libcudart.so.12 cudart HINTS ${nvidia_libraries} PATHS /usr/local/cuda/lib64)
  foreach(part CUDA_INCLUDE CUDA_CRT_INCLUDE CUDA_CCCL_INCLUDE NCCL_INCLUDE CUDART)
    if(NOT FIRKIN_${part})
      list(APPEND nccl_lacks FIRKIN_${part})
    endif()
  endforeach()
  if(nccl_lacks)
    message(STATUS "NCCL is left out: not found: ${nccl_lacks} (docs/gpu.md)")
  else()
    message(STATUS "NCCL: ${FIRKIN_NCCL_INCLUDE}")
    add_library(firkin_nccl INTERFACE)
    target_include_directories(firkin_nccl SYSTEM INTERFACE
      ${FIRKIN_CUDA_INCLUDE} ${FIRKIN_CUDA_CRT_INCLUDE} ${FIRKIN_CUDA_CCCL_INCLUDE} ${FIRKIN_NCCL_INCLUDE})
    target_compile_definitions(firkin_nccl INTERFACE USE_C10D_NCCL)
    get_filename_component(cudart_folder ${FIRKIN_CUDART} DIRECTORY)
    target_link_libraries(firkin_libtorch INTERFACE ${FIRKIN_CUDART})  # inline functions of LibTorch's headers call it
    target_link_options(firkin_libtorch INTERFACE -Wl,-rpath,${cudart_folder})
  endif()
endif()
