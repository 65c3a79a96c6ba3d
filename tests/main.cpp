// main() of every test program: GoogleTest's, with two things that ctest needs.
//
//   build/tests/ddp_test --file=join_test.cpp      the tests of one source file
//
// Exit code 77 when every test was skipped, which ctest shows. Ranks are threads here: unless OMP_NUM_THREADS says otherwise, each computes
// with one, because LibTorch's own threads of each would wait for each other at the expense of all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <string>
#include <string_view>

namespace {

// "First.Test:Second.Test:" of those whose source file has that name.
std::string tests_of_file(std::string_view name) {
  std::string tests;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *all.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const testing::TestInfo& test = *suite.GetTestInfo(j);
      const std::string_view file = test.file();
      if (file.substr(file.rfind('/') + 1) == name) tests += std::string(suite.name()) + "." + test.name() + ":";
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
  const std::string_view word = argc > 1 ? argv[1] : "";
  if (word.starts_with(kFile)) {
    const std::string tests = tests_of_file(word.substr(kFile.size()));
    if (tests.empty()) {
      std::cerr << argv[0] << " " << word << ": no test in that file\n";
      return 2;
    }
    testing::GTEST_FLAG(filter) = tests;
  } else if (!word.empty()) {
    std::cerr << argv[0] << ": " << word << ": expected --file=NAME_test.cpp, or flags of GoogleTest\n";
    return 2;
  }
  const int failed = RUN_ALL_TESTS();
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  constexpr int kSkipped = 77;
  return failed == 0 && all.skipped_test_count() == all.test_to_run_count() ? kSkipped : failed;
}
