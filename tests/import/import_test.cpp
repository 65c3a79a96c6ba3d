#include "import/import.h"

#include <filesystem>

#include "../plan/helpers.h"
#include "firkin/base/file.h"

namespace firkin {
namespace {

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
  EXPECT_EQ(imported.profile->total_bytes(), int64_t{4} * 774030080);
  EXPECT_NEAR(imported.profile->backward_s, 0.82947, 1e-5);
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
  EXPECT_EQ(recognize_import("make: nothing to do\n# OSU MPI Allreduce Latency Test v7.3\n", "f"), ImportFormat::kMpiBenchmark);
  EXPECT_THAT(error_of([] { recognize_import("\na,b\n", "f"); }), HasSubstr("f:2: unknown format; expected layer sizes"));
  EXPECT_THAT(error_of([] { recognize_import("", "f"); }), HasSubstr("f:1: unknown format"));
  EXPECT_THAT(error_of([] { recognize_import(std::string("b\0y\0t\0e\0s\0", 10), "f"); }),
              EndsWith("expected text in UTF-8, not compressed (iconv -f UTF-16LE -t UTF-8 f converts UTF-16)"));
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
    EXPECT_THAT([&] { read_cluster(name, kData); }, testing::ThrowsMessage<InputError>(HasSubstr("zaratan"))) << name;
  }
}

// The same two measurements of 8 ranks, in the columns of several sources.
struct Table {
  const char* name;
  std::string text;
  ImportOptions options = {};
};

const Table kTables[] = {
    {"firkin", "bytes,world_size,median_s,gap_s\n1048576,8,0.0001,0.00009\n4194304,8,0.0002,\n"},
    {"out_of_place", "# source\nranks,bytes,time_us_oop,busbw_oop_GBps,time_us_ip\n8,1048576,100,18,125\n8,4194304,200,36,250\n"},
    {"in_place", "ranks,bytes,time_us_oop,time_us_ip\n8,1048576,90,100\n8,4194304,190,200\n", {.in_place = true}},
    {"mark_before_firkins_own",
     "\xEF\xBB\xBF"
     "bytes,world_size,median_s\r\n1048576,8,0.0001\r\n4194304,8,0.0002\r\n"},
    {"rccl_tests_out_of_place",
     "numCycle,collective,nodes,ranks,ranksPerNode,gpusPerRank,size,type,redop,inplace,time,algbw,busbw,#wrong\n"
     "0,AllReduce,1,2,2,4,1048576,float,sum,0,100,1,1,0\n0,AllReduce,1,2,2,4,1048576,float,sum,1,125,1,1,0\n"
     "0,AllReduce,1,2,2,4,4194304,float,sum,0,200,1,1,0\n0,AllReduce,1,2,2,4,4194304,float,sum,1,250,1,1,0\n",
     {.unit = "us"}},
    {"rccl_tests_in_place",
     "numCycle,collective,gpus,size,type,redop,inplace,time\n0,AllReduce,8,1048576,float,sum,0,90\n0,AllReduce,8,1048576,float,sum,1,100\n"
     "0,AllReduce,8,4194304,float,sum,1,200\n",
     {.in_place = true, .unit = "us"}},
    {"semicolons", "# a, b\nbytes;time_us;ranks\n1048576;100;8\n4194304;200;8\n"},
    {"tabs", "bytes\ttime_us\tworld\n1048576\t100\t8\n4194304\t200\t8\n"},
    {"mebibytes", "source_repo,world_size,size_mib,time_ms\na/b,8,1,0.1\na/b,8,4,0.2\n"},
    {"seconds", "ranks,MiB,time_s\n8,1,0.0001\n8,4,0.0002\n"},
    {"course",
     "backend,world_size,total_elements,total_bytes,average_time,stdev_time\nnccl,8,1,1048576,0.0001,0\nnccl,8,2,4194304,0.0002,0\n"},
    {"headings_of_a_spreadsheet", "Message Size (bytes),Latency (us),Bandwidth (GB/s),n_gpus\n1048576,100,1,8\n4194304,200,2,8\n"},
    {"unit_given", "bytes,time\n1048576,100\n4194304,200\n", {.world_size = 8, .unit = "us"}},
    {"mark_and_line_ends_of_windows",
     "\xEF\xBB\xBF"
     "bytes,time_us\r\n1048576,100\r\n4194304,200\r\n",
     {.world_size = 8}},
    {"whole_numbers_written_as_such", "bytes,time_us,ranks\n1048576.0,1e2,8\n4.194304e6,2e2,8\n"},
    {"one_setting", "config,ranks,bytes,time_us\nx,8,1048576,100\nx,8,4194304,200\ny,8,4194304,300\n", {.where = {"config=x"}}},
    {"float_of_several_types", "type,size,time_us,ranks\nhalf,4194304,90,8\nfloat,1048576,100,8\nfloat,4194304,200,8\n"},
    {"micro_sign", "size (bytes),time (\u00B5s),ranks\n1048576,100,8\n4194304,200,8\n"},
    {"greek_letter_mu", "size (bytes),latency [\u03BCs],ranks\n1048576,100,8\n4194304,200,8\n"},
    {"markdown", "| Message Size (MiB) | Time (us) | GPUs |\n|---:|:---|---|\n| 1 | 100 | 8 |\n| 4 | 200 | 8 |\n"},
    {"names_of_intels_columns", "nbytes,t_min[usec],t_max[usec],t_avg[usec],#processes\n1048576,90,110,100,8\n4194304,190,210,200,8\n"},
    {"time_of_something_else_first", "bytes,setup_time_us,time_us,ranks\n1048576,5000,100,8\n4194304,5000,200,8\n"},
    {"time_of_the_whole_run", "bytes,wall_time_s,avg_latency_us,ranks\n1048576,9,100,8\n4194304,9,200,8\n"},
    {"times_of_day", "timestamp,bytes,time_us,ranks\n2025-03-14 12:00,1048576,100,8\n2025-03-14 12:01,4194304,200,8\n"},
    {"collectives", "op,bytes,time_us,ranks\nall_gather,1,9,8\nall_reduce,1048576,100,8\nall_gather,2,9,8\nall_reduce,4194304,200,8\n"},
    {"not_collectives",
     "op,bytes,time_us,ranks\nbatch_isend_irecv,1,9,8\nall_reduce,1048576,100,8\nbarrier,2,9,8\nall_reduce,4194304,200,8\n"},
    {"kernels",
     "Name,bytes,time_us,ranks\nncclDevKernel_SendRecv(x),1,9,8\nncclDevKernel_AllReduce_Sum_f32_RING_LL(x),1048576,100,8\n"
     "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(x),2,9,8\nncclDevKernel_AllReduce_Sum_f32_RING_LL(x),4194304,200,8\n"},
    {"an_algorithm_of_other_collectives",
     "collective,algorithm,bytes,time_us,ranks\nallreduce,reduce_scatter_allgather,1048576,100,8\n"
     "allreduce,reduce_scatter_allgather,4194304,200,8\n"},
    {"a_collective_in_another_column",
     "baseline,collective,bytes,time_us,ranks\nallreduce,allgather,1,9,8\nallreduce,AllReduce_sum,1048576,100,8\n"
     "allreduce,AllReduce_sum,4194304,200,8\n"},
    {"words_with_names_of_collectives",
     "topology,note,op,bytes,time_us,ranks\nhypercube_4d,after broadcast,N/A,1048576,100,8\nhypercube_4d,after "
     "broadcast,N/A,4194304,200,8\n"},
    {"rounded_beside_size", "size,size_mb,time_us,ranks\n1048576,1.0,100,8\n4194304,4.2,200,8\n"},
    {"elements_beside_bytes", "size,bytes,time_us,ranks\n262144,1048576,100,8\n1048576,4194304,200,8\n"},
    {"rounded_beside_bytes", "size_mb,size (bytes),time_us,ranks\n1.0,1048576,100,8\n4.2,4194304,200,8\n"},
    {"best_column", "bytes,ranks,min_us,mean_us,median_us,p99_us\n1048576,8,1,2,100,4\n4194304,8,1,2,200,4\n"},
};

TEST(AllReduceCsv, IsReadByTheNamesOfItsColumns) {
  for (const Table& table : kTables) {
    SCOPED_TRACE(table.name);
    EXPECT_EQ(recognize_import(table.text, "t.csv"), ImportFormat::kAllReduceCsv);
    const AllReduceTable rows = parse_allreduce_times(table.text, "t.csv", table.options).table;
    ASSERT_EQ(rows.size(), 2u);
    EXPECT_EQ(rows[0].bytes, 1048576);
    EXPECT_EQ(rows[0].world_size, 8);
    EXPECT_NEAR(rows[0].median_s, 1e-4, 1e-15);
    EXPECT_EQ(rows[1].bytes, 4194304);
    EXPECT_NEAR(rows[1].median_s, 2e-4, 1e-15);
  }
}

TEST(AllReduceCsv, OfFirkinKeepsEveryColumn) {
  EXPECT_EQ(parse_allreduce_times(kTables[0].text, "t.csv", {}).table[0].gap_s, 0.00009);
}

TEST(AllReduceCsv, OfTheCourseKeepsTheDeviation) {
  const auto row =
      parse_allreduce_times("backend,world_size,total_elements,total_bytes,average_time,stdev_time\nnccl,8,2,8,0.25,0.125\n", "a.csv", {})
          .table.at(0);
  EXPECT_EQ(row.mean_s, 0.25);
  EXPECT_EQ(row.stdev_s, 0.125);
  EXPECT_FALSE(row.gap_s);
}

std::string csv_error(const std::string& text, const ImportOptions& options = {}) {
  return error_of([&] { parse_allreduce_times(text, "t.csv", options); });
}

TEST(AllReduceCsv, IsRefusedWithTheLineAndWhatWasExpected) {
  EXPECT_EQ(csv_error("bytes,time\n8,1\n"), "t.csv:1: column 'time' does not name its unit; expected --unit s, ms or us");
  EXPECT_EQ(csv_error("bytes,time_us\n8,1\n"), "t.csv:2: the number of ranks is not stated; expected --world, at least 2");
  EXPECT_EQ(csv_error("bytes,speed,ranks\n8,1,2\n"), "t.csv:1: no column of times; expected columns such as bytes, time_us and ranks");
  EXPECT_EQ(csv_error("elements,time_us\n8,1\n"), "t.csv:1: no column of sizes; expected columns such as bytes, time_us and ranks");
  EXPECT_EQ(csv_error("backend,bytes,time_us,ranks\nnccl,8,1,2\ngloo,8,1,2\n"),
            "t.csv:3: backend 'gloo' after 'nccl'; expected one, as --where 'backend=nccl' chooses");
  EXPECT_EQ(csv_error("nodes,bytes,time_us\n1,8,1\n2,8,1\n", {.world_size = 8}),
            "t.csv:3: nodes '2' after '1'; expected one, as --where 'nodes=1' chooses");
  EXPECT_EQ(csv_error("nodes,gpus,bytes,time_us\n1,8,8,1\n2,8,8,1\n"),
            "t.csv:3: nodes '2' after '1'; expected one, as --where 'nodes=1' chooses");
  EXPECT_EQ(csv_error("bytes;time_us;ranks\n8;1,5;2\n"), "t.csv:2: a comma between other separators; expected numbers such as 0.5");
  EXPECT_EQ(csv_error("collective,bytes,time_us,ranks\nReduceScatter,8,1,2\n"),
            "t.csv:2: only rows of ReduceScatter; expected all-reduce times");
  for (const char* other : {"all_gather_into_tensor", "ncclReduceScatter", "MPI_Allgather", "c10d::alltoall_base_"}) {
    EXPECT_EQ(csv_error(fmt::format("op,bytes,time_us,ranks\n{},8,1,2\n", other)),
              fmt::format("t.csv:2: only rows of {}; expected all-reduce times", other));
  }
  for (const char* time : {"backward_time_us", "iteration_time_us", "allgather_time_us", "cpu_time_us"}) {
    EXPECT_THAT(csv_error(fmt::format("bytes,{},ranks\n8,1,2\n", time)), HasSubstr("t.csv:1: no column of times")) << time;
  }
  EXPECT_EQ(csv_error("size,unit,time_us,ranks\n1,MB,1,2\n"),
            "t.csv:1: a column 'unit'; expected units in the names of columns, as time_us");
  EXPECT_EQ(csv_error("bytes,time_us,ranks,#wrong\n8,1,2,3\n"), "t.csv:2: #wrong is 3; expected correct results");
  EXPECT_EQ(csv_error("bytes,time_us,ranks,wrong\n8,1,2,3\n"), "t.csv:2: wrong is 3; expected correct results");
  EXPECT_EQ(csv_error("data_size(Bytes): | aveg_time(us): | check_result:\n8 | 1 | failed\n", {.world_size = 8}),
            "t.csv:2: check_result: is failed; expected correct results");
  EXPECT_EQ(csv_error("bytes,total_bytes,time_us,ranks\n8,16,1,2\n"), "t.csv:1: columns of sizes 'bytes' and 'total_bytes'; expected one");
  EXPECT_EQ(csv_error("op,bytes,time_us,ranks\nnccl:coalesced,8,1,2\n"), "t.csv:2: only rows of nccl:coalesced; expected all-reduce times");
  EXPECT_EQ(csv_error("bytes;time_us;ranks\n1.024;1;2\n"), "t.csv:2: bytes is 1.024; expected a whole number");
  EXPECT_EQ(csv_error("bytes,nccl_time_us,rccl_time_us,ranks\n8,1,2,2\n"),
            "t.csv:1: columns of times 'nccl_time_us' and 'rccl_time_us'; expected one");
  EXPECT_EQ(csv_error("bytes,time (?s),ranks\n8,1,2\n"), "t.csv:1: column 'time (?s)' does not name its unit; expected --unit s, ms or us");
  EXPECT_EQ(csv_error("bytes,time_us,ranks,n_gpus\n8,1,16,8\n"), "t.csv:1: columns of ranks 'ranks' and 'n_gpus'; expected one");
  EXPECT_EQ(csv_error("bytes,mean rate (GB/s),ranks\n8,1,2\n"),
            "t.csv:1: no column of times; expected columns such as bytes, time_us and ranks");
  EXPECT_EQ(csv_error("bytes,total_time_us,ranks\n8,1,2\n"),
            "t.csv:1: no column of times; expected columns such as bytes, time_us and ranks");
  EXPECT_THAT(csv_error("bytes,time_us,ranks\n8,1,2\n", {.where = {"config=x"}}), HasSubstr("--where config=x: expected COLUMN=VALUE"));
  EXPECT_THAT(csv_error("bytes,time_us,ranks\n8,1,2\n", {.where = {"ranks=3"}}), HasSubstr("t.csv:2: no measurements"));
  EXPECT_EQ(csv_error("bytes,time_us,ranks\n0,1,2\n"), "t.csv:2: bytes is 0; expected at least 1");
  EXPECT_EQ(csv_error("bytes,time_us,ranks\n8,0,2\n"), "t.csv:2: time_us is 0; expected seconds, more than 0");
  EXPECT_EQ(csv_error("bytes,time_us,ranks\n8,1,0\n"), "t.csv:2: ranks is 0; expected at least 1");
  EXPECT_EQ(csv_error("bytes,time_us,ranks\n8,fast,2\n"), "t.csv:2: time_us is 'fast'; expected a number");
  EXPECT_EQ(csv_error("bytes,bytes,time_us,ranks\n"), "t.csv:1: column 'bytes' appears twice; expected each name once");
}

TEST(AllReduceCsv, PublishedTablesAreReadAsTheyAre) {
  struct Published {
    const char* file;
    size_t rows;
    ImportOptions options = {};
  };
  const std::filesystem::path data = std::filesystem::path(FIRKIN_SOURCE_DIR) / "data";
  for (const auto& [file, rows, options] : {
           Published{"allreduce_superbench_8xA100_40GB.csv", 32},
           Published{"allreduce_8xH200.csv", 20},
           Published{"allreduce_aws_p4de_16xA100.csv", 29},
           Published{"allreduce_azure_a100_1to128gpu.csv", 206},
           Published{"allreduce_alps_gh200_4to2048gpu.csv", 300, {.where = {"config=cross_nic-ofi1.9.2"}}},
           Published{"gpu_sweeps/allreduce.csv", 12, {.where = {"source_repo=TianqGuo/MachineLearningNotes"}}},
           Published{"gpu_sweeps/allreduce_damek_nccl.csv", 8},
           Published{"cmsc828g/allreduce-times.csv", 19},
           Published{"demo_1gbit/allreduce.csv", 13},
       }) {
    SCOPED_TRACE(file);
    EXPECT_EQ(import_files({data / file}, options).table.size(), rows);
  }
}

// The two files for gpt2 (12 blocks of width 768, so 12 x 768^2 + 13 x 768 = 7,087,872 parameters each); blocks take 1 s each, the last
// layer norm 0.5 s, the LM head 2 s.
std::string sizes_text() {
  std::string text = ",Name,No. Params\n0,Token embedding,38597376\n1,Position embedding,786432\n";
  for (int i = 0; i < 12; ++i) text += fmt::format("{},Block {},7087872\n", i + 2, i);
  return text + "14,LayerNorm final,1536\n15,LM head,38597376\n";
}

std::string times_text() {
  std::string text = "Name,min,max,mean,std,median\nbackward,1,1,1,0,1\nforward,1,1,1,0,1\nstep,1,1,1,0,1\n";
  for (int i = 0; i < 12; ++i) text += fmt::format("block_{} grad,9,9,1,0,9\n", i);
  return text + "lm_head grad,9,9,2,0,9\nln_f grad,9,9,0.5,0,9\n";
}

std::string changed(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

Imported parse(const std::string& sizes = sizes_text(), const std::string& times = times_text()) {
  return parse_cmsc828g_profile(sizes, "s.csv", times, "t.csv");
}

std::string profile_error(const std::string& sizes, const std::string& times) {
  return error_of([&] { parse(sizes, times); });
}

size_t index_of(const TensorProfile& profile, const std::string& name) {
  return static_cast<size_t>(std::ranges::find(profile.names, name) - profile.names.begin());
}

TEST(Cmsc828gProfile, HoldsEveryTensorOfGpt2OnceInFloat32) {
  const TensorProfile profile = parse().profile.value();
  EXPECT_EQ(profile.names.size(), 12u * 12 + 4);
  EXPECT_EQ(std::accumulate(profile.bytes.begin(), profile.bytes.end(), int64_t{0}), int64_t{4} * 124439808);  // GPT-2's 124 M
  EXPECT_EQ(profile.bytes[index_of(profile, "blocks.3.attn_c_attn.weight")], 4 * 3 * 768 * 768);
  EXPECT_EQ(profile.bytes[index_of(profile, "blocks.3.mlp_c_fc.bias")], 4 * 4 * 768);
}

TEST(Cmsc828gProfile, RunsHeadThenNormThenBlocksFromTheLast) {
  const TensorProfile profile = parse().profile.value();
  EXPECT_EQ(profile.names.front(), "ln_final.bias");
  EXPECT_DOUBLE_EQ(profile.ready_s[0], 2.25);  // half of the norm's bytes
  EXPECT_DOUBLE_EQ(profile.ready_s[1], 2.5);
  EXPECT_EQ(profile.names[2], "blocks.11.mlp_c_proj.bias");
  EXPECT_DOUBLE_EQ(profile.ready_s[2], 2.5 + 768.0 / 7087872);
  EXPECT_DOUBLE_EQ(profile.ready_s[index_of(profile, "blocks.11.mlp_c_proj.weight")], 2.5 + (768.0 + 4 * 768 * 768) / 7087872);
  EXPECT_DOUBLE_EQ(profile.ready_s[index_of(profile, "blocks.11.ln_1.weight")], 3.5);
  EXPECT_DOUBLE_EQ(profile.ready_s[index_of(profile, "blocks.0.ln_1.weight")], 14.5);
}

TEST(Cmsc828gProfile, CompletesBothEmbeddingsAtTheEnd) {
  const TensorProfile profile = parse().profile.value();
  const size_t last = profile.names.size() - 1;
  EXPECT_EQ(profile.names[last - 1], "position_embeddings.weight");
  EXPECT_EQ(profile.names[last], "token_embeddings.weight");
  EXPECT_DOUBLE_EQ(profile.ready_s[last - 1], 14.5);
  EXPECT_DOUBLE_EQ(profile.ready_s[last], 14.5);
  EXPECT_DOUBLE_EQ(profile.backward_s, 14.5);
}

TEST(Cmsc828gProfile, SaysThatTheTiedWeightIsListedTwiceAndInTheSumOfTheSizes) {
  EXPECT_THAT(parse().notes.front(), HasSubstr("'Token embedding' and 'LM head' (38597376 parameters each) are one tied tensor"));
  EXPECT_EQ(parse().notes.at(1), "the sizes therefore add up to 163037184 parameters, 38597376 more than gpt2 has: 124439808");
}

TEST(Cmsc828gProfile, RejectsSizesThatAreNotTheModels) {
  EXPECT_EQ(profile_error(changed(sizes_text(), "Block 3,7087872", "Block 3,7087871"), times_text()),
            "s.csv:7: Block 3 has 7087871 parameters; expected 7087872, as in gpt2");
  EXPECT_EQ(profile_error(changed(sizes_text(), "Block 3,", "Block 99,"), times_text()), "s.csv:7: 'Block 99' is not part of gpt2");
  EXPECT_EQ(profile_error(changed(sizes_text(), "Block 3,", "Block 4,"), times_text()), "s.csv:8: 'Block 4' appears twice");
  EXPECT_EQ(profile_error(changed(sizes_text(), "LM head,", "Head,"), times_text()), "s.csv:17: 'Head' is not part of gpt2");
  EXPECT_THAT(profile_error("", times_text()), HasSubstr("s.csv:1: no header"));
}

TEST(Cmsc828gProfile, RejectsMalformedTimes) {
  EXPECT_EQ(profile_error(sizes_text(), changed(times_text(), "block_1 grad,9,9,1", "block_1 grad,9,9,-1")),
            "t.csv:6: mean is -1; expected seconds, more than 0");
  EXPECT_THAT(profile_error(sizes_text(), changed(times_text(), "block_1 grad,9,9,1", "block_1 grad,9,9,nan")), HasSubstr("t.csv:6: "));
  EXPECT_EQ(profile_error(sizes_text(), changed(times_text(), "ln_f grad", "ln_g grad")),
            "t.csv:1: no 'ln_f grad'; expected its gradient's time");
  EXPECT_EQ(profile_error(sizes_text(), times_text() + "block_12 grad,1,1,1,1,1\n"), "t.csv:19: 'block_12 grad' is not part of gpt2");
}

TEST(Cmsc828gProfile, FindsTheModelByItsBlocks) {
  EXPECT_EQ(parse().model, "gpt2");
  EXPECT_EQ(profile_error(changed(sizes_text(), "5,Block 3,7087872\n", ""), times_text()),
            "s.csv:1: 11 blocks; expected those of gpt2 (12 blocks), gpt2-medium (24 blocks), gpt2-large (36 blocks), gpt2-xl (48 blocks)");
}

}  // namespace
}  // namespace firkin
