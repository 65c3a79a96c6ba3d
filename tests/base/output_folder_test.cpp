#include "firkin/base/output_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "private_mount.h"
#include "temporary_folder.h"

namespace firkin {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::UnorderedElementsAre;

std::string check_error(const fs::path& folder) {
  try {
    check_output_folder(folder, "--out");
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

std::string lock_error(const fs::path& folder) {
  try {
    const OutputFolderLock lock(folder, "--out");
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

// Relative to the folder, of everything in it.
std::vector<std::string> paths_in(const fs::path& folder) {
  std::vector<std::string> paths;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) paths.push_back(entry.path().lexically_relative(folder).string());
  return paths;
}

// Runs in a child process; true when it ends well.
bool in_child(const std::function<bool()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body() ? 0 : 1);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(CheckOutputFolder, LeavesNothingBehind) {
  const TemporaryFolder work;
  EXPECT_EQ(check_error(work.path), "no error");
  EXPECT_EQ(check_error(work.path / "a" / "b" / ""), "no error");
  EXPECT_THAT(paths_in(work.path), ElementsAre());
}

TEST(CheckOutputFolder, NamesTheFileThatStandsInTheWay) {
  const TemporaryFolder work;
  work.write("file", "");
  const std::string file = (work.path / "file").string();
  EXPECT_EQ(check_error(file), "--out " + file + ": " + file + " is not a folder");
  EXPECT_EQ(check_error(file + "/a/b"), "--out " + file + "/a/b: " + file + " is not a folder");
  EXPECT_THAT(paths_in(work.path), ElementsAre("file"));
}

TEST(CheckOutputFolder, FollowsLinksAndRefusesThoseToNothing) {
  const TemporaryFolder work;
  fs::create_directory(work.path / "there");
  fs::create_symlink("there", work.path / "link");
  fs::create_symlink("nowhere", work.path / "dangling");
  fs::create_symlink("loop", work.path / "loop");
  EXPECT_EQ(check_error(work.path / "link" / "new"), "no error");
  EXPECT_THAT(check_error(work.path / "dangling" / "new"), HasSubstr("dangling is a broken link"));
  EXPECT_NE(check_error(work.path / "loop"), "no error");
}

TEST(CheckOutputFolder, RefusesWhatNobodyCanWriteAndRemovesWhatItMade) {
  const TemporaryFolder work;
  const std::string long_name(300, 'x');
  EXPECT_THAT(check_error(work.path / "a" / "b" / long_name), HasSubstr("cannot be created: File name too long"));
  EXPECT_THAT(paths_in(work.path), ElementsAre());
  EXPECT_THAT(check_error("/proc/firkin/out"), HasSubstr("/proc cannot be written to: "));
  EXPECT_THAT(check_error("/proc"), HasSubstr("/proc cannot be written to: "));
  EXPECT_THAT(check_error(""), HasSubstr("expected a folder"));
}

TEST(CheckOutputFolder, RefusesAReadOnlyFileSystem) {
  if (!can_mount()) GTEST_SKIP() << "this process may not mount";
  const TemporaryFolder work;
  EXPECT_TRUE(in_child([&] {
    mount_privately(work.path, "size=64k", /*read_only=*/true);
    return check_error(work.path).ends_with("cannot be written to: Read-only file system") &&
           check_error(work.path / "a").ends_with("cannot be written to: Read-only file system");
  }));
}

TEST(CheckOutputFolder, RefusesAFullFileSystem) {
  if (!can_mount()) GTEST_SKIP() << "this process may not mount";
  const TemporaryFolder work;
  EXPECT_TRUE(in_child([&] {
    mount_privately(work.path, "size=64k", /*read_only=*/false);
    work.write("large", std::string(1 << 17, 'x'));
    return check_error(work.path).ends_with("cannot be written to: No space left on device");
  }));
}

TEST(CheckOutputFolder, MayBeDoneByManyRanksAtOnce) {
  const TemporaryFolder work;
  std::atomic<int> errors = 0;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 8; ++rank) {
    ranks.emplace_back([&] {
      for (int i = 0; i < 50; ++i) errors += check_error(work.path / "a" / "b") == "no error" ? 0 : 1;
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(errors, 0);
  EXPECT_THAT(paths_in(work.path), ElementsAre());
}

TEST(OutputFolderLock, LeavesNoEmptyFolder) {
  const TemporaryFolder work;
  {
    const OutputFolderLock lock(work.path / "a" / "out", "--out");
    EXPECT_TRUE(fs::exists(work.path / "a" / "out"));
  }
  EXPECT_THAT(paths_in(work.path), ElementsAre());
}

TEST(OutputFolderLock, KeepsTheFolderThatWasWrittenInto) {
  const TemporaryFolder work;
  {
    const OutputFolderLock lock(work.path / "out", "--out");
    work.write("out/results.json", "{}");
  }
  EXPECT_THAT(paths_in(work.path), UnorderedElementsAre("out", "out/results.json"));
}

TEST(OutputFolderLock, RefusesASecondRunAndSaysWhoseTheFolderIs) {
  const TemporaryFolder work;
  const fs::path out = work.path / "out";
  {
    const OutputFolderLock lock(out, "--out");
    EXPECT_THAT(lock_error(out),
                MatchesRegex("--out .*/out: another run \\(process [0-9]+ on .+\\) is writing into it; expected a folder for each"));
    EXPECT_EQ(lock_error(work.path / "other"), "no error");
  }
  EXPECT_EQ(lock_error(out), "no error");
}

TEST(OutputFolderLock, IsSharedWithTheRanksThatTheHolderStarts) {
  const TemporaryFolder work;
  const OutputFolderLock lock(work.path, "--out");
  EXPECT_TRUE(in_child([&] { return lock_error(work.path) == "no error"; }));
  EXPECT_TRUE(in_child([&] { return in_child([&] { return lock_error(work.path) != "no error"; }); }));
  EXPECT_NE(lock_error(work.path), "no error");  // the rank's end has not ended the lock
}

TEST(OutputFolderLock, OfARunThatWasKilledStandsInNobodysWay) {
  const TemporaryFolder work;
  EXPECT_FALSE(in_child([&] {
    const OutputFolderLock lock(work.path, "--out");
    return raise(SIGKILL) == 0;
  }));
  EXPECT_THAT(paths_in(work.path), ElementsAre(".firkin-lock"));
  EXPECT_EQ(lock_error(work.path), "no error");
  EXPECT_THAT(paths_in(work.path), ElementsAre());
}

TEST(OutputFolderLock, IsHeldByOneAtATime) {
  const TemporaryFolder work;
  std::atomic<int> holders = 0;
  std::atomic<bool> shared = false;
  std::atomic<int> times = 0;
  std::vector<std::thread> runs;
  for (int run = 0; run < 8; ++run) {
    runs.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        try {
          const OutputFolderLock lock(work.path / "out", "--out");
          if (++holders > 1) shared = true;
          std::this_thread::yield();
          --holders;
          ++times;
        } catch (const InputError&) {
        }
      }
    });
  }
  for (std::thread& run : runs) run.join();
  EXPECT_FALSE(shared);
  EXPECT_GE(times, 1);
}

}  // namespace
}  // namespace firkin
