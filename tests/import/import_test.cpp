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

const std::string kOsuTitle = "# OSU MPI Allreduce Latency Test v7.3\n";

TEST(ImportFiles, TakesFilesInAnyOrder) {
  const Imported imported = import_files({kAllReduce, kTimes, kSizes});
  EXPECT_THAT(imported.formats, ElementsAre(ImportFormat::kAllReduceCsv, ImportFormat::kCmsc828gTimes, ImportFormat::kCmsc828gSizes));
  EXPECT_EQ(imported.profile->names.size(), 436u);
  EXPECT_EQ(imported.profile->total_bytes(), int64_t{4} * 774030080);
  EXPECT_NEAR(imported.profile->backward_s, 0.82947, 1e-5);
  EXPECT_EQ(imported.model, "gpt2-large");
  EXPECT_EQ(imported.table.size(), 19u);
}

TEST(ImportFiles, RecognizesAFormatByWhatItHolds) {
  EXPECT_EQ(recognize_import("make: nothing to do\n" + kOsuTitle, "f"), ImportFormat::kBenchmarkLog);
  EXPECT_EQ(recognize_import("[0] #  size  count  type  redop  speed\n", "f"), ImportFormat::kBenchmarkLog);
  EXPECT_EQ(recognize_import("Name,min,mean\n", "f"), ImportFormat::kCmsc828gTimes);
  EXPECT_EQ(recognize_import("# measured with NCCL\nbytes,time_us\n", "f"), ImportFormat::kAllReduceCsv);
  EXPECT_THAT(error_of([] { recognize_import("\na,b\n", "f"); }), HasSubstr("f:2: unknown format; expected a trace of torch.profiler, "));
  EXPECT_THAT(error_of([] { recognize_import("", "f"); }), HasSubstr("f:1: unknown format"));
  EXPECT_THAT(error_of([] { recognize_import(std::string("b\0y\0t\0e\0s\0", 10), "f"); }),
              EndsWith("f:1: not a text: a byte is zero; expected UTF-8 (iconv -f UTF-16 -t UTF-8 f converts UTF-16)"));
}

TEST(ImportFiles, RejectsWhatDoesNotGoTogether) {
  EXPECT_THAT(error_of([] { import_files({kSizes}); }), EndsWith(".csv:1: without layer times of CMSC 828G; expected both"));
  EXPECT_THAT(error_of([] { import_files({kTimes}); }), EndsWith(".csv:1: without layer sizes of CMSC 828G; expected both"));
  EXPECT_THAT(error_of([] { import_files({kSizes, kTimes, kSizes}); }), EndsWith("expected one such file"));
  EXPECT_THAT(error_of([] { import_files({}); }), HasSubstr("no file to import"));
  EXPECT_THAT(error_of([] { import_files({file_of("osu.txt", kOsuTitle)}, {.where = {"type=float"}}); }),
              HasSubstr("--where takes rows of all-reduce times in CSV"));
  EXPECT_THAT(error_of([] { import_files({"missing.csv"}); }), HasSubstr("missing.csv: cannot be read"));
  EXPECT_THAT(error_of([] {
                import_files({kAllReduce, kAllReduce});
              }),
              AllOf(HasSubstr(" on 8 ranks, as in "), EndsWith("expected the files of one run, or of one setting")));
}

const std::filesystem::path kData = FIRKIN_SOURCE_DIR "/data";

TEST(Clusters, HaveTheirTables) {
  struct Expected {
    const char* name;
    size_t rows;
    std::vector<int64_t> worlds;
  };
  for (const auto& [name, rows, worlds] :
       {Expected{"alps-gh200", 300, {4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048}}, Expected{"aws-p4de", 29, {16}},
        Expected{"azure-nd-a100", 206, {1, 2, 4, 8, 16, 32, 64, 128}}, Expected{"cs336-pcie", 8, {2, 4}}, Expected{"h200", 20, {8}},
        Expected{"superbench-a100", 32, {8}}, Expected{"zaratan", 19, {8}}}) {
    const PublishedTimes times = read_cluster(name, kData);
    EXPECT_EQ(times.table.size(), rows) << name;
    EXPECT_EQ(world_sizes(times.table), worlds) << name;
  }
  EXPECT_EQ(import_files({kData / "demo_1gbit/allreduce.csv"}).table.size(), 13u);
}

TEST(Clusters, TakeTheTimesInPlace) {
  const AllReduceTable table = read_cluster("aws-p4de", kData).table;
  EXPECT_DOUBLE_EQ(std::ranges::find(table, 1048576, &AllReduceRow::bytes)->median_s, 307.3e-6);  // out of place: 309.4
}

TEST(Clusters, ANameMayEndWithTheNumberOfRanks) {
  EXPECT_EQ(read_cluster("aws-p4de-16", kData).world_size, 16);
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

const ImportOptions kNamedOn8 = {.world_size = 8, .collective = "all_reduce"}, kInPlace = {.collective = "all_reduce", .in_place = true};

ImportOptions where(const std::string& condition) {
  return {.collective = "all_reduce", .where = {condition}};
}

const Table kTables[] = {
    {"firkin", "bytes,world_size,median_s,gap_s\n1048576,8,0.0001,0.00009\n4194304,8,0.0002,\n"},
    {"course",
     "backend,world_size,total_elements,total_bytes,average_time,stdev_time\nnccl,8,1,1048576,0.0001,0\nnccl,8,2,4194304,0.0002,0\n"},
    {"collective_in_a_column",
     "collective,bytes,time_us,ranks\nall_gather,1,9,8\nall_reduce,1048576,100,8\nall_gather,2,9,8\nAllReduce,4194304,200,8\n"},
    {"collective_and_ranks_by_options", "bytes,time_us\n1048576,100\n4194304,200\n", kNamedOn8},
    {"out_of_place", "# source\nranks,bytes,time_us_oop,busbw_oop_GBps,time_us_ip\n8,1048576,100,18,125\n8,4194304,200,36,250\n",
     kNamedOn8},
    {"in_place", "ranks,bytes,time_us_oop,time_us_ip\n8,1048576.0,90,1e2\n8,4.194304e6,190,200\n", kInPlace},
    {"mebibytes", "source_repo,world_size,size_mib,time_ms\na/b,8,1,0.1\na/b,8,4,0.2\n", kNamedOn8},
    {"one_setting", "config,ranks,bytes,time_us\nx,8,1048576,100\nx,8,4194304,200\ny,8,4194304,300\n", where("config=x")},
    {"float_of_several_types", "type,bytes,time_us,ranks\nhalf,4194304,90,8\nfloat,1048576,100,8\nfloat,4194304,200,8\n", kNamedOn8},
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

TEST(AllReduceCsv, KeepsTheGapOfFirkinsAndTheDeviationOfTheCourses) {
  EXPECT_EQ(parse_allreduce_times(kTables[0].text, "t.csv", {}).table[0].gap_s, 0.00009);
  const std::string course = "backend,world_size,total_elements,total_bytes,average_time,stdev_time\nnccl,8,2,8,0.25,0.125\n";
  EXPECT_EQ(parse_allreduce_times(course, "a.csv", {}).table.at(0).stdev_s, 0.125);
}

std::string csv_error(const std::string& text, const ImportOptions& options = kNamedOn8) {
  return error_of([&] { parse_allreduce_times(text, "t.csv", options); });
}

TEST(AllReduceCsv, IsRefusedWithTheLineAndWhatWasExpected) {
  const ImportOptions named = {.collective = "all_reduce"};
  const std::string columns = "; expected bytes or size_mib; time_us, time_ms or time_s; ranks";
  EXPECT_EQ(csv_error("# a\nbytes,time_us,ranks\n8,1,2\n", {}),
            "t.csv:2: which collective was timed is not stated; expected --collective all_reduce if it is that");
  EXPECT_EQ(csv_error("bytes,time_us\n8,1\n", named), "t.csv:2: the number of ranks is not stated; expected --world, at least 2");
  EXPECT_EQ(csv_error("bytes,time,ranks\n8,1,2\n"), "t.csv:1: no column of times" + columns);
  EXPECT_EQ(csv_error("bytes,time_us_ip,ranks\n8,1,2\n"), "t.csv:1: no column of times" + columns);
  EXPECT_EQ(csv_error("elements,time_us\n8,1\n"), "t.csv:1: no column of sizes" + columns);
  EXPECT_EQ(csv_error("bytes,total_bytes,time_us,ranks\n8,16,1,2\n"), "t.csv:1: columns 'bytes' and 'total_bytes'; expected one of them");
  EXPECT_EQ(csv_error("bytes,bytes,time_us,ranks\n"), "t.csv:1: column 'bytes' appears twice; expected each name once");
  EXPECT_EQ(csv_error("backend,bytes,time_us,ranks\nnccl,8,1,2\ngloo,16,1,2\n"),
            "t.csv:3: backend 'gloo' after 'nccl'; expected one, as --where 'backend=nccl' chooses");
  EXPECT_EQ(csv_error("nodes,bytes,time_us,ranks\n1,8,1,8\n2,8,1,8\n"),
            "t.csv:3: 8 bytes on 8 ranks twice; expected one run, or one setting, a file");
  EXPECT_EQ(csv_error("op,bytes,time_us,ranks\nReduceScatter,8,1,2\n"), "t.csv:2: only rows of ReduceScatter; expected all-reduce times");
  EXPECT_THAT(csv_error("bytes,time_us,ranks\n8,1,2\n", where("config=x")), HasSubstr("--where config=x: expected COLUMN=VALUE"));
  EXPECT_THAT(csv_error("bytes,time_us,ranks\n8,1,2\n", where("ranks=3")), HasSubstr("t.csv:1: no measurements"));
  for (const char* bytes : {"0", "-8", "1.024", "1e300"}) {
    EXPECT_EQ(csv_error(fmt::format("bytes,time_us,ranks\n{},1,2\n", bytes)),
              fmt::format("t.csv:2: bytes is {}; expected a whole number of bytes, at least 1", bytes));
  }
  EXPECT_EQ(csv_error("bytes,time_us,ranks\n8,0,2\n"), "t.csv:2: the time is 0 s; expected seconds, more than 0");
  EXPECT_EQ(csv_error("bytes,time_us,ranks,#wrong\n8,1,2,3\n"), "t.csv:2: #wrong is 3; expected correct results");
  EXPECT_EQ(csv_error("bytes,time_us,ranks\n8,1,0\n"), "t.csv:2: ranks is 0; expected at least 1");
  EXPECT_EQ(csv_error("bytes,time_us,ranks\n8,fast,2\n"), "t.csv:2: time_us is 'fast'; expected a number");
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
