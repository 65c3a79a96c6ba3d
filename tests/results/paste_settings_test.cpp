#include "results/results.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "firkin/base/units.h"

namespace firkin {
namespace {

using testing::HasSubstr;

PasteSetting of_tool(const std::vector<PasteSetting>& settings, const std::string& tool) {
  const auto found = std::ranges::find(settings, tool, &PasteSetting::tool);
  return found == settings.end() ? PasteSetting() : *found;
}

TEST(PasteSettings, EveryToolGetsTheCapInItsOwnUnit) {
  const auto settings = paste_settings(kMiB / 2 + kMiB * 4, 4, {});  // 4.5 MiB
  EXPECT_THAT(of_tool(settings, "PyTorch").setting, HasSubstr("bucket_cap_mb=4.5)"));
  EXPECT_THAT(of_tool(settings, "Accelerate").setting, HasSubstr("bucket_cap_mb=4.5)"));
  EXPECT_THAT(of_tool(settings, "Lightning").setting, HasSubstr("bucket_cap_mb=4.5)"));
  EXPECT_THAT(of_tool(settings, "DeepSpeed").setting, HasSubstr("\"reduce_bucket_size\": 1179648"));
  EXPECT_THAT(of_tool(settings, "Megatron-LM").setting, HasSubstr("--ddp-bucket-size 1179648"));
  EXPECT_THAT(of_tool(settings, "Horovod").setting, HasSubstr("HOROVOD_FUSION_THRESHOLD=4718592"));
}

TEST(PasteSettings, ElementsOfBfloat16AreTwiceAsMany) {
  EXPECT_THAT(of_tool(paste_settings(kMiB, 2, {}), "DeepSpeed").setting, HasSubstr(": 524288"));
}

TEST(PasteSettings, TransformersTakesFractionsInPythonThoughNotOnACommandLine) {
  const PasteSetting small = of_tool(paste_settings(kMiB / 4, 4, {}), "Transformers");
  EXPECT_THAT(small.setting, HasSubstr("ddp_bucket_cap_mb=0.25)"));
  EXPECT_THAT(small.note, HasSubstr("whole MiB as a command-line flag"));
}

TEST(PasteSettings, APlanIsOfferedAsAListWhereThereIsOne) {
  EXPECT_EQ(of_tool(paste_settings(kMiB, 4, {}), "PyTorch, best plan").setting, "");
  EXPECT_THAT(of_tool(paste_settings(kMiB, 4, {1, 2.5}), "PyTorch, best plan").setting, HasSubstr("bucket_cap_mb_list=[1, 2.5]"));
}

}  // namespace
}  // namespace firkin
