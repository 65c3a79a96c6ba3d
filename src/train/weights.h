// Weights as other tools read and write them: files of the safetensors format (formats.h), and GPT-2's names.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>

#include "model/transformer.h"

namespace firkin {

// By name; float32, float64, bfloat16, float16 or int64.
using TensorsByName = std::map<std::string, at::Tensor>;

// The file is whole or not there. Throws RuntimeError when it cannot be written.
void write_safetensors(const std::filesystem::path& file, const TensorsByName& tensors);

// Throws InputError that names the file when it is no such file, is cut short, or a tensor's place in it is not one.
TensorsByName read_safetensors(const std::filesystem::path& file);

// GPT-2: the names and layouts of the published checkpoints, as Hugging Face's transformers has them ("h.0.attn.c_attn.weight", stored
// [in, out]); CS336: ours. Tied heads are stored once.
TensorsByName exported_weights(const TransformerLM& model, const TransformerConfig& config);

// Into the model, from those names, with or without "transformer." before them, or from ours; converted to the model's dtype. Tensors that
// the model does not have ("attn.bias", a mask; "lm_head.weight" where it is tied) are left out. Throws InputError, which names `file` and
// the tensor, when one is missing or has another shape.
void import_weights(const TensorsByName& weights, const TransformerConfig& config, const std::filesystem::path& file, TransformerLM& model);

}  // namespace firkin
