// Weights as other tools read and write them: files of the safetensors format (safetensors_header.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>

namespace firkin {

// By name; float32, float64, bfloat16, float16 or int64.
using TensorsByName = std::map<std::string, at::Tensor>;

// The file is whole or not there. Throws RuntimeError when it cannot be written.
void write_safetensors(const std::filesystem::path& file, const TensorsByName& tensors);

// Throws InputError that names the file when it is no such file, is cut short, or a tensor's place in it is not one.
TensorsByName read_safetensors(const std::filesystem::path& file);

}  // namespace firkin
