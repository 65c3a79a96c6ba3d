// Folders that are made for what will be written, and that go again when nothing was.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace firkin {

// Makes `folder` and the folders around it where they are missing; when the object goes, those that it made and that are empty go too.
// Retries when another process that does the same takes one away meanwhile.
class MadeFolders {
 public:
  // Throws InputError, which begins with `what` and names the first folder that cannot be made; nothing is left behind then.
  MadeFolders(const std::filesystem::path& folder, const std::string& what);
  ~MadeFolders();
  MadeFolders(const MadeFolders&) = delete;
  MadeFolders& operator=(const MadeFolders&) = delete;

 private:
  bool make(const std::filesystem::path& folder, const std::string& prefix);
  void remove();

  std::vector<std::filesystem::path> made_;  // outermost first
};

}  // namespace firkin
