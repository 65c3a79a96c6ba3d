# One precompiled header for every module that uses LibTorch: target firkin_torch_pch.

# torch/torch.h costs about 25 s to compile; every module that uses LibTorch shares this one precompiled header.
file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/torch_pch.cpp CONTENT "// Only the precompiled header of this target is used.\n")
add_library(firkin_torch_pch OBJECT ${PROJECT_BINARY_DIR}/torch_pch.cpp)
target_link_libraries(firkin_torch_pch PRIVATE firkin_libtorch firkin_fmt)
target_precompile_headers(firkin_torch_pch PRIVATE <torch/torch.h> <torch/csrc/distributed/c10d/ProcessGroup.hpp>)
