#include "import/import.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "../plan/helpers.h"
#include "firkin/base/file.h"

namespace firkin {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;

const std::filesystem::path kCourse = std::filesystem::path(FIRKIN_SOURCE_DIR) / "data" / "cmsc828g";
const std::filesystem::path kSizes = kCourse / "layer-sizes-gpt2_large-bs4.csv";
const std::filesystem::path kTimes = kCourse / "layer-times-gpt2_large-bs4.csv";
const std::filesystem::path kAllReduce = kCourse / "allreduce-times.csv";

std::filesystem::path file_of(const std::string& name, const std::string& text) {
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / name;
  write_file_atomically(path, text);
  return path;
}

constexpr const char* kNccl = "# size count type redop root time algbw busbw #wrong\n1024 256 float sum -1 20.0 0.05 0.09 0\n";

TEST(ImportFiles, TakesFilesInAnyOrder) {
  const Imported imported = import_files({kAllReduce, kTimes, kSizes});
  EXPECT_THAT(imported.formats, ElementsAre(ImportFormat::kAllReduceCsv, ImportFormat::kCmsc828gTimes, ImportFormat::kCmsc828gSizes));
  EXPECT_EQ(imported.profile->names.size(), 436u);
  EXPECT_EQ(imported.model, "gpt2-large");
  EXPECT_EQ(imported.table.size(), 19u);
}

TEST(ImportFiles, TakesAllReduceTimesAlone) {
  EXPECT_FALSE(import_files({kAllReduce}).profile);
  const Imported nccl = import_files({file_of("nccl.txt", kNccl)}, {.world_size = 8});
  ASSERT_EQ(nccl.table.size(), 1u);
  EXPECT_DOUBLE_EQ(nccl.table[0].median_s, 20e-6);
}

TEST(ImportFiles, RecognizesAFormatByWhatItHolds) {
  EXPECT_EQ(recognize_import("\n\n" + std::string(kNccl), "f"), ImportFormat::kNcclTests);
  EXPECT_EQ(recognize_import("host:1:1 [0] NCCL INFO Bootstrap\n", "f"), ImportFormat::kNcclTests);
  EXPECT_EQ(recognize_import("Name,min,mean\n", "f"), ImportFormat::kCmsc828gTimes);
  EXPECT_EQ(recognize_import("# measured with NCCL\nbytes,time_us\n", "f"), ImportFormat::kAllReduceCsv);
  EXPECT_EQ(recognize_import("size,count,type,redop,root,time,algbw,busbw,#wrong\n", "f"), ImportFormat::kNcclTests);
  EXPECT_EQ(recognize_import("algo,size,count,type,redop,root,time,algbw,busbw,#wrong\n", "f"), ImportFormat::kAllReduceCsv);
  EXPECT_EQ(recognize_import("size,count,type,time_us\n", "f"), ImportFormat::kAllReduceCsv);
  EXPECT_EQ(recognize_import("make: nothing to do\n# OSU MPI Allreduce Latency Test v7.3\n", "f"), ImportFormat::kOsu);
  EXPECT_THAT(error_of([] { recognize_import("\na,b\n", "f"); }), HasSubstr("f:2: unknown format; expected layer sizes"));
  EXPECT_THAT(error_of([] { recognize_import("", "f"); }), HasSubstr("f:1: unknown format"));
}

TEST(ImportFiles, TakesRowsByAColumnOrRefusesTo) {
  const std::string rows = "algo,size,count,type,time_us\nring,1024,256,float,20\ntree,1024,256,float,70\n";
  const Imported ring = import_files({file_of("algos.csv", rows)}, {.world_size = 8, .where = {"algo=ring"}});
  ASSERT_EQ(ring.table.size(), 1u);
  EXPECT_DOUBLE_EQ(ring.table[0].median_s, 20e-6);
  EXPECT_THAT(error_of([] { import_files({file_of("nccl.txt", kNccl)}, {.world_size = 8, .where = {"type=float"}}); }),
              HasSubstr("--where takes rows of all-reduce times in CSV"));
}

TEST(ImportFiles, RejectsHalfAProfileAndTwoOfOneKind) {
  EXPECT_THAT(error_of([] { import_files({kSizes}); }), EndsWith(".csv:1: without layer times of CMSC 828G; expected both"));
  EXPECT_THAT(error_of([] { import_files({kTimes}); }), EndsWith(".csv:1: without layer sizes of CMSC 828G; expected both"));
  EXPECT_THAT(error_of([] { import_files({kSizes, kTimes, kSizes}); }), EndsWith("expected one such file"));
  EXPECT_THAT(error_of([] { import_files({}); }), HasSubstr("no file to import"));
  EXPECT_THAT(error_of([] { import_files({"missing.csv"}); }), HasSubstr("missing.csv: cannot be read"));
}

}  // namespace
}  // namespace firkin
