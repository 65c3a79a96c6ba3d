// Trains a small language model on the bytes of a text, under any strategy, and goes on where a killed run stopped.
//
//   train --data book.txt --ranks 2
//   torchrun --nproc-per-node 2 --max-restarts 3 --no-python train --data book.txt --resume
//
// The samples of a step depend on the seed and the step alone, not on the number of ranks: any number that divides --batch trains the same
// model, and may take up the checkpoint of any other. On the same number, losses after --resume are those of an undisturbed run, bit by
// bit.
#include <torch/torch.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "firkin/base/units.h"
#include "firkin/comm/run_ranks.h"
#include "firkin/ddp/await_parameters.h"
#include "firkin/ddp/data_parallel.h"
#include "firkin/ddp/overlapped_optimizer.h"
#include "firkin/ddp/sharded_optimizer.h"

namespace {

struct Settings {
  std::string data;
  std::string out = "train-out";
  std::string strategy = "bucketed";
  std::string cap = "1MiB";
  int64_t steps = 300;
  int64_t checkpoint_every = 50;
  int64_t batch = 16;     // sequences a step, of all ranks together
  int64_t sequence = 64;  // bytes
  int64_t width = 128;
  int64_t layers = 4;
  int64_t seed = 1;
  bool resume = false;
};

constexpr const char* kUsage =
    "expected --data FILE, and maybe --strategy naive|flat|overlap|bucketed|ordered|sharded, --cap 1MiB, --steps N, --checkpoint-every N, "
    "--out FOLDER, --resume, --batch N, --sequence N, --width N, --layers N, --seed N, --ranks N";

int64_t parse_count(const std::string& flag, const std::string& text) {
  int64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || end != text.data() + text.size() || count < 1 || count > 1'000'000'000) {
    throw firkin::InputError(flag + " " + text + ": expected a whole number from 1 to 1000000000");
  }
  return count;
}

Settings parse_settings(const std::vector<std::string>& words) {
  Settings settings;
  const std::map<std::string, std::string*> texts = {
      {"--data", &settings.data}, {"--out", &settings.out}, {"--strategy", &settings.strategy}, {"--cap", &settings.cap}};
  const std::map<std::string, int64_t*> counts = {{"--steps", &settings.steps}, {"--checkpoint-every", &settings.checkpoint_every},
                                                  {"--batch", &settings.batch}, {"--sequence", &settings.sequence},
                                                  {"--width", &settings.width}, {"--layers", &settings.layers},
                                                  {"--seed", &settings.seed}};
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& flag = words[i];
    if (flag == "--resume") {
      settings.resume = true;
    } else if ((texts.contains(flag) || counts.contains(flag)) && i + 1 < words.size()) {
      const std::string& value = words[++i];
      if (texts.contains(flag))
        *texts.at(flag) = value;
      else
        *counts.at(flag) = parse_count(flag, value);
    } else {
      throw firkin::InputError("'" + flag + "': " + kUsage);
    }
  }
  if (settings.data.empty()) throw firkin::InputError(std::string("no --data: ") + kUsage);
  return settings;
}

// ---- The model: a decoder in the manner of GPT-2, whose tokens are bytes.

constexpr int64_t kTokens = 256;
constexpr int64_t kHeadWidth = 32;

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width) {
    using namespace torch::nn;
    attention_norm = register_module("attention_norm", LayerNorm(LayerNormOptions({width})));
    attention_in = register_module("attention_in", Linear(width, 3 * width));
    attention_out = register_module("attention_out", Linear(width, width));
    mlp_norm = register_module("mlp_norm", LayerNorm(LayerNormOptions({width})));
    mlp_in = register_module("mlp_in", Linear(width, 4 * width));
    mlp_out = register_module("mlp_out", Linear(4 * width, width));
  }

  at::Tensor forward(const at::Tensor& x) {
    firkin::await_parameters(*this);  // lets `ordered` and `sharded` communicate behind the blocks before this one
    const auto heads = [](const at::Tensor& part) { return part.unflatten(-1, {-1, kHeadWidth}).transpose(1, 2); };
    const std::vector<at::Tensor> parts = attention_in->forward(attention_norm->forward(x)).chunk(3, -1);
    const at::Tensor attended = at::scaled_dot_product_attention(heads(parts[0]), heads(parts[1]), heads(parts[2]), /*attn_mask=*/{},
                                                                 /*dropout_p=*/0.0, /*is_causal=*/true);
    const at::Tensor y = x + attention_out->forward(attended.transpose(1, 2).flatten(2));
    return y + mlp_out->forward(at::gelu(mlp_in->forward(mlp_norm->forward(y))));
  }

  torch::nn::LayerNorm attention_norm = nullptr, mlp_norm = nullptr;
  torch::nn::Linear attention_in = nullptr, attention_out = nullptr, mlp_in = nullptr, mlp_out = nullptr;
};
TORCH_MODULE(Block);

struct LanguageModelImpl : torch::nn::Module {
  explicit LanguageModelImpl(const Settings& settings) {
    using namespace torch::nn;
    tokens = register_module("tokens", Embedding(kTokens, settings.width));
    positions = register_module("positions", Embedding(settings.sequence, settings.width));
    for (int64_t i = 0; i < settings.layers; ++i) blocks.push_back(register_module("block" + std::to_string(i), Block(settings.width)));
    norm = register_module("norm", LayerNorm(LayerNormOptions({settings.width})));
    head = register_module("head", Linear(settings.width, kTokens));
  }

  // rows: bytes [batch, sequence + 1]. The mean loss in nats of predicting each byte from those before it.
  at::Tensor loss(const at::Tensor& rows) {
    const int64_t length = rows.size(1) - 1;
    firkin::await_parameters(*tokens);
    firkin::await_parameters(*positions);
    at::Tensor x = tokens->forward(rows.narrow(1, 0, length)) + positions->forward(at::arange(length, rows.options()));
    for (Block& block : blocks) x = block->forward(x);
    firkin::await_parameters(*norm);
    firkin::await_parameters(*head);
    return at::cross_entropy_loss(head->forward(norm->forward(x)).flatten(0, 1), rows.narrow(1, 1, length).flatten());
  }

  torch::nn::Embedding tokens = nullptr, positions = nullptr;
  std::vector<Block> blocks;
  torch::nn::LayerNorm norm = nullptr;
  torch::nn::Linear head = nullptr;
};
TORCH_MODULE(LanguageModel);

// Rows [first, first + count) of a step's batch: int64 [count, sequence + 1], from places in the text that seed, step and row alone decide.
at::Tensor rows_of_step(const std::string& text, const Settings& settings, int64_t step, int64_t first, int64_t count) {
  at::Tensor rows = at::empty({count, settings.sequence + 1}, at::kLong);
  auto values = rows.accessor<int64_t, 2>();
  for (int64_t row = 0; row < count; ++row) {
    std::seed_seq seeds{settings.seed, step, first + row};
    const size_t place = std::mt19937_64(seeds)() % (text.size() - static_cast<size_t>(settings.sequence));
    for (int64_t i = 0; i <= settings.sequence; ++i) values[row][i] = static_cast<unsigned char>(text[place + static_cast<size_t>(i)]);
  }
  return rows;
}

// ---- Checkpoints: one file, which each new one replaces.

struct Progress {
  int64_t step = 0;                  // steps done
  std::vector<int64_t> ready_order;  // DataParallelOptions'; with it, more than two ranks sum in the order of the undisturbed run
};

std::filesystem::path checkpoint_file(const Settings& settings) {
  return std::filesystem::path(settings.out) / "checkpoint.pt";
}

// What has to be equal for a run to go on from a checkpoint.
std::string description(const Settings& settings, const std::string& text) {
  std::ostringstream words;
  words << "batch " << settings.batch << ", sequence " << settings.sequence << ", width " << settings.width << ", layers "
        << settings.layers << ", seed " << settings.seed << ", " << text.size() << " bytes of text";
  return words.str();
}

void save(const std::filesystem::path& file, const std::string& about, const Progress& progress, const LanguageModel& model,
          const torch::optim::Optimizer& optimizer) {
  torch::serialize::OutputArchive archive, parameters, state;
  model->save(parameters);
  optimizer.save(state);
  archive.write("about", c10::IValue(about));
  archive.write("step", c10::IValue(progress.step));
  archive.write("ready_order", c10::IValue(progress.ready_order));
  archive.write("model", parameters);
  archive.write("optimizer", state);
  std::ostringstream content;
  archive.save_to(content);
  firkin::write_file_atomically(file, content.str());  // a kill at any moment leaves the file before or this one
}

// Rank 0's file on every rank; the others need not see its disk. Empty: there is none. Collective.
std::string share_file(const firkin::ProcessGroup& group, const std::filesystem::path& file) {
  std::string content;
  if (group.rank == 0 && std::filesystem::exists(file)) content = firkin::read_file(file);
  const at::Tensor size = at::full({1}, static_cast<int64_t>(content.size()), at::kLong);
  firkin::broadcast(group, {size});
  content.resize(static_cast<size_t>(size.item<int64_t>()));
  if (!content.empty()) firkin::broadcast(group, {at::from_blob(content.data(), {size.item<int64_t>()}, at::kByte)});
  return content;
}

Progress load(const firkin::ProcessGroup& group, const std::filesystem::path& file, const std::string& about, LanguageModel& model,
              torch::optim::Optimizer& optimizer) {
  const std::string content = share_file(group, file);
  if (content.empty()) return {};
  torch::serialize::InputArchive archive, parameters, state;
  std::istringstream stream(content);
  archive.load_from(stream, group.device);
  c10::IValue their_about, step, ready_order;
  archive.read("about", their_about);
  if (their_about.toStringRef() != about) {
    throw firkin::InputError(file.string() + ": of another training (" + their_about.toStringRef() + "); expected " + about);
  }
  archive.read("step", step);
  archive.read("ready_order", ready_order);
  archive.read("model", parameters);
  archive.read("optimizer", state);
  model->load(parameters);
  optimizer.load(state);
  if (group.rank == 0) std::printf("continuing from %s, %ld steps done\n", file.c_str(), static_cast<long>(step.toInt()));
  return {step.toInt(), ready_order.toIntVector()};
}

// ---- The training.

// Up in twenty steps, and then constant.
void set_learning_rate(torch::optim::Optimizer& optimizer, int64_t step) {
  constexpr double kPeak = 2e-3, kWarmUp = 20;
  for (auto& parameters : optimizer.param_groups())
    parameters.options().set_lr(kPeak * std::min(1.0, static_cast<double>(step + 1) / kWarmUp));
}

double mean_over_ranks(const firkin::ProcessGroup& group, double value) {
  double sum = 0;
  for (const std::vector<double>& rank : firkin::all_gather(group, {value})) sum += rank[0];
  return sum / group.size;
}

int train(const firkin::ProcessGroup& group, const std::vector<std::string>& arguments) {
  const Settings settings = parse_settings(arguments);
  if (settings.batch % group.size != 0) throw firkin::InputError("--batch: expected a multiple of the number of ranks");
  if (settings.width % kHeadWidth != 0) throw firkin::InputError("--width: expected a multiple of 32");
  const std::string text = firkin::read_file(settings.data);
  if (text.size() <= static_cast<size_t>(settings.sequence)) throw firkin::InputError(settings.data + ": shorter than a --sequence");

  torch::manual_seed(static_cast<uint64_t>(settings.seed));
  LanguageModel model(settings);
  model->to(group.device);
  // The optimiser of all parameters. Under `sharded` it only carries the whole state to and from checkpoints.
  torch::optim::AdamW optimizer(model->parameters());
  const std::string about = description(settings, text);
  Progress progress = settings.resume ? load(group, checkpoint_file(settings), about, model, optimizer) : Progress{};

  firkin::DataParallelOptions options;
  options.strategy = firkin::find_strategy(settings.strategy);
  options.cap.cap_bytes = firkin::parse_size(settings.cap, "--cap");
  options.ready_order = progress.ready_order;
  firkin::DataParallel ddp(*model, group, options);
  std::optional<firkin::ShardedOptimizer> sharded;        // steps this rank's part of every bucket
  std::optional<firkin::OverlappedOptimizer> overlapped;  // steps everything: under `ordered` behind the next forward
  if (options.strategy.shards) {
    sharded.emplace(ddp, [](const std::vector<firkin::NamedTensor>& parts) {
      return std::make_unique<torch::optim::AdamW>(firkin::tensors_of(parts));
    });
    sharded->load_from(optimizer);
    optimizer.state().clear();
  } else {
    overlapped.emplace(ddp, optimizer);
  }

  const int64_t share = settings.batch / group.size;
  while (progress.step < settings.steps) {
    const auto began = std::chrono::steady_clock::now();
    set_learning_rate(sharded ? sharded->optimizer() : optimizer, progress.step);
    const at::Tensor rows = rows_of_step(text, settings, progress.step, group.rank * share, share).to(group.device);
    optimizer.zero_grad();
    const at::Tensor loss = model->loss(rows);
    loss.backward();
    sharded ? sharded->step() : overlapped->step();
    const double mean = mean_over_ranks(group, loss.item<double>());
    const firkin::DataParallelStats stats = ddp.stats();
    if (group.rank == 0) {
      std::printf("step %ld: loss %.9f, %.1f ms, %.1f of them waiting for gradients\n", static_cast<long>(progress.step), mean,
                  1e3 * firkin::seconds_since(began), 1e3 * (stats.exposed_wait_s + stats.forward_wait_s));
      std::fflush(stdout);
    }
    ++progress.step;
    if (progress.step % settings.checkpoint_every != 0 && progress.step != settings.steps) continue;
    ddp.drain();                                      // `ordered` and `sharded` may still have parameters in flight
    if (sharded) sharded->gather_into(optimizer, 0);  // every rank's part of the state, on rank 0
    progress.ready_order = ddp.ready_order();
    if (group.rank == 0) save(checkpoint_file(settings), about, progress, model, optimizer);
    if (sharded) optimizer.state().clear();
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return firkin::run_ranks(argc, argv, train);
}
