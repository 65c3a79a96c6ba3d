// Files that are whole or not there, and folders that a run has for itself.
#include "firkin/base/file.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>

#include "../test.h"
#include "temporary_folder.h"

namespace firkin {
namespace {

namespace fs = std::filesystem;

std::string error_of_writing(const fs::path& path, const std::string& content) {
  return error_of([&] { write_file_atomically(path, content); });
}

std::string error_of_checking(const fs::path& folder) {
  return error_of([&] { check_output_folder(folder, "--out"); });
}

std::string error_of_holding(const fs::path& folder) {
  return error_of([&] { const OutputFolder held(folder, "--out"); });
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

// A small file system of memory, seen by this process alone and gone with it: for a child process. Returns whether it worked.
bool mount_privately(const fs::path& at, const char* options, bool read_only) {
  return unshare(CLONE_NEWNS) == 0 && mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount("none", at.c_str(), "tmpfs", read_only ? MS_RDONLY : 0, options) == 0;
}

// May this process mount at all? (root with the right to administer the system)
bool can_mount() {
  return in_child([] { return mount_privately("/tmp", "size=64k", false); });
}

void limit_file_size() {
  const rlimit small{.rlim_cur = 2048, .rlim_max = 2048};
  setrlimit(RLIMIT_FSIZE, &small);
}

TEST(ReadFile, RefusesADeviceThatNeverEnds) {
  EXPECT_EQ(error_of([] { read_file("/dev/zero"); }), "/dev/zero: cannot be read: no regular file, and longer than 256 MiB");
}

TEST(WriteFile, ReplacesTheFileAndMakesItsFolders) {
  const TemporaryFolder work;
  const fs::path file = work.path / "a" / "b" / "file";
  write_file_atomically(file, "old");
  write_file_atomically(file, "new");
  EXPECT_EQ(read_file(file), "new");
  EXPECT_THAT(paths_in(file.parent_path()), ElementsAre("file"));
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
  EXPECT_TRUE(in_child([&] {
    limit_file_size();
    std::signal(SIGXFSZ, SIG_IGN);
    return error_of_writing(file, std::string(4096, 'x')) == file.string() + ": cannot be written: File too large" &&
           error_of_checking(work.path).ends_with("cannot be written to: File too large");
  }));
  EXPECT_EQ(read_file(file), "old");
  EXPECT_THAT(paths_in(work.path), ElementsAre("file"));
}

// A signal that comes in the middle of writing.
TEST(WriteFile, LeavesNothingWhenItsProcessIsKilled) {
  const TemporaryFolder work;
  const int unnamed = open(work.path.c_str(), O_TMPFILE | O_WRONLY, 0600);
  if (unnamed < 0) GTEST_SKIP() << "this file system has no unnamed files";
  close(unnamed);
  EXPECT_FALSE(in_child([&] {
    limit_file_size();
    std::signal(SIGXFSZ, [](int) { raise(SIGKILL); });
    write_file_atomically(work.path / "file", std::string(4096, 'x'));
    return true;
  }));
  EXPECT_THAT(paths_in(work.path), ElementsAre());
}

TEST(WriteFile, NeedsNoProc) {
  if (!can_mount()) GTEST_SKIP() << "may not mount";
  const TemporaryFolder work;
  EXPECT_TRUE(in_child([&] {
    if (!mount_privately("/proc", "size=64k", false)) return false;
    write_file_atomically(work.path / "file", "old");
    write_file_atomically(work.path / "file", "new");
    return error_of_writing(work.path, "x").ends_with(": cannot be written: Is a directory");
  }));
  EXPECT_EQ(read_file(work.path / "file"), "new");
  EXPECT_THAT(paths_in(work.path), ElementsAre("file"));
}

TEST(WriteFile, LeavesNoTemporaryFileWhenItCannotTakeItsPlace) {
  const TemporaryFolder work;
  fs::create_directory(work.path / "taken");
  EXPECT_EQ(error_of_writing(work.path / "taken", "x"), (work.path / "taken").string() + ": cannot be written: Is a directory");
  EXPECT_THAT(paths_in(work.path), ElementsAre("taken"));
}

TEST(WriteFile, NamesTheFolderThatCannotBeMade) {
  const TemporaryFolder work;
  work.write("file", "");
  EXPECT_EQ(error_of_writing(work.path / "file" / "b" / "c", "x"),
            (work.path / "file" / "b").string() + ": cannot be created: Not a directory");
}

TEST(CheckOutputFolder, LeavesNothingBehind) {
  const TemporaryFolder work;
  EXPECT_EQ(error_of_checking(work.path), "");
  EXPECT_EQ(error_of_checking(work.path / "a" / "b" / ""), "");
  EXPECT_THAT(paths_in(work.path), ElementsAre());
}

TEST(CheckOutputFolder, NamesWhatStandsInTheWay) {
  const TemporaryFolder work;
  work.write("file", "");
  fs::create_directory(work.path / "there");
  fs::create_symlink("there", work.path / "link");
  fs::create_symlink("nowhere", work.path / "dangling");
  const std::string file = (work.path / "file").string();
  EXPECT_EQ(error_of_checking(file), "--out " + file + ": " + file + " is not a folder");
  EXPECT_EQ(error_of_checking(file + "/a/b"), "--out " + file + "/a/b: " + file + " is not a folder");
  EXPECT_EQ(error_of_checking(work.path / "link" / "new"), "");
  EXPECT_THAT(error_of_checking(work.path / "dangling" / "new"), HasSubstr("dangling is not a folder"));
  EXPECT_THAT(error_of_checking("/proc/firkin"), HasSubstr("/proc cannot be written to: "));
  EXPECT_THAT(error_of_checking(""), HasSubstr("expected a folder"));
}

TEST(CheckOutputFolder, RefusesARelativeNameWhereTheCurrentFolderIsGone) {
  const TemporaryFolder work;
  EXPECT_TRUE(in_child([&] {
    fs::create_directory(work.path / "gone");
    fs::current_path(work.path / "gone");
    fs::remove(work.path / "gone");
    return error_of_holding("out") == "--out out: the current folder is not there: No such file or directory";
  }));
}

TEST(CheckOutputFolder, RefusesAFileSystemThatIsReadOnlyOrFull) {
  if (!can_mount()) GTEST_SKIP() << "this process may not mount";
  const TemporaryFolder work;
  EXPECT_TRUE(in_child([&] {
    mount_privately(work.path, "size=64k", /*read_only=*/true);
    return error_of_checking(work.path).ends_with("cannot be written to: Read-only file system") &&
           error_of_checking(work.path / "a").ends_with("cannot be written to: Read-only file system");
  }));
  EXPECT_TRUE(in_child([&] {
    mount_privately(work.path, "size=64k", /*read_only=*/false);
    work.write("large", std::string(1 << 17, 'x'));
    return error_of_checking(work.path).ends_with("cannot be written to: No space left on device");
  }));
}

TEST(OutputFolder, LeavesNoEmptyFolder) {
  const TemporaryFolder work;
  {
    const OutputFolder held(work.path / "a" / "out" / "", "--out");
    EXPECT_TRUE(fs::exists(work.path / "a" / "out"));
  }
  EXPECT_THAT(error_of_holding(work.path / "a" / std::string(300, 'x')), HasSubstr("cannot be created: File name too long"));
  EXPECT_THAT(paths_in(work.path), ElementsAre());
}

TEST(OutputFolder, KeepsTheFolderThatWasWrittenIntoOrWasThere) {
  const TemporaryFolder work;
  fs::create_directory(work.path / "there");
  {
    const OutputFolder held(work.path / "out", "--out"), other(work.path / "there", "--out");
    work.write("out/results.json", "{}");
  }
  EXPECT_THAT(paths_in(work.path), UnorderedElementsAre("out", "out/results.json", "there"));
}

TEST(OutputFolder, RefusesASecondRun) {
  const TemporaryFolder work;
  const fs::path out = work.path / "out";
  {
    const OutputFolder held(out, "--out");
    EXPECT_EQ(error_of_holding(out), "--out " + out.string() + ": another run is writing into it; expected a folder for each");
    EXPECT_EQ(error_of_holding(work.path / "other"), "");
  }
  EXPECT_EQ(error_of_holding(out), "");
}

TEST(OutputFolder, OfARunThatWasKilledStandsInNobodysWay) {
  const TemporaryFolder work;
  EXPECT_FALSE(in_child([&] {
    const OutputFolder held(work.path, "--out");
    return raise(SIGKILL) == 0;
  }));
  EXPECT_EQ(error_of_holding(work.path), "");
  EXPECT_THAT(paths_in(work.path), ElementsAre());
}

TEST(OutputFolder, IsHeldByOneAtATime) {
  const TemporaryFolder work;
  std::atomic<int> holders = 0, times = 0;
  std::atomic<bool> shared = false;
  std::vector<std::thread> runs;
  for (int run = 0; run < 8; ++run) {
    runs.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        try {
          const OutputFolder held(work.path / "out", "--out");
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

TEST(OutputFolder, SetsEarlierFilesAsideUnderOneNumber) {
  const TemporaryFolder out;
  out.write("thesis.tex", "mine");
  out.write("steps.1.csv", "mine");
  for (const char* run : {"first", "second", "third"}) {
    OutputFolder held(out.path, "--out");
    held.set_aside({"results.json", "steps.csv"});
    out.write("results.json", run);
    if (run == std::string("first")) out.write("steps.csv", run);
  }
  EXPECT_THAT(paths_in(out.path),
              UnorderedElementsAre("results.json", "results.2.json", "results.3.json", "steps.1.csv", "steps.2.csv", "thesis.tex"));
  EXPECT_EQ(read_file(out.path / "steps.1.csv"), "mine");
  EXPECT_EQ(read_file(out.path / "results.2.json"), "first");
  EXPECT_EQ(read_file(out.path / "results.3.json"), "second");
  EXPECT_EQ(read_file(out.path / "results.json"), "third");
}

TEST(OutputFolder, LeavesWhatTheRunItselfHasWritten) {
  const TemporaryFolder out;
  fs::create_symlink("nowhere", out.path / "results.json");
  OutputFolder held(out.path, "--out");
  EXPECT_THAT(held.set_aside({"results.json"}), ElementsAre("results.1.json"));
  out.write("results.json", "so far");
  out.write("trace.json", "");
  EXPECT_THAT(held.set_aside({"results.json", "trace.json"}), ElementsAre("trace.1.json"));
  EXPECT_EQ(read_file(out.path / "results.json"), "so far");
}

}  // namespace
}  // namespace firkin
