#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "firkin/base/output_folder.h"
#include "temporary_folder.h"

namespace firkin {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

// Relative to the folder, of everything in it that is not a folder.
std::vector<std::string> files_in(const fs::path& folder) {
  std::vector<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_directory()) files.push_back(entry.path().lexically_relative(folder).string());
  }
  return files;
}

TEST(KeepOlderResult, DoesNothingWhereThereIsNone) {
  const TemporaryFolder out;
  EXPECT_EQ(keep_older_result(out.path, {"results.json"}), std::nullopt);
  EXPECT_EQ(keep_older_result(out.path / "missing", {"results.json"}), std::nullopt);
  EXPECT_TRUE(fs::is_empty(out.path));
}

TEST(KeepOlderResult, NumbersThemFromTheOldestOn) {
  const TemporaryFolder out;
  for (const char* run : {"first", "second", "third"}) {
    keep_older_result(out.path, {"results.json"});
    out.write("results.json", run);
  }
  EXPECT_EQ(read_file(out.path / "results.json"), "third");
  EXPECT_EQ(read_file(out.path / "older/1/results.json"), "first");
  EXPECT_EQ(read_file(out.path / "older/2/results.json"), "second");
}

TEST(KeepOlderResult, ReturnsItsFolderAndNeverUsesANumberAgain) {
  const TemporaryFolder out;
  out.write("results.json", "");
  out.write("older/7/results.json", "");
  out.write("older/notes.txt", "");
  EXPECT_EQ(keep_older_result(out.path, {"results.json"}), out.path / "older/8");
}

TEST(KeepOlderResult, LeavesTheUsersOwnFiles) {
  const TemporaryFolder out;
  out.write("results.json", "");
  out.write("steps.csv", "");
  out.write("thesis.tex", "");
  out.write("data/results.json", "");
  keep_older_result(out.path, {"results.json", "steps.csv", "report.html"});
  EXPECT_THAT(files_in(out.path), UnorderedElementsAre("older/1/results.json", "older/1/steps.csv", "thesis.tex", "data/results.json"));
}

TEST(KeepOlderResult, MovesWhatTheOlderResultsList) {
  const TemporaryFolder out;
  out.write("results.json", R"({"files": ["somewhere/trace.html", "../..", "older", "", "gone.csv"]})");
  out.write("trace.html", "");
  keep_older_result(out.path, {"results.json"});
  EXPECT_THAT(files_in(out.path), UnorderedElementsAre("older/1/results.json", "older/1/trace.html"));
}

TEST(KeepOlderResult, LeavesWhatTheNewRunReadsUnlessItTakesTheName) {
  const TemporaryFolder out;
  out.write("results.json", R"({"files": ["tensors.csv", "trace.html", "results.json"]})");
  out.write("tensors.csv", "");
  out.write("trace.html", "");
  keep_older_result(out.path, {"results.json"}, {out.path / "." / "tensors.csv", out.path / "results.json", "none"});
  EXPECT_THAT(files_in(out.path), UnorderedElementsAre("older/1/results.json", "older/1/trace.html", "tensors.csv"));
}

TEST(KeepOlderResult, LeavesResultsThatTheNewFilesDoNotReplace) {
  const TemporaryFolder out;
  out.write("results.json", R"({"files": ["tensors.csv"]})");
  out.write("tensors.csv", "");
  out.write("predict.json", "");
  keep_older_result(out.path, {"predict.json"});
  EXPECT_THAT(files_in(out.path), UnorderedElementsAre("older/1/predict.json", "results.json", "tensors.csv"));
}

TEST(KeepOlderResult, KeepsResultsThatCannotBeRead) {
  for (const char* content : {"", "{", "[]", R"({"files": 3})", R"({"files": [3]})"}) {
    const TemporaryFolder out;
    out.write("results.json", content);
    keep_older_result(out.path, {"results.json"});
    EXPECT_EQ(read_file(out.path / "older/1/results.json"), content);
  }
}

TEST(KeepOlderResult, MovesALinkAndNotWhatItPointsTo) {
  const TemporaryFolder out;
  out.write("elsewhere.json", "mine");
  fs::create_symlink(out.path / "elsewhere.json", out.path / "results.json");
  keep_older_result(out.path, {"results.json"});
  EXPECT_TRUE(fs::is_symlink(out.path / "older/1/results.json"));
  EXPECT_EQ(read_file(out.path / "elsewhere.json"), "mine");
}

TEST(KeepOlderResult, SaysWhatStandsInTheWay) {
  const TemporaryFolder out;
  out.write("results.json", "kept");
  out.write("older", "a file");
  try {
    keep_older_result(out.path, {"results.json"});
    ADD_FAILURE() << "no error";
  } catch (const RuntimeError& error) {
    EXPECT_THAT(error.what(), HasSubstr("older: cannot be created, so the older result stays: "));
  }
  EXPECT_EQ(read_file(out.path / "results.json"), "kept");
}

TEST(KeepOlderResult, LosesNothingWhenManyDoItAtOnce) {
  constexpr int kRounds = 20;
  const TemporaryFolder out;
  const std::vector<std::string> names = {"results.json", "a.csv", "b.csv", "c.csv"};
  for (int round = 0; round < kRounds; ++round) {
    for (const std::string& name : names) out.write(name, name + std::to_string(round));
    std::vector<std::thread> runs;
    for (int run = 0; run < 4; ++run) runs.emplace_back([&] { keep_older_result(out.path, names); });
    for (std::thread& run : runs) run.join();
  }
  std::vector<std::string> kept;
  for (const std::string& file : files_in(out.path)) kept.push_back(read_file(out.path / file));
  std::vector<std::string> expected;
  for (int round = 0; round < kRounds; ++round) {
    for (const std::string& name : names) expected.push_back(name + std::to_string(round));
  }
  EXPECT_THAT(kept, testing::UnorderedElementsAreArray(expected));
}

}  // namespace
}  // namespace firkin
