#include "import/import.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "firkin/base/error.h"

namespace firkin {
namespace {

const std::filesystem::path kData = FIRKIN_SOURCE_DIR "/data";

struct Expected {
  const char* name;
  std::vector<int64_t> worlds;
};

class Clusters : public testing::TestWithParam<Expected> {};

TEST_P(Clusters, HaveTheirTables) {
  const PublishedTimes times = read_cluster(GetParam().name, kData);
  EXPECT_EQ(world_sizes(times.table), GetParam().worlds);
  EXPECT_EQ(times.world_size, 0);
}

INSTANTIATE_TEST_SUITE_P(All, Clusters,
                         testing::Values(Expected{"alps-gh200", {4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048}}, Expected{"aws-p4de", {16}},
                                         Expected{"azure-nd-a100", {1, 2, 4, 8, 16, 32, 64, 128}}, Expected{"cs336-pcie", {2, 4}},
                                         Expected{"h200", {8}}, Expected{"superbench-a100", {8}}, Expected{"zaratan", {8}}),
                         [](const auto& test) {
                           std::string name = test.param.name;
                           std::erase(name, '-');
                           return name;
                         });

TEST(Clusters, TakeTheTimesInPlace) {
  for (const AllReduceRow& row : read_cluster("aws-p4de", kData).table) {
    if (row.bytes != 1048576) continue;
    EXPECT_DOUBLE_EQ(row.median_s, 307.3e-6);  // out of place: 309.4
  }
}

TEST(Clusters, ANameMayEndWithTheNumberOfRanks) {
  EXPECT_EQ(read_cluster("aws-p4de-16", kData).world_size, 16);
  EXPECT_EQ(read_cluster("alps-gh200-2048", kData).world_size, 2048);
}

TEST(Clusters, OtherNamesAreBadInputThatListsThem) {
  for (const char* name : {"", "aws", "aws-p4de-", "aws-p4de-x", "aws-p4de-1", "aws-p4de16", "aws-p4de-16-2"}) {
    EXPECT_THAT([&] { read_cluster(name, kData); }, testing::ThrowsMessage<InputError>(testing::HasSubstr("zaratan"))) << name;
  }
}

}  // namespace
}  // namespace firkin
