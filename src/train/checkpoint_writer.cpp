#include "train/checkpoint_writer.h"

#include <fmt/format.h>

#include <chrono>
#include <exception>
#include <memory>
#include <utility>

#include "train/checkpoint_folder.h"

namespace firkin {
namespace {

std::string write_and_tidy(const std::filesystem::path& folder, int64_t keep, const Checkpoint& checkpoint) {
  try {
    write_checkpoint(checkpoint_path(folder, checkpoint.head.step), checkpoint);
    remove_old_checkpoints(folder, keep);
    return "";
  } catch (const std::exception& error) {
    const std::vector<StoredCheckpoint> good = list_checkpoints(folder);
    const std::string last = good.empty() ? "there is none before it" : fmt::format("the last one is {}", good.back().file.string());
    return fmt::format("the checkpoint of step {} is not written; {}: {}", checkpoint.head.step, last, error.what());
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

}  // namespace firkin
