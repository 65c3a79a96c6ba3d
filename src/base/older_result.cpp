#include "firkin/base/output_folder.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <set>
#include <system_error>

#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "firkin/base/json_text.h"

namespace firkin {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOlder = "older";

// What the folder's results.json says it was written with; nothing where there is none, or one that says nothing.
std::vector<std::string> listed_files(const fs::path& results) {
  try {
    const std::string text = read_text_file(results, kLongestJsonLine, "a results.json");
    return parse_json(text, results.string(), "a results.json").at("files").get<std::vector<std::string>>();
  } catch (const std::exception&) {
    return {};
  }
}

// Names in `folder` that are to be moved, results.json last: what is left of a move that was interrupted is found by the next.
std::vector<fs::path> names_to_keep(const fs::path& folder, const std::vector<std::string>& files, const std::vector<fs::path>& inputs) {
  std::set<fs::path> names;
  const auto add = [&](const std::string& file) {
    const fs::path name = fs::path(file).filename();
    const bool is_entry = !name.empty() && name != "." && name != ".." && name != kOlder;
    std::error_code ignored;
    if (is_entry && fs::exists(fs::symlink_status(folder / name, ignored))) names.insert(name);
  };
  const auto is_input = [&](const std::string& file) {
    const fs::path listed = folder / fs::path(file).filename();
    std::error_code ignored;
    return std::ranges::any_of(inputs, [&](const fs::path& input) { return fs::equivalent(input, listed, ignored); });
  };
  if (std::ranges::find(files, kResultsFile) != files.end()) {
    for (const std::string& file : listed_files(folder / kResultsFile)) {
      if (!is_input(file)) add(file);
    }
  }
  std::ranges::for_each(files, add);
  std::vector<fs::path> result(names.begin(), names.end());
  std::ranges::stable_partition(result, [](const fs::path& name) { return name != kResultsFile; });
  return result;
}

// A new folder in `older`, numbered one more than the last.
fs::path make_next_folder(const fs::path& older) {
  std::error_code error;
  fs::create_directories(older, error);
  int last = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(older, error)) {
    const std::string name = entry.path().filename().string();
    int number = 0;
    const auto [end, failed] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (failed == std::errc() && end == name.data() + name.size()) last = std::max(last, number);
  }
  fs::path next = older / std::to_string(last + 1);
  while (!error && mkdir(next.c_str(), 0777) != 0) {
    if (errno != EEXIST) error.assign(errno, std::generic_category());
    next = older / std::to_string(++last + 1);
  }
  if (error) throw RuntimeError(fmt::format("{}: cannot be made, so the older result stays: {}", older.string(), error.message()));
  return next;
}

}  // namespace

std::optional<fs::path> keep_older_result(const fs::path& folder, const std::vector<std::string>& files,
                                          const std::vector<fs::path>& inputs) {
  const std::vector<fs::path> names = names_to_keep(folder, files, inputs);
  if (names.empty()) return std::nullopt;
  const fs::path kept = make_next_folder(folder / kOlder);
  for (const fs::path& name : names) {
    std::error_code error;
    fs::rename(folder / name, kept / name, error);
    if (error && error != std::errc::no_such_file_or_directory) {  // that one was moved by another process
      throw RuntimeError(fmt::format("{}: cannot be moved to {}: {}", (folder / name).string(), kept.string(), error.message()));
    }
  }
  return kept;
}

}  // namespace firkin
