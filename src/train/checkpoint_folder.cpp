#include "train/checkpoint_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <system_error>

#include "firkin/base/error.h"

namespace firkin {
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

}  // namespace firkin
