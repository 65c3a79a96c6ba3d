#include "train/checkpoint.h"

#include <ATen/core/Dict.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <caffe2/serialize/inline_container.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <exception>
#include <fstream>
#include <functional>
#include <memory>
#include <string_view>
#include <system_error>

#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "firkin/ddp/module_parameters.h"

#include <torch/csrc/jit/serialization/export.h>
#include <torch/csrc/jit/serialization/import_read.h>
#include <torch/csrc/jit/serialization/pickler.h>

namespace firkin {
namespace {

using Write = std::function<void(std::string_view)>;

// Passes an archive on, less its last two bytes: the length of a comment that it does not have yet.
class ArchiveWithoutComment {
 public:
  explicit ArchiveWithoutComment(const Write& write) : write_(write) {}

  void append(std::string_view piece) {
    if (piece.size() < kLength) {
      kept_ += piece;
      pass_on_kept(kept_.size() - std::min(kept_.size(), kLength));
      return;
    }
    pass_on_kept(kept_.size());
    pass_on(piece.substr(0, piece.size() - kLength));
    kept_ = piece.substr(piece.size() - kLength);
  }

  void finish(const std::string& comment) {
    const size_t length = comment.size() + checksum_text(0).size();
    if (length > kMostComment)
      throw RuntimeError(fmt::format("a checkpoint's head of {} bytes; expected at most {}", length, kMostComment));
    pass_on(std::string{static_cast<char>(length & 0xff), static_cast<char>(length >> 8)});
    pass_on(comment);
    write_(checksum_text(checksum_));
  }

 private:
  static constexpr size_t kLength = 2;

  void pass_on_kept(size_t count) {
    pass_on(std::string_view(kept_).substr(0, count));
    kept_.erase(0, count);
  }
  void pass_on(std::string_view piece) {
    checksum_ = crc32(piece, checksum_);
    write_(piece);
  }

  const Write& write_;
  std::string kept_;
  uint32_t checksum_ = 0;
};

void write_archive(const Checkpoint& checkpoint, ArchiveWithoutComment& out) {
  c10::Dict<std::string, at::Tensor> tensors;
  for (const auto& [name, tensor] : checkpoint.tensors) tensors.insert(name, tensor);
  std::vector<char> pickled;
  const auto append = [&pickled](const char* bytes, size_t size) { pickled.insert(pickled.end(), bytes, bytes + size); };
  // Without TorchScript's tags for types, which torch.load() refuses.
  torch::jit::Pickler pickler(append, nullptr, nullptr, nullptr, nullptr, /*tag_aggregates=*/false);
  pickler.protocol();
  pickler.pushIValue(tensors);
  pickler.stop();
  // The writer's destructor writes as well: an exception must not pass through it.
  std::exception_ptr not_written;
  const auto write = [&](const void* bytes, size_t size) {
    try {
      if (!not_written) out.append({static_cast<const char*>(bytes), size});
    } catch (...) {
      not_written = std::current_exception();
    }
    return size;
  };
  {
    caffe2::serialize::PyTorchStreamWriter writer(write);
    torch::jit::writeArchiveAndTensors("data", pickled.data(), pickled.size(), pickler.tensorData(), writer);
  }
  if (not_written) std::rethrow_exception(not_written);
}

}  // namespace

void write_checkpoint(const std::filesystem::path& file, const Checkpoint& checkpoint) {
  write_file_atomically(file, [&](const Write& write) {
    ArchiveWithoutComment out(write);
    write_archive(checkpoint, out);
    out.finish(comment_of(checkpoint.head));
  });
}

Checkpoint read_checkpoint(const std::filesystem::path& file) {
  Checkpoint checkpoint{.head = read_checkpoint_head(file)};
  std::ifstream content(file, std::ios::binary);
  check_checksum(content, file);
  try {
    caffe2::serialize::PyTorchStreamReader reader(&content);  // takes one tensor at a time from the file
    const auto tensors =
        torch::jit::readArchiveAndTensors("data", "", "", std::nullopt, std::nullopt, std::nullopt, reader).toGenericDict();
    for (const auto& entry : tensors) checkpoint.tensors.emplace_back(entry.key().toStringRef(), entry.value().toTensor());
  } catch (const std::exception& error) {
    const std::string_view message = error.what();
    refuse_file(file, fmt::format("its tensors cannot be read: {}", message.substr(0, message.find('\n'))));
  }
  return checkpoint;
}

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kSuffix = ".ckpt";

std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return std::nullopt;
  const char* const first = name.data() + kPrefix.size();
  const char* const last = name.data() + name.size() - kSuffix.size();
  int64_t step = 0;
  const auto [end, error] = std::from_chars(first, std::max(first, last), step);
  if (error != std::errc() || end != last || step < 0) return std::nullopt;
  return step;
}

std::optional<double> held_loss_of(const fs::path& file) {
  try {
    return read_checkpoint_head(file).held_loss;
  } catch (const InputError&) {
    return std::nullopt;
  }
}

}  // namespace

fs::path checkpoint_path(const fs::path& folder, int64_t step) {
  return folder / fmt::format("{}{:08}{}", kPrefix, step, kSuffix);
}

std::vector<StoredCheckpoint> list_checkpoints(const fs::path& folder) {
  std::vector<StoredCheckpoint> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const auto step = step_of(entry.path().filename().string());
    if (step && entry.is_regular_file(error)) found.push_back({*step, entry.path()});
  }
  std::ranges::sort(found, {}, &StoredCheckpoint::step);
  return found;
}

std::optional<NewestCheckpoint> read_newest_checkpoint(const fs::path& folder, std::vector<std::string>& problems) {
  const std::vector<StoredCheckpoint> stored = list_checkpoints(folder);
  for (auto candidate = stored.rbegin(); candidate != stored.rend(); ++candidate) {
    try {
      return NewestCheckpoint{candidate->file, read_checkpoint(candidate->file)};
    } catch (const InputError& error) {
      problems.emplace_back(error.what());
    }
  }
  return std::nullopt;
}

void remove_old_checkpoints(const fs::path& folder, int64_t keep) {
  std::vector<StoredCheckpoint> stored = list_checkpoints(folder);
  if (static_cast<int64_t>(stored.size()) <= keep) return;
  fs::path best;
  double least = 0;
  for (const StoredCheckpoint& one : stored) {
    const std::optional<double> loss = held_loss_of(one.file);
    if (!loss || (!best.empty() && *loss >= least)) continue;
    best = one.file;
    least = *loss;
  }
  stored.resize(stored.size() - static_cast<size_t>(keep));
  for (const StoredCheckpoint& one : stored) {
    std::error_code ignored;
    if (one.file != best) fs::remove(one.file, ignored);
  }
}

void check_same_training(const nlohmann::json& stored, const nlohmann::json& ours, const fs::path& file) {
  for (const auto& [name, value] : ours.items()) {
    if (name == "data" || name == kOptimisationKey) continue;  // the same file may have another name; its size says more
    const nlohmann::json before = stored.is_object() && stored.contains(name) ? stored[name] : nlohmann::json();
    if (before == value) continue;
    refuse_file(
        file, fmt::format("{} was {} and is now {}; expected the same, or another --out for a new run", name, before.dump(), value.dump()));
  }
}

std::string changed_optimisation(const nlohmann::json& stored, const nlohmann::json& ours) {
  std::vector<std::string> changes;
  if (!stored.is_object() || !stored.contains(kOptimisationKey)) return "";  // of a version that did not say it
  for (const auto& [name, value] : ours[kOptimisationKey].items()) {
    const nlohmann::json before = stored[kOptimisationKey].value(name, nlohmann::json());
    if (before != value) changes.push_back(fmt::format("--{} {} (before: {})", name, value.dump(), before.dump()));
  }
  return fmt::format("{}", fmt::join(changes, ", "));
}

void remove_unfinished_checkpoints(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> unfinished;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    const size_t dot = name.rfind('.');  // of the temporary file's own suffix
    if (dot != std::string::npos && step_of(name.substr(0, dot))) unfinished.push_back(entry.path());
  }
  for (const fs::path& file : unfinished) fs::remove(file, error);
}

namespace {

std::string write_and_tidy(const std::filesystem::path& folder, int64_t keep, const Checkpoint& checkpoint) {
  try {
    write_checkpoint(checkpoint_path(folder, checkpoint.head.step), checkpoint);
    remove_old_checkpoints(folder, keep);
    return "";
  } catch (const std::exception& error) {
    const std::vector<StoredCheckpoint> good = list_checkpoints(folder);
    const std::string last = good.empty() ? "there is no earlier one" : fmt::format("the last one is {}", good.back().file.string());
    return fmt::format("the checkpoint of step {} was not written; {}: {}", checkpoint.head.step, last, error.what());
  }
}

}  // namespace

void CheckpointWriter::write(Checkpoint checkpoint) {
  wait();
  const auto shared = std::make_shared<const Checkpoint>(std::move(checkpoint));
  under_way_ = std::async(std::launch::async, [folder = folder_, keep = keep_, shared] { return write_and_tidy(folder, keep, *shared); });
}

void CheckpointWriter::wait() {
  if (under_way_.valid()) take_result();
}

std::optional<std::string> CheckpointWriter::problem() {
  if (under_way_.valid() && under_way_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) take_result();
  if (problem_.empty()) return std::nullopt;
  return std::exchange(problem_, "");
}

void CheckpointWriter::take_result() {
  std::string problem = under_way_.get();
  last_failed_ = !problem.empty();
  if (last_failed_) problem_ = std::move(problem);
}

namespace {

constexpr const char* kReadyOrder = "ready_order";
constexpr const char* kMaster = "master/";
constexpr const char* kOptimizerSteps = "optimizer_steps";  // of each trainable parameter

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

NamedTensors module_tensors(const torch::nn::Module& module) {
  NamedTensors result;
  for (const auto& item : module.named_parameters()) result.emplace_back("parameter/" + item.key(), item.value());
  for (const auto& item : module.named_buffers()) result.emplace_back("buffer/" + item.key(), item.value());
  return result;
}

at::Tensor copied(const at::Tensor& tensor) {
  return tensor.detach().to(at::kCPU, /*non_blocking=*/false, /*copy=*/true).contiguous();
}

const at::Tensor& tensor_of(const Checkpoint& checkpoint, const std::string& name) {
  for (const auto& [key, tensor] : checkpoint.tensors) {
    if (key == name) return tensor;
  }
  throw InputError(fmt::format("the checkpoint of step {} has no {}", checkpoint.head.step, name));
}

}  // namespace

NamedTensors copy_of_training(Trainer& trainer) {
  const at::NoGradGuard no_grad;
  const torch::nn::Module& module = trainer.module();
  NamedTensors tensors;
  for (const auto& [name, tensor] : module_tensors(module)) tensors.emplace_back(name, copied(tensor));
  std::vector<int64_t> steps;
  for (const auto& [name, parameter] : trainable_parameters(module)) {
    TrainingAdamW& optimizer = trainer.optimizer();
    if (optimizer.has_master(parameter)) tensors.emplace_back(kMaster + name, copied(optimizer.stepped(parameter)));
    const torch::optim::AdamWParamState* state = optimizer.state_of(parameter);
    steps.push_back(state != nullptr ? state->step() : 0);
    if (state == nullptr) continue;
    tensors.emplace_back("exp_avg/" + name, copied(state->exp_avg()));
    tensors.emplace_back("exp_avg_sq/" + name, copied(state->exp_avg_sq()));
  }
  tensors.emplace_back(kOptimizerSteps, at::tensor(steps, at::kLong));
  tensors.emplace_back(kReadyOrder, at::tensor(trainer.data_parallel().ready_order(), at::kLong));
  return tensors;
}

void load_parameters(const Checkpoint& checkpoint, torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  for (auto& [name, tensor] : module_tensors(module)) {
    const at::Tensor& stored = tensor_of(checkpoint, name);
    if (stored.sizes() != tensor.sizes()) {
      throw InputError(fmt::format("the checkpoint of step {}: {} has {} elements; expected {}", checkpoint.head.step, name, stored.numel(),
                                   tensor.numel()));
    }
    tensor.copy_(stored);
  }
}

Continuation share_continuation(const ProcessGroup& group, const torch::nn::Module& module, const Checkpoint* checkpoint) {
  const auto parameters = static_cast<int64_t>(trainable_parameters(module).size());
  const at::Tensor shared = at::zeros({parameters + 1}, at::kLong);
  if (checkpoint != nullptr) {
    shared[0] = checkpoint->head.step;
    shared.narrow(0, 1, parameters).copy_(tensor_of(*checkpoint, kReadyOrder));
  }
  broadcast(group, {shared});
  const int64_t* values = shared.const_data_ptr<int64_t>();
  return {.step = values[0], .ready_order = {values + 1, values + 1 + parameters}};
}

void continue_training(Trainer& trainer, const Continuation& continuation, const Checkpoint* checkpoint) {
  const at::NoGradGuard no_grad;
  const std::vector<NamedTensor> parameters = trainable_parameters(trainer.module());
  const at::Tensor steps = at::zeros({static_cast<int64_t>(parameters.size())}, at::kLong);
  if (checkpoint != nullptr) steps.copy_(tensor_of(*checkpoint, kOptimizerSteps));
  broadcast(trainer.group(), {steps});
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto& [name, parameter] = parameters[i];
    const auto shared_tensor = [&, &name = name, &parameter = parameter](const char* kind) {
      const at::Tensor shared = at::zeros_like(trainer.optimizer().stepped(parameter).detach(), at::MemoryFormat::Preserve);
      if (checkpoint != nullptr) shared.copy_(tensor_of(*checkpoint, kind + name));
      broadcast(trainer.group(), {shared});
      return shared;
    };
    if (trainer.optimizer().has_master(parameter)) trainer.optimizer().set_stepped(parameter, shared_tensor(kMaster));
    const int64_t step = steps[static_cast<int64_t>(i)].item<int64_t>();
    if (step == 0) continue;
    auto state = std::make_unique<torch::optim::AdamWParamState>();
    state->step(step);
    state->exp_avg(shared_tensor("exp_avg/"));
    state->exp_avg_sq(shared_tensor("exp_avg_sq/"));
    trainer.optimizer().set_state(parameter, std::move(state));
  }
  trainer.scatter_optimizer();
  trainer.continue_at(continuation.step);
}

}  // namespace firkin
