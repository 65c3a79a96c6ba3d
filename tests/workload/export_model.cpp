// Writes a small model's weights, tokens, logits, loss and gradients as raw little-endian files with a JSON manifest, for
// reference_test.py.
//   export_model FAMILY HEAD FOLDER       FAMILY: cs336 or gpt2, HEAD: tied or untied

#include <nlohmann/json.hpp>

#include "../torch.h"
#include "firkin/base/file.h"
#include "workload/transformer.h"

namespace {

using firkin::TransformerConfig;

void write_tensor(const std::filesystem::path& folder, const std::string& name, const at::Tensor& tensor, nlohmann::json& manifest) {
  const at::Tensor dense = tensor.detach().contiguous();
  firkin::write_file_atomically(folder / name, {static_cast<const char*>(dense.const_data_ptr()), dense.nbytes()});
  manifest["tensors"][name] = {{"shape", dense.sizes().vec()}, {"dtype", dense.scalar_type() == at::kLong ? "int64" : "float32"}};
}

void run(const std::string& family, bool tied, const std::filesystem::path& folder) {
  const TransformerConfig config{.family = firkin::family_from_name(family, "FAMILY"),
                                 .vocab_size = 61,
                                 .context_length = 20,
                                 .d_model = 48,
                                 .d_ff = 80,
                                 .num_layers = 3,
                                 .num_heads = 4,
                                 .tied = tied,
                                 .rope_theta = 500};
  torch::manual_seed(11);
  firkin::TransformerLM model(config);
  for (at::Tensor& p : model->parameters()) p.detach().add_(0.1 * at::randn_like(p));  // gains and biases that matter
  const at::Tensor window = at::randint(config.vocab_size, {3, 18}, at::kLong);
  const at::Tensor logits = model->forward(window.narrow(1, 0, 17));
  const at::Tensor loss = firkin::language_model_loss(logits, window.narrow(1, 1, 17));
  loss.backward();

  nlohmann::json manifest = {{"num_layers", config.num_layers}, {"num_heads", config.num_heads}, {"rope_theta", config.rope_theta}};
  write_tensor(folder, "window", window, manifest);
  write_tensor(folder, "logits", logits, manifest);
  write_tensor(folder, "loss", loss, manifest);
  for (const auto& item : model->named_parameters()) {
    write_tensor(folder, "weight:" + item.key(), item.value(), manifest);
    write_tensor(folder, "gradient:" + item.key(), item.value().grad(), manifest);
  }
  firkin::write_file_atomically(folder / "manifest.json", manifest.dump());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    fmt::print(stderr, "usage: export_model FAMILY HEAD FOLDER\n");
    return 2;
  }
  run(argv[1], std::string(argv[2]) == "tied", argv[3]);
}
