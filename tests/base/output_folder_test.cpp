#include "firkin/base/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "firkin/base/error.h"
#include "private_mount.h"
#include "temporary_folder.h"

namespace firkin {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

std::string error_of_checking(const fs::path& folder) {
  try {
    check_output_folder(folder, "--out");
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

std::string error_of_holding(const fs::path& folder) {
  try {
    const OutputFolder held(folder, "--out");
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
  EXPECT_EQ(error_of_checking(work.path), "no error");
  EXPECT_EQ(error_of_checking(work.path / "a" / "b" / ""), "no error");
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
  EXPECT_EQ(error_of_checking(work.path / "link" / "new"), "no error");
  EXPECT_THAT(error_of_checking(work.path / "dangling" / "new"), HasSubstr("dangling is not a folder"));
  EXPECT_THAT(error_of_checking("/proc/firkin"), HasSubstr("/proc cannot be written to: "));
  EXPECT_THAT(error_of_checking(""), HasSubstr("expected a folder"));
}

TEST(CheckOutputFolder, RefusesAReadOnlyFileSystem) {
  if (!can_mount()) GTEST_SKIP() << "this process may not mount";
  const TemporaryFolder work;
  EXPECT_TRUE(in_child([&] {
    mount_privately(work.path, "size=64k", /*read_only=*/true);
    return error_of_checking(work.path).ends_with("cannot be written to: Read-only file system") &&
           error_of_checking(work.path / "a").ends_with("cannot be written to: Read-only file system");
  }));
}

TEST(CheckOutputFolder, RefusesAFullFileSystem) {
  if (!can_mount()) GTEST_SKIP() << "this process may not mount";
  const TemporaryFolder work;
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
    EXPECT_EQ(error_of_holding(work.path / "other"), "no error");
  }
  EXPECT_EQ(error_of_holding(out), "no error");
}

TEST(OutputFolder, OfARunThatWasKilledStandsInNobodysWay) {
  const TemporaryFolder work;
  EXPECT_FALSE(in_child([&] {
    const OutputFolder held(work.path, "--out");
    return raise(SIGKILL) == 0;
  }));
  EXPECT_EQ(error_of_holding(work.path), "no error");
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
