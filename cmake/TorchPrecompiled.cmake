# One precompiled header for every module that uses LibTorch: target firkin_torch_pch.
#
# It has only headers that take long to compile and that most modules include, because every file that uses a
# precompiled header instantiates its templates: with torch/torch.h that takes twice as long as with the two that
# modules need.
file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/torch_pch.cpp CONTENT "// Only the precompiled header of this target is used.\n")
function(firkin_torch_precompiled target)
  add_library(${target} OBJECT ${PROJECT_BINARY_DIR}/torch_pch.cpp)
  target_link_libraries(${target} PRIVATE firkin_libtorch firkin_fmt)
  target_precompile_headers(${target} PRIVATE ${ARGN} <torch/csrc/distributed/c10d/ProcessGroup.hpp>)
endfunction()
firkin_torch_precompiled(firkin_torch_pch <torch/nn/module.h> <torch/optim/optimizer.h>)
