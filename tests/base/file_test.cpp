#include "firkin/base/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>

#include "firkin/base/error.h"
#include "private_mount.h"
#include "temporary_folder.h"

namespace firkin {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;

std::string write_error(const fs::path& path, const std::string& content) {
  try {
    write_file_atomically(path, content);
  } catch (const RuntimeError& error) {
    return error.what();
  }
  return "no error";
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  return names;
}

TEST(WriteFile, ReplacesTheFileAndMakesItsFolders) {
  const TemporaryFolder work;
  const fs::path file = work.path / "a" / "b" / "file";
  write_file_atomically(file, "old");
  write_file_atomically(file, "new");
  EXPECT_EQ(read_file(file), "new");
  EXPECT_THAT(names_in(file.parent_path()), ElementsAre("file"));
}

TEST(WriteFile, GivesTheModeOfAnOrdinaryNewFile) {
  const TemporaryFolder work;
  const mode_t before = umask(027);
  write_file_atomically(work.path / "file", "");
  umask(before);
  EXPECT_EQ(fs::status(work.path / "file").permissions(), fs::perms(0640));
}

// As on a full disk, a part of the content is written before the failure.
TEST(WriteFile, LeavesTheOldFileWhenTheNewOneCannotBeWrittenWhole) {
  const TemporaryFolder work;
  const fs::path file = work.path / "file";
  write_file_atomically(file, "old");
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{.rlim_cur = 1 << 20, .rlim_max = before.rlim_max};
  const auto previous = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string error = write_error(file, std::string(2 << 20, 'x'));
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, previous);
  EXPECT_EQ(error, file.string() + ": cannot be written: File too large");
  EXPECT_EQ(read_file(file), "old");
  EXPECT_THAT(names_in(work.path), ElementsAre("file"));
}

TEST(WriteFile, LeavesTheOldFileWhenTheDiskIsFull) {
  if (!can_mount()) GTEST_SKIP() << "this process may not mount";
  const TemporaryFolder work;
  const auto body = [&] {
    if (!mount_privately(work.path, "size=64k", /*read_only=*/false)) return 2;
    const fs::path file = work.path / "results.json";
    write_file_atomically(file, "old");
    const bool says_so = write_error(file, std::string(1 << 17, 'x')) == file.string() + ": cannot be written: No space left on device";
    return says_so && read_file(file) == "old" && names_in(work.path) == std::vector<std::string>{"results.json"} ? 0 : 1;
  };
  EXPECT_EXIT(_exit(body()), testing::ExitedWithCode(0), "");
}

TEST(WriteFile, LeavesNoTemporaryFileWhenItCannotTakeItsPlace) {
  const TemporaryFolder work;
  fs::create_directory(work.path / "taken");
  EXPECT_EQ(write_error(work.path / "taken", "x"), (work.path / "taken").string() + ": cannot be written: Is a directory");
  EXPECT_THAT(names_in(work.path), ElementsAre("taken"));
}

TEST(WriteFile, NamesTheFolderThatCannotBeMade) {
  const TemporaryFolder work;
  work.write("file", "");
  EXPECT_EQ(write_error(work.path / "file" / "b" / "c", "x"), (work.path / "file" / "b").string() + ": cannot be created: Not a directory");
}

}  // namespace
}  // namespace firkin
