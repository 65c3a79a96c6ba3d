// What GoogleTest's own main() cannot do: choose tests by their source file, and say by the exit code, 77, that all were skipped.
//
//   build/tests/ddp_test --file=late_test.cpp           the tests of one source file
//   build/tests/ddp_test --file=late_test.cpp --first   without its suites of the second tier: those named ...Full, or instantiated as Full
//   build/tests/ddp_test --file=late_test.cpp --full    those alone
//
// Ranks are threads here: unless OMP_NUM_THREADS says otherwise (ctest sets it), each computes with one, because LibTorch's own threads of
// each would wait for each other at the expense of all.
#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>

namespace {

struct Choice {
  std::string_view file;     // empty: every file
  std::optional<bool> full;  // of the second tier, or not; nothing: both
};

// Of TEST(ShardedFull, ...), and of INSTANTIATE_TEST_SUITE_P(Full, Sharded, ...).
bool is_full(std::string_view suite) {
  return suite.ends_with("Full") || suite.starts_with("Full/");
}

// "First.Test:Second.Test:" of the tests that are chosen.
std::string chosen_tests(const Choice& choice) {
  std::string tests;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *all.GetTestSuite(i);
    if (choice.full && *choice.full != is_full(suite.name())) continue;
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const testing::TestInfo& test = *suite.GetTestInfo(j);
      const std::string_view file = test.file();
      if (choice.file.empty() || file.substr(file.rfind('/') + 1) == choice.file)
        tests += std::string(suite.name()) + "." + test.name() + ":";
    }
  }
  return tests;
}

}  // namespace

int main(int argc, char** argv) {
  constexpr const char* kThreads = "OMP_NUM_THREADS";  // read when libraries are loaded
  if (std::getenv(kThreads) == nullptr && setenv(kThreads, "1", 0) == 0) execv("/proc/self/exe", argv);
  testing::InitGoogleMock(&argc, argv);
  constexpr std::string_view kFile = "--file=";
  Choice choice;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word.starts_with(kFile)) {
      choice.file = word.substr(kFile.size());
    } else if (word == "--first" || word == "--full") {
      choice.full = word == "--full";
    } else {
      std::cerr << argv[0] << ": " << word << ": expected --file=NAME_test.cpp, --first, --full, or flags of GoogleTest\n";
      return 2;
    }
  }
  if (argc > 1) {
    const std::string tests = chosen_tests(choice);
    if (tests.empty()) {
      std::cerr << argv[0] << ": no such test in " << (choice.file.empty() ? "any file" : choice.file) << "\n";
      return 2;
    }
    testing::GTEST_FLAG(filter) = tests;
  }
  const int failed = RUN_ALL_TESTS();
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  constexpr int kSkipped = 77;
  return failed == 0 && all.skipped_test_count() == all.test_to_run_count() ? kSkipped : failed;
}
