#include "import/nccl_inspector.h"

#include <fmt/format.h>

#include "../plan/helpers.h"
#include "firkin/base/file.h"

namespace firkin {
namespace {

std::string line(int rank, int number, int bytes, double us, const char* collective = "AllReduce", const char* source = "kernel_gpu") {
  return fmt::format(
      R"({{"header":{{"id":"0x7f","rank":{},"n_ranks":2,"nnodes":1}},"metadata":{{"inspector_output_format_version":"v4.0","hostname":"a","pid":1}},)"
      R"("coll_perf":{{"coll":"{}","coll_sn":{},"coll_msg_size_bytes":{},"coll_exec_time_us":{},"coll_timing_source":"{}"}}}})"
      "\n",
      rank, collective, number, bytes, us, source);
}

Imported read_text(const std::string& text) {
  return parse_nccl_inspector(text, "log");
}

TEST(NcclInspector, TakesTheLeastTimeOfAnyRankForACall) {
  const Imported imported = read_text(line(0, 1, 1000, 90) + line(1, 1, 1000, 40) + line(0, 2, 1000, 60) + line(1, 2, 1000, 80) +
                                      line(0, 3, 4000, 100) + line(1, 3, 4000, 130));
  ASSERT_EQ(imported.table.size(), 2u);
  EXPECT_EQ(imported.table[0].bytes, 1000);
  EXPECT_EQ(imported.table[0].world_size, 2);
  EXPECT_DOUBLE_EQ(imported.table[0].median_s, 50e-6);
  EXPECT_DOUBLE_EQ(imported.table[1].median_s, 100e-6);
  EXPECT_TRUE(imported.notes.empty());
}

TEST(NcclInspector, LeavesOutAndSaysWhatIsNoAllReduceOfAllRanks) {
  const Imported imported = read_text(line(0, 1, 1000, 90) + line(1, 1, 1000, 40) + line(0, 2, 1000, 60) +
                                      line(0, 3, 1000, 5, "AllGather") + line(0, 4, 1000, 7, "AllReduce", "collective_cpu"));
  EXPECT_EQ(imported.table.size(), 1u);
  EXPECT_THAT(imported.notes,
              ElementsAre("skipped 1 lines of other operations than all-reduces", "skipped 1 all-reduces that the host timed",
                          "skipped 1 all-reduces that the files of some rank lack"));
}

TEST(NcclInspector, JoinsTheFilesOfTheRanks) {
  const std::filesystem::path folder = testing::TempDir();
  write_file_atomically(folder / "rank0.log", line(0, 1, 1000, 90));
  write_file_atomically(folder / "rank1.log", line(1, 1, 1000, 40));
  const Imported imported = import_files({folder / "rank0.log", folder / "rank1.log"});
  EXPECT_THAT(imported.formats, ElementsAre(ImportFormat::kNcclInspector, ImportFormat::kNcclInspector));
  ASSERT_EQ(imported.table.size(), 1u);
  EXPECT_DOUBLE_EQ(imported.table[0].median_s, 40e-6);
}

TEST(NcclInspector, RefusesInOneLine) {
  EXPECT_THAT(error_of([] { read_text(line(0, 1, 1000, 90)); }),
              "log:1: calls of at most 1 of 2 ranks, which last as long as these wait; expected the files of all ranks");
  EXPECT_THAT(error_of([] { read_text(line(0, 1, 1000, 90) + line(0, 1, 1000, 90)); }), HasSubstr("log:2: a call that this rank has made"));
  EXPECT_THAT(error_of([] { read_text(line(0, 1, 1000, 90) + line(1, 1, 2000, 90)); }),
              HasSubstr("log:2: 2000 bytes, on another rank 1000"));
  EXPECT_THAT(error_of([] { read_text(line(0, 1, 0, 90)); }), HasSubstr("log:1: coll_msg_size_bytes is 0; expected a whole number"));
  EXPECT_THAT(error_of([] { read_text(line(0, 1, 1000, 0)); }), HasSubstr("coll_exec_time_us is"));
  EXPECT_THAT(error_of([] { read_text(line(0, 1, 1000, 90).substr(0, 90)); }), HasSubstr("log:1: no whole line of JSON"));
  EXPECT_THAT(error_of([] { read_text("{\"coll_perf\": {}}"); }), HasSubstr("log:1: no 'header'"));
  EXPECT_THAT(error_of([] { read_text(line(0, 1, 1000, 9, "Broadcast")); }), HasSubstr("log:1: no all-reduce that a GPU timed"));
}

}  // namespace
}  // namespace firkin
