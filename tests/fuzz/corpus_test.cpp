// Everything that fuzzing found, and the seeds that it started from, through the readers again; and the published files through all of
// them.
#include <gtest/gtest.h>

#include <filesystem>

#include "firkin/base/file.h"
#include "readers.h"

namespace firkin::fuzz {
namespace {

class Corpus : public testing::TestWithParam<Reader> {};

TEST_P(Corpus, IsAcceptedOrRejectedWithItsPlace) {
  const std::filesystem::path source = FIRKIN_SOURCE_DIR;
  int accepted = 0, rejected = 0;
  for (const std::filesystem::path& folder : {source / "tests/fuzz/corpus" / GetParam().name, source / "data/cmsc828g"}) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      SCOPED_TRACE(entry.path().string());
      const std::string text = read_file(entry.path());
      Verdict verdict = Verdict::kRejected;
      ASSERT_NO_THROW(verdict = run_reader(GetParam(), text));
      ++(verdict == Verdict::kAccepted ? accepted : rejected);
    }
  }
  EXPECT_GT(accepted, 0) << "a corpus without a well-formed file tests little";
  EXPECT_GT(rejected, 0);
}

std::string name_of(const testing::TestParamInfo<Reader>& info) {
  return std::string(info.param.name);
}

INSTANTIATE_TEST_SUITE_P(Readers, Corpus, testing::ValuesIn(readers().begin(), readers().end()), name_of);

}  // namespace
}  // namespace firkin::fuzz
