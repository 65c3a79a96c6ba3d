#include "base/control_group.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>

namespace firkin {
namespace {

namespace fs = std::filesystem;

bool lists(const std::string& comma_separated, const std::string& word) {
  std::istringstream in(comma_separated);
  for (std::string part; std::getline(in, part, ',');) {
    if (part == word) return true;
  }
  return false;
}

// Where a hierarchy is mounted, and which of its groups appears there: a container may see no more than its own.
struct Mount {
  fs::path group;
  fs::path folder;
};

// A line of mountinfo: "31 23 0:28 GROUP FOLDER OPTIONS TAG... - TYPE SOURCE SUPER_OPTIONS" (proc_pid_mountinfo(5)).
std::optional<Mount> find_mount(const fs::path& root, int version, const std::string& controller) {
  std::ifstream in(root / "proc/self/mountinfo");
  for (std::string line; std::getline(in, line);) {
    std::istringstream text(line);
    const std::vector<std::string> words{std::istream_iterator<std::string>(text), {}};
    const auto dash = std::ranges::find(words, "-");
    if (dash - words.begin() < 6 || words.end() - dash < 4) continue;
    const bool wanted = version == 2 ? dash[1] == "cgroup2" : dash[1] == "cgroup" && lists(dash[3], controller);
    if (wanted) return Mount{.group = words[3], .folder = root / fs::path(words[4]).relative_path()};
  }
  return std::nullopt;
}

void add_folders(const Mount& mount, const fs::path& group, int version, std::vector<ControlGroupFolder>& folders) {
  const fs::path below = group.lexically_relative(mount.group);
  const bool visible = !below.empty() && *below.begin() != "..";
  fs::path folder = visible && below != "." ? mount.folder / below : mount.folder;
  for (; folder != mount.folder; folder = folder.parent_path()) folders.push_back({version, folder});
  folders.push_back({version, mount.folder});
}

}  // namespace

// A line of cgroup: "0::GROUP" (version 2) or "NUMBER:CONTROLLERS:GROUP" (version 1; cgroups(7)).
std::vector<ControlGroupFolder> control_group_folders(const std::string& controller, const fs::path& root) {
  std::vector<ControlGroupFolder> folders;
  std::ifstream in(root / "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && !lists(controllers, controller)) continue;
    const int version = controllers.empty() ? 2 : 1;
    if (const auto mount = find_mount(root, version, controller)) add_folders(*mount, line.substr(second + 1), version, folders);
  }
  return folders;
}

std::optional<int64_t> number_in_file(const fs::path& path) {
  std::ifstream in(path);
  int64_t number = 0;
  if (in >> number) return number;
  return std::nullopt;
}

std::optional<int64_t> number_after(const fs::path& path, const std::string& key) {
  std::ifstream in(path);
  for (std::string word; in >> word; in.ignore(std::numeric_limits<std::streamsize>::max(), '\n')) {
    int64_t number = 0;
    if (word == key && in >> number) return number;
    in.clear();
  }
  return std::nullopt;
}

}  // namespace firkin
