// A transformer's weights under the names that others know them by.
#pragma once

#include <filesystem>

#include "model/transformer.h"
#include "train/safetensors.h"

namespace firkin {

// GPT-2: the names and layouts of the published checkpoints, as Hugging Face's transformers has them ("h.0.attn.c_attn.weight", stored
// [in, out]); CS336: ours. Tied heads are stored once.
TensorsByName exported_weights(const TransformerLM& model, const TransformerConfig& config);

// Into the model, from those names, with or without "transformer." before them, or from ours; converted to the model's dtype. Tensors that
// the model does not have ("attn.bias", a mask; "lm_head.weight" where it is tied) are left out. Throws InputError, which names `file` and
// the tensor, when one is missing or has another shape.
void import_weights(const TensorsByName& weights, const TransformerConfig& config, const std::filesystem::path& file, TransformerLM& model);

}  // namespace firkin
