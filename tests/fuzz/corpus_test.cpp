// Everything that fuzzing found, and the seeds that it started from, through the readers again; and published files and a result through
// all of them.

#include <cstddef>
#include <filesystem>

#include "../test.h"
#include "firkin/base/file.h"
#include "readers.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);  // fuzz_target.cpp

namespace firkin::fuzz {
namespace {

class Corpus : public testing::TestWithParam<Reader> {};

TEST_P(Corpus, IsAcceptedOrRejectedWithItsPlace) {
  const std::filesystem::path source = FIRKIN_SOURCE_DIR;
  int accepted = 0, rejected = 0;
  for (const std::filesystem::path& folder :
       {source / "tests/fuzz/corpus" / GetParam().name, source / "data/cmsc828g", source / "tests/report/data"}) {
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

INSTANTIATE_TEST_SUITE_P(Readers, Corpus, ValuesIn(readers().begin(), readers().end()), name_of);

// What libFuzzer calls, of one reader: the others' differ in its name alone.
TEST(FuzzTarget, FeedsItsReaderAndTakesAnErrorThatNamesItsPlaceForAnAnswer) {
  const Reader& reader = find_reader(FIRKIN_FUZZ_READER);
  for (const auto& [name, verdict] : {std::pair{"plain", Verdict::kAccepted}, {"nan", Verdict::kRejected}}) {
    const std::string text = read_file(std::filesystem::path(FIRKIN_SOURCE_DIR) / "tests/fuzz/corpus" / FIRKIN_FUZZ_READER / name);
    ASSERT_EQ(run_reader(reader, text), verdict) << name;
    EXPECT_EQ(LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(text.data()), text.size()), 0) << name;
  }
}

}  // namespace
}  // namespace firkin::fuzz
