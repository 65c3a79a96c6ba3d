#include "firkin/base/output_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "firkin/base/json_text.h"

namespace firkin {

namespace {

namespace fs = std::filesystem;

constexpr int kAttempts = 100;  // a process that takes away the folders that it made does so once
constexpr const char* kOlder = "older";
constexpr const char* kTrialName = ".firkin-check-XXXXXX";

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
  if (error) throw RuntimeError(fmt::format("{}: cannot be created, so the older result stays: {}", older.string(), error.message()));
  return next;
}

[[noreturn]] void throw_not_writable(const fs::path& folder, const std::string& what, int reason) {
  throw InputError(
      fmt::format("{} {}: {} cannot be written to: {}", what, folder.string(), fs::absolute(folder).string(), std::strerror(reason)));
}

// Writes a small file into `folder` and removes it. Returns 0 or errno.
int try_to_write(const fs::path& folder) {
  std::string name = (folder / kTrialName).string();
  const int file = mkostemp(name.data(), O_CLOEXEC);
  if (file < 0) return errno;
  const std::string block(4096, '\n');  // more than what some file systems hold within the file's own entry
  const ssize_t written = write(file, block.data(), block.size());
  int reason = written < 0 ? errno : 0;
  if (written >= 0 && written < static_cast<ssize_t>(block.size())) reason = ENOSPC;
  if (close(file) != 0 && reason == 0) reason = errno;
  unlink(name.c_str());
  return reason;
}

// "WHAT FOLDER", with which messages begin.
std::string prefix_of(const fs::path& folder, const std::string& what) {
  if (folder.empty()) throw InputError(fmt::format("{}: no name; expected a folder", what));
  return fmt::format("{} {}", what, folder.string());
}

// A folder that exists, and what is missing below it.
struct Place {
  fs::path existing;
  std::vector<fs::path> missing;
};

Place find_place(const fs::path& folder, const std::string& prefix) {
  Place place;
  for (const fs::path& part : fs::absolute(folder)) {
    struct stat status {};
    const fs::path next = place.existing / part;
    if (!place.missing.empty() || stat(next.c_str(), &status) != 0) {
      if (place.missing.empty() && lstat(next.c_str(), &status) == 0) {
        throw InputError(fmt::format("{}: {} is a broken link; expected a folder", prefix, next.string()));
      }
      place.missing.push_back(part);
    } else if (!S_ISDIR(status.st_mode)) {
      throw InputError(fmt::format("{}: {} is not a folder", prefix, next.string()));
    } else {
      place.existing = next;
    }
  }
  return place;
}

// Tries where it is safe from others that try as well: in a folder of its own, beside those that are missing. Returns 0 or errno.
int try_to_make(const Place& place, const std::string& prefix) {
  std::string trial = (place.existing / kTrialName).string();
  if (mkdtemp(trial.data()) == nullptr) return errno;
  fs::path made = trial;
  std::string not_made;
  for (const fs::path& part : place.missing) {
    if (part.empty() || part == "." || part == "..") continue;
    made /= part;
    if (not_made.empty() && mkdir(made.c_str(), 0777) != 0) {
      not_made = fmt::format("{}: {} cannot be created: {}", prefix, part.string(), std::strerror(errno));
    }
  }
  const int reason = not_made.empty() ? try_to_write(made) : 0;
  std::error_code ignored;
  fs::remove_all(trial, ignored);
  if (!not_made.empty()) throw InputError(not_made);
  return reason;
}

std::string owner_text(pid_t process) {
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  return fmt::format("process {} on {}", process, host);
}

std::string first_line(int file) {
  char text[512];
  const ssize_t size = pread(file, text, sizeof text, 0);
  const std::string content(text, size > 0 ? static_cast<size_t>(size) : 0);
  return content.substr(0, content.find('\n'));
}

bool is_same_file(int file, const fs::path& path) {
  struct stat opened {};
  struct stat named {};
  return fstat(file, &opened) == 0 && stat(path.c_str(), &named) == 0 && opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

}  // namespace

std::optional<fs::path> keep_older_result(const fs::path& folder, const std::vector<std::string>& files,
                                          const std::vector<fs::path>& inputs) {
  const std::vector<fs::path> names = names_to_keep(folder, files, inputs);
  if (names.empty()) return std::nullopt;
  fs::path kept = make_next_folder(folder / kOlder);
  for (const fs::path& name : names) {
    std::error_code error;
    fs::rename(folder / name, kept / name, error);
    if (error && error != std::errc::no_such_file_or_directory) {  // that one was moved by another process
      throw RuntimeError(fmt::format("{}: cannot be moved to {}: {}", (folder / name).string(), kept.string(), error.message()));
    }
  }
  return kept;
}

void check_output_folder(const fs::path& folder, const std::string& what) {
  const std::string prefix = prefix_of(folder, what);
  Place place;
  int reason = ENOENT;
  for (int attempt = 0; reason == ENOENT && attempt < kAttempts; ++attempt) {
    place = find_place(folder, prefix);
    reason = place.missing.empty() ? try_to_write(place.existing) : try_to_make(place, prefix);
  }
  if (reason != 0) throw InputError(fmt::format("{}: {} cannot be written to: {}", prefix, place.existing.string(), std::strerror(reason)));
}

// Makes `folder` and the folders around it where they are missing; when the object goes, those that it made and that are empty go too.
// Retries when another process that does the same takes one away meanwhile.
class MadeFolders {
 public:
  // Throws InputError, which begins with `what` and names the first folder that cannot be created; nothing is left behind then.
  MadeFolders(const std::filesystem::path& folder, const std::string& what) {
    const std::string prefix = prefix_of(folder, what);
    try {
      for (int attempt = 1; !make(find_place(folder, prefix), prefix); ++attempt) {
        if (attempt == kAttempts) throw InputError(fmt::format("{}: cannot be created: {}", prefix, std::strerror(ENOENT)));
      }
    } catch (...) {
      remove();
      throw;
    }
  }
  ~MadeFolders() { remove(); }
  MadeFolders(const MadeFolders&) = delete;
  MadeFolders& operator=(const MadeFolders&) = delete;

 private:
  // False: a folder that was there a moment ago is gone.
  bool make(const Place& place, const std::string& prefix) {
    std::filesystem::path folder = place.existing;
    for (const std::filesystem::path& part : place.missing) {
      folder /= part;
      if (mkdir(folder.c_str(), 0777) == 0) {
        made_.push_back(folder);
      } else if (errno == ENOENT) {
        return false;
      } else if (errno != EEXIST) {
        throw InputError(fmt::format("{}: {} cannot be created: {}", prefix, folder.string(), std::strerror(errno)));
      }
    }
    return true;
  }

  void remove() {
    for (auto folder = made_.rbegin(); folder != made_.rend(); ++folder) rmdir(folder->c_str());  // fails where it holds something
    made_.clear();
  }

  std::vector<std::filesystem::path> made_;  // outermost first
};

struct OutputFolderLock::State {
  State(const fs::path& folder, const std::string& what) : folders(folder, what), path(folder / ".firkin-lock") {}
  ~State() {
    if (file < 0) return;
    if (locked) unlink(path.c_str());
    close(file);
  }

  // False: the holder has just gone, and its file with it.
  bool take(const fs::path& folder, const std::string& what) {
    file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0 && errno == ENOENT) return false;
    if (file < 0) throw_not_writable(folder, what, errno);
    if (flock(file, LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) {  // a file system without locks
        unlink(path.c_str());
        return true;
      }
      const std::string owner = first_line(file);
      if (owner == owner_text(getppid())) return true;
      throw InputError(fmt::format("{} {}: another run ({}) is writing into it; expected a folder for each", what, folder.string(),
                                   owner.empty() ? "which has just started" : owner));
    }
    if (!is_same_file(file, path)) return false;
    locked = true;
    const std::string owner = owner_text(getpid()) + "\n";
    [[maybe_unused]] const bool said = ftruncate(file, 0) == 0 && write(file, owner.data(), owner.size()) > 0;  // for messages
    return true;
  }

  MadeFolders folders;
  fs::path path;
  int file = -1;
  bool locked = false;
};

OutputFolderLock::OutputFolderLock(const fs::path& folder, const std::string& what) {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    state_.reset();  // it may take folders away
    state_ = std::make_unique<State>(folder, what);
    if (state_->take(fs::absolute(folder), what)) return;
  }
  throw_not_writable(folder, what, ENOENT);
}

OutputFolderLock::~OutputFolderLock() = default;

}  // namespace firkin
