#include "base/gpus.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <utility>

namespace firkin {
namespace {

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t");
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// "Model: \t\t NVIDIA H100 80GB HBM3" in a file of a GPU.
std::string model_in(const std::filesystem::path& file) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const std::string key = "Model:";
    if (line.starts_with(key)) return trimmed(line.substr(key.size()));
  }
  return "";
}

// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Tue Jan 21 ...": the first word with a digit and two dots, or one.
std::string version_in(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string line;
  if (!std::getline(in, line)) return "";
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    if (word.find('.') != std::string::npos && word.find_first_not_of("0123456789.") == std::string::npos) return word;
  }
  return "";
}

}  // namespace

GpuState gpu_state(const std::filesystem::path& root) {
  const std::filesystem::path driver = root / "proc/driver/nvidia";
  std::error_code ignored;
  std::vector<std::filesystem::path> places;
  for (const auto& entry : std::filesystem::directory_iterator(driver / "gpus", ignored)) places.push_back(entry.path());
  std::ranges::sort(places);
  GpuState state;
  for (const std::filesystem::path& place : places) {
    if (std::string model = model_in(place / "information"); !model.empty()) state.models.push_back(std::move(model));
  }
  state.driver = version_in(driver / "version");
  return state;
}

std::string describe(const GpuState& gpus) {
  std::string text;
  for (size_t i = 0; i < gpus.models.size(); ++i) {
    const auto same = static_cast<size_t>(std::ranges::count(gpus.models, gpus.models[i]));
    const bool is_first = std::ranges::find(gpus.models, gpus.models[i]) == gpus.models.begin() + static_cast<std::ptrdiff_t>(i);
    if (is_first) text += (text.empty() ? "" : ", ") + (same > 1 ? std::to_string(same) + " x " : "") + gpus.models[i];
  }
  if (!text.empty() && !gpus.driver.empty()) text += ", driver " + gpus.driver;
  return text;
}

}  // namespace firkin
