# One precompiled header for every module that uses LibTorch: target firkin_torch_pch.

# torch/torch.h costs about 25 s to compile; every module that uses LibTorch shares this one precompiled header.
file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/torch_pch.cpp CONTENT "// Only the precompiled header of this target is used.\n")
function(firkin_torch_precompiled target)
  add_library(${target} OBJECT ${PROJECT_BINARY_DIR}/torch_pch.cpp)
  target_link_libraries(${target} PRIVATE firkin_libtorch firkin_fmt)
  target_precompile_headers(${target} PRIVATE <torch/torch.h> <torch/csrc/distributed/c10d/ProcessGroup.hpp>)
endfunction()
firkin_torch_precompiled(firkin_torch_pch)
