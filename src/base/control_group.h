// The control groups of this process (Linux; containers, job schedulers): where their limits can be read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace firkin {

struct ControlGroupFolder {
  int version = 2;  // of the interface, which names the files in it
  std::filesystem::path path;
};

// The folders of the groups that limit this process by `controller` ("cpu", "memory"): its own and those around it, innermost first, of
// each version that is mounted. root: where proc/ and the mounted hierarchies are looked for, "/" but for tests. Empty where there are
// none.
std::vector<ControlGroupFolder> control_group_folders(const std::string& controller, const std::filesystem::path& root);

// The number that a file begins with; none when there is no such file, or a word in it ("max").
std::optional<int64_t> number_in_file(const std::filesystem::path& path);

// The number in the line "KEY NUMBER" of a file. None when there is no such file or line.
std::optional<int64_t> number_after(const std::filesystem::path& path, const std::string& key);

}  // namespace firkin
