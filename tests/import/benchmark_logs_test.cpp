// Logs as people have them: what surrounds the tables of nccl-tests, rccl-tests and OSU, each with the rows that it must give, and those
// that are refused. docs/public_reports.md names some reports.

#include <fmt/ranges.h>

#include "../base/temporary_folder.h"
#include "../plan/helpers.h"
#include "firkin/base/file.h"
#include "import/import.h"

namespace firkin {
namespace {

// Two sizes of 8 ranks: 1 MB in 100 us is 10 GB/s, on the bus 17.5; 4 MB in 200 us is 20 and 35.
const std::string kTitle = "# Collective test starting: all_reduce_perf\n";
const std::string kHeader =
    "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n";
const std::string kSmall =
    "     1000000        250000     float     sum      -1   100.00   10.00   17.50      0   125.00    8.00   14.00      0\n";
const std::string kLarge =
    "     4000000       1000000     float     sum      -1   200.00   20.00   35.00      0   250.00   16.00   28.00      0\n";
const std::string kTable = kHeader + kSmall + kLarge;
const std::string kHalf =
    "     4000000       2000000      half     sum      -1   160.00   25.00   43.75      0   200.00   20.00   35.00      0\n";
const std::string kInfo = "node1:17:17 [0] NCCL INFO Channel 00/02 :    0   1   2   3   4   5   6   7\n";

std::string devices(int ranks) {
  std::string text =
      "# nThread 1 nGpus 1 minBytes 1000000 maxBytes 4000000 step: 4(factor) warmup iters: 5 iters: 20\n#\n# Using devices\n";
  for (int rank = 0; rank < ranks; ++rank) {
    text += fmt::format("#  Rank {:2} Group  0 Pid  {} on      node device {:2} [0x07] NVIDIA A100-SXM4-40GB\n", rank, 4000 + rank, rank);
  }
  return text;
}

const std::string kRun = kTitle + devices(8) + kTable;

std::string replaced(std::string text, const std::string& before, const std::string& after) {
  for (size_t at = text.find(before); at != std::string::npos; at = text.find(before, at + after.size())) {
    text.replace(at, before.size(), after);
  }
  return text;
}

// Every line of the text behind a tag.
std::string tagged(const std::string& tag, const std::string& text) {
  return tag + replaced(text.substr(0, text.size() - 1), "\n", "\n" + tag) + "\n";
}

const std::string kOldTable =  // nccl-tests 2.10 and older: no root, and the largest error
    "#       size         count      type   redop     time   algbw   busbw  error     time   algbw   busbw  error\n"
    "#        (B)    (elements)                       (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)\n"
    "     1000000        250000     float     sum   100.00   10.00   17.50  2e-07   125.00    8.00   14.00  2e-07\n"
    "     4000000       1000000     float     sum   200.00   20.00   35.00  5e-07   250.00   16.00   28.00  5e-07\n";
const std::string kBroadcast =  // of two ranks, where its bandwidths are those of an all-reduce
    "#       size         count    type    root     time   algbw   busbw  error     time   algbw   busbw  error\n"
    "     1000000        250000   float       0   100.00   10.00   10.00    N/A   125.00    8.00    8.00    N/A\n";
const std::string kNccl1 =  // milliseconds
    "#      bytes             N    type      op     time  algbw  busbw      res     time  algbw  busbw      res\n"
    "     1000000        250000   float     sum    0.100  10.00  17.50    0e+00    0.125   8.00  14.00    0e+00\n"
    "     4000000       1000000   float     sum    0.200  20.00  35.00    0e+00    0.250  16.00  28.00    0e+00\n";

const std::string kOsu =
    "# OSU MPI-CUDA Allreduce Latency Test v7.3\n"
    "# Datatype: MPI_FLOAT.\n"
    "# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations\n"
    "1000000                100.00             90.00            110.00        1000\n"
    "4000000                200.00            190.00            210.00        1000\n";
const std::string kOsuValidated = replaced(replaced(kOsu, "Iterations", "Iterations  Validation"), "1000\n", "1000  Pass\n");

std::string imb(const std::string& benchmark, const std::string& column = "") {
  const std::string value = column.empty() ? "" : "  0.00";
  return "# MPI_Datatype                   :   MPI_BYTE\n# MPI_Datatype for reductions    :   MPI_FLOAT\n#---------\n# Benchmarking " +
         benchmark + "\n# #processes = 8\n# ( 8 additional processes waiting in MPI_Barrier)\n#---------\n" +
         "       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]  " + column + "\n" +
         "      1000000         1000        90.00       110.00       100.00" + value + "\n" +
         "      4000000          160       190.00       210.00       200.00" + value + "\n\n";
}
const std::string kOneccl = replaced(imb("allreduce", "stddev[%]"), "# Benchmarking", "# Benchmarking:");
const std::string kOnecclTable = kOneccl.substr(kOneccl.find("# Benchmarking"));

struct Log {
  const char* name;
  std::string text;
  std::string note = "";  // a part of one
  ImportOptions options = {};
};

const ImportOptions kNothing = {}, kOn4 = {.world_size = 4}, kOn8 = {.world_size = 8}, kFloat32 = {.dtype = "float32"};
const ImportOptions kSaid = {.world_size = 8, .collective = "all_reduce"};
const ImportOptions kSaidInPlace = {.world_size = 8, .collective = "all_reduce", .in_place = true};

const Log kLogs[] = {
    {"nccl_tests", kRun},
    {"title_and_ranks_by_options", kTable, "", kSaid},
    {"title_of_a_command_line", "+ srun --job-name=nccl_perf --ntasks=8 ./build/all_reduce_perf -b 1000000\n" + devices(8) + kTable},
    {"program_with_suffix", "# Collective test starting: all_reduce_perf_mpi\n" + devices(8) + kTable},
    {"old_error_column", kTitle + devices(8) + kOldTable},
    {"error_column_and_root", replaced(kRun, "#wrong", "error")},
    {"nccl_1_in_milliseconds", kNccl1, "", kSaid},
    {"rccl_tests", kTitle + "# nThread 1 nGpus 8\n#\nrccl-tests: Version develop:5272cd1\n" + devices(8) + kTable},
    {"mpirun_tags", tagged("[1,0]<stdout>:", kTitle + devices(8) + kInfo + kHeader + kSmall + kInfo + kLarge)},
    {"mpirun_tags_without_blanks", replaced(tagged("[1,0]<stdout>:", kRun), ":     ", ":")},
    {"srun_tags", tagged("0: ", kRun) + tagged("7: ", kInfo)},
    {"kubernetes", tagged("2025-03-14T12:26:53.589793238Z ", kRun)},
    {"colours", replaced(kRun, "sum", "\x1b[1;32msum\x1b[0m")},
    {"byte_order_mark_and_line_ends_of_windows", "\xEF\xBB\xBF" + replaced(kRun, "\n", "\r\n")},
    {"no_break_spaces", replaced(kRun, "  ", " \xC2\xA0")},
    {"in_place",
     kHeader + "1000000 250000 float sum -1 125.00 8.00 14.00 N/A 100.00 10.00 17.50 N/A\n"
               "4000000 1000000 float sum -1 250.00 16.00 28.00 N/A 200.00 20.00 35.00 N/A\n",
     "", kSaidInPlace},
    {"empty_messages", kTitle + kHeader + "0 0 float sum -1 5.00 0.00 0.00 0 5.00 0.00 0.00 0\n" + kSmall + kLarge,
     "log:3: skipped 1 rows of 0 bytes", kOn8},
    {"several_types", kRun + kHalf + kHalf, "skipped 2 rows of the element type 'half', which is not float"},
    {"several_operations", kRun + replaced(kLarge, "sum", "max"), "skipped 1 rows of the operation 'max', which is not sum"},
    {"other_programs_beside", "$ ./build/sendrecv_perf -b 1M\n" + devices(8) + kTable + "$ ./build/all_reduce_perf -b 1M\n" + kRun,
     "log:13: skipped 1 tables of sendrecv"},
    {"osu", kOsu, "", kOn8},
    {"osu_plain", "# OSU MPI Allreduce Latency Test v5.6.2\n# Size       Avg Latency(us)\n1000000   100.00\n4000000   200.00\n", "", kOn8},
    {"osu_validated", kOsuValidated, "", kOn8},
    {"osu_tagged_with_times", tagged("Sun Dec 24 09:52:05 2017[1,0]<stdout>:", kOsu), "", kOn8},
    {"osu_in_a_log", "Loading module openmpi/4.1\n" + tagged("0: ", kOsu) + "slurmstepd: the job took 3600 1 2 3 4\n", "", kOn8},
    {"osu_with_a_trace", replaced(kOsu, "4000000  ", "[1678205653.81] [node:903  :0]  ucc_coll.c:255  UCC_COLL INFO  id 32768\n4000000  "),
     "", kOn8},
    {"osu_several_types", replaced(kOsu, "MPI_FLOAT", "MPI_INT") + kOsu, "skipped 2 rows of the element type 'MPI_INT'", kOn8},
    {"osu_other_benchmarks", replaced(kOsu, "Allreduce", "Broadcast") + kOsu, "log:3: skipped 1 tables of Broadcast", kOn8},
    {"osu_between_two_ranks_beside", "# OSU MPI Latency Test v5.8\n# Size          Latency (us)\n1   0.46\n" + kOsu,
     "skipped 1 tables of Latency Test v5.8", kOn8},
    {"imb", imb("Allreduce")},
    {"imb_with_defects", imb("Allreduce", "defects")},
    {"imb_other_benchmarks", imb("Reduce") + imb("Multi-Allreduce") + imb("Allreduce") + imb("Allgather"),
     "log:8: skipped 1 tables of Reduce"},
    {"imb_on_a_ci_server", tagged("00:55:22  ", imb("Allreduce"))},
    {"oneccl", kOneccl},
    {"oneccl_with_numbers_of_elements", replaced(replaced(kOneccl, "#rep", "elem_count  #rep"), "00000  ", "00000  250000  ")},
    {"oneccl_several_types",
     "datatype: int8\nreduction: sum\n" + replaced(kOneccl, "allreduce", "bcast") + "datatype: float32\nreduction: sum\n" + kOnecclTable,
     "tables of bcast", kFloat32},
};

Imported import_log(const std::string& text, const ImportOptions& options) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder.path / "log";
  write_file_atomically(path, text);
  Imported imported = import_files({path}, options);
  for (std::string& note : imported.notes) note = replaced(note, path.string(), "log");
  return imported;
}

TEST(BenchmarkLogs, GiveTheirRows) {
  for (const Log& log : kLogs) {
    SCOPED_TRACE(log.name);
    const Imported imported = import_log(log.text, log.options);
    ASSERT_EQ(imported.table.size(), 2u);
    EXPECT_EQ(imported.table[0].bytes, 1000000);
    EXPECT_NEAR(imported.table[0].median_s, 100e-6, 1e-12);
    EXPECT_EQ(imported.table[1].bytes, 4000000);
    EXPECT_NEAR(imported.table[1].median_s, 200e-6, 1e-12);
    EXPECT_THAT(world_sizes(imported.table), ElementsAre(8));
    EXPECT_EQ(imported.notes.empty(), log.note.empty());
    EXPECT_THAT(fmt::format("{}", fmt::join(imported.notes, "\n")), HasSubstr(log.note));
  }
}

struct Refusal {
  const char* name;
  std::string text;
  std::string error;  // its end
  ImportOptions options = kSaid;
};

const std::string kUnnamed = "which collective was timed is not stated; expected --collective all_reduce if it is that";
const std::string kRanks = "the number of ranks is not stated; expected --world, at least 2";
const std::string kTwice = "1000000 bytes on 8 ranks twice; expected one run, or one setting, a file";
const std::string kWithoutHeader = "a row behind other words, or without a header; expected the log as nccl-tests prints it";
const std::string kExpected = "; expected the results of all_reduce_perf, osu_allreduce or IMB-MPI1's Allreduce";
const std::string kColumns = "; expected those of all_reduce_perf, osu_allreduce or IMB-MPI1's Allreduce";
const std::string kFiles =
    "; expected a trace of torch.profiler, all-reduce times in CSV with a header such as bytes,time_us,ranks, a log of "
    "nccl-tests, rccl-tests, osu_allreduce, IMB-MPI1, oneCCL's benchmark or NCCL's Inspector, or layer sizes or layer times of CMSC 828G";

const Refusal kRefusals[] = {
    // What the log does not say is not concluded.
    {"collective_not_stated", kTable, "log:1: " + kUnnamed, kOn8},
    {"collective_not_stated_of_a_second_table", kRun + kTable, "log:16: " + kUnnamed, kOn8},
    {"ranks_not_stated", kTitle + kTable, "log:3: " + kRanks, kNothing},
    {"osu_ranks_not_stated", kOsu, "log:4: " + kRanks, kNothing},
    {"devices_left_out", kTitle + "#  Rank  7 Group  0 Pid  14840 on node device  7 [0x01] NVIDIA A100\n" + kTable, "log:4: " + kRanks,
     kNothing},
    {"split_communicator", replaced(kRun, "Rank  1 Group  0", "Rank  1 Group  1"), "log:14: " + kRanks, kNothing},
    // What it says goes before what the options say.
    {"named", "$ ./build/sendrecv_perf -b 1M\n" + kTable, "log:2: only tables of sendrecv" + kExpected},
    {"broadcast_of_two", kBroadcast,
     "log:1: unknown columns '# size count type root time algbw busbw error time algbw busbw error'" + kColumns},
    {"reduce_scatter", replaced(kTable, " 250000", "  31250"),
     "log:2: 31250 elements in 1000000 bytes; expected 250000, as all-reduces have it"},
    {"all_gather", replaced(kTable, " sum", "none"), "log:2: a collective without reduction; expected all-reduces"},
    {"reduce", replaced(kTable, "-1", " 0"), "log:2: the root is 0; expected -1, as all-reduces have it"},
    {"osu_non_blocking", replaced(kOsu, "Allreduce", "Non-blocking Allreduce"), "log:3: only tables of Non-blocking Allreduce" + kExpected},
    {"ranks_contradicted", kTitle + kTable, "log:3: busbw is 17.5 GB/s; expected 15, for an all-reduce of 4 ranks", kOn4},
    {"inconsistent_columns", replaced(kRun, "200.00   20.00", "200.00   21.00"),
     "log:15: algbw is 21 GB/s; expected 20, as size and time have it"},
    // Without MPI every process runs alone and prints a table of its own.
    {"one_rank_each", kTitle + devices(1) + "#   Rank  0 Pid   2066 on node2 device  0 [0x00] V100\n" + replaced(kTable, "17.50", " 0.00"),
     "only rows of one rank alone (was nccl-tests built with MPI=1?)" + kExpected},
    // Columns out of the list.
    {"cpu_times", replaced(kRun, "time", "cputime"), kColumns},
    {"timestamps_at_the_end", replaced(kRun, "#wrong\n", "#wrong timestamp\n"), kColumns},
    {"imb_without_averages", replaced(imb("Allreduce"), "t_avg[usec]", ""), kColumns},
    // Damage.
    {"hash_signs_lost", replaced(kRun, "#  ", "   "), "log:14: " + kWithoutHeader},
    {"all_hash_signs_lost", replaced(kRun, "#", " "), "log:1: a log of nccl-tests without the # before its lines" + kFiles},
    {"row_before_its_header", kTitle + kSmall + kHeader + kLarge, "log:2: " + kWithoutHeader},
    {"sides_swapped", kTitle + "#               in-place                       out-of-place\n" + kTable,
     "log:2: in-place before out-of-place; expected the log as nccl-tests prints it"},
    {"row_behind_other_output", kTitle + kHeader + kSmall + "node1:17:17 [0] NCCL INFO x" + kLarge, "log:4: " + kWithoutHeader},
    {"row_cut_behind_the_root",
     kTitle + kHeader + kSmall + "4000000  1000000  float  sum  -1[0] " + kInfo + " 200.00   20.00   35.00      0\n",
     "log:4: a row of 20 values; expected 13, as its header has"},
    {"row_cut_short_at_the_end", kRun + "    16000000       4000000     float     sum      -1   400",
     "log:16: a row of 6 values; expected 13, as its header has"},
    {"row_with_a_word", replaced(kRun, "  100.00", "    fast"), "log:14: time is 'fast'; expected a number"},
    {"size_beyond_64_bits", replaced(kRun, "1000000 ", "99999999999999999999 "),
     "log:14: bytes is '99999999999999999999'; expected a number"},
    {"negative_size", replaced(kRun, " 1000000        250000", "-1000000       -250000"),
     "log:14: the size is -1000000; expected at least 0"},
    {"time_of_zero", kTitle + kHeader + "8 2 float sum -1 0 0 0 0 1 0 0 0\n", "log:3: the time is 0 s; expected seconds, more than 0"},
    {"osu_values_that_the_header_leaves_out", replaced(kOsu, "   Min Latency(us)   Max Latency(us)  Iterations", ""),
     "log:4: a row of 5 values; expected 2, as its header has"},
    {"columns_as_csv", "size,count,type,time,time\n1000000,250000,float,100.00,125.00\n", "log:1: unknown format" + kFiles},
    // Results.
    {"wrong", replaced(kRun, "17.50      0", "17.50      3"), "log:14: wrong is 3; expected correct results"},
    {"osu_not_valid", replaced(kOsuValidated, "Pass", "Fail"), "log:4: wrong is Fail; expected correct results"},
    {"imb_wrong", replaced(imb("Allreduce", "defects"), "0.00\n", "0.25\n"), "log:9: wrong is 0.25; expected correct results"},
    {"types_without_float", kTitle + kHeader + kHalf + replaced(kHalf, "    half", "bfloat16"),
     "log:3: rows of the element types half, bfloat16; expected one, or --dtype with one of them"},
    {"two_runs", kRun + kRun, "log:29: " + kTwice},
    {"osu_twice", kOsu + "$ mpirun -np 4 ./osu_allreduce\n" + kOsu, "log:10: " + kTwice},
    {"nothing_measured", kTitle + kInfo, "log:1: no measurements" + kExpected},
};

TEST(BenchmarkLogs, AreRefusedWithTheLineAndWhatWasExpected) {
  for (const Refusal& log : kRefusals) {
    SCOPED_TRACE(log.name);
    EXPECT_THAT(error_of([&] { import_log(log.text, log.options); }), EndsWith(log.error));
  }
}

// Forms of openucx/ucc#166, microsoft/mscclpp#83, NVIDIA/nvshmem#39, pytorch/gloo#122, and of AWS's pages.
TEST(BenchmarkLogs, OfOthersAreRefusedByTheirNames) {
  const std::pair<const char*, std::string> texts[] = {
      {"JSON of nccl-tests (-J), which prints a log as well",
       R"({"args":["./all_reduce_perf"],"results":[{"size":8,"out_of_place":{"bus_bw":1}}]})"},
      {"output of nccom-test",
       "size(B)  count(elems)  type  time(us)  algbw(GB/s)  busbw(GB/s)\n1000000  250000  fp32  100  9.31  16.30\n"},
      {"output of NVSHMEM's perftest",
       "size(B)  count  type  redop  latency(us)  algbw(GB/s)  busbw(GB/s)\n1000000  250000  float  sum  100.0  10.0  17.5\n"},
      {"output of mscclpp-test",
       "# Initializing MSCCL++\n#  size  count  time  algbw  busbw  #wrong\n1000000  250000  100.0  10.00  17.50  0\n"},
      {"output of ucc_perftest", "Collective: Allreduce\n  Count  Size  Time, us\n  avg  min  max\n250000  1000000  100.0  90.0  110.0\n"},
      {"output of Gloo's benchmark", "  elements  min (us)  p50 (us)  avg (GB/s)  samples\n  250000  90  100  10.000  961\n"},
      {"a log of Megatron-LM, whose times are of no single all-reduce",
       "(min, max) time across ranks (ms):\n    all-grads-sync ................................: (12.10, 12.32)\n"},
  };
  for (const auto& [name, text] : texts) {
    EXPECT_THAT(error_of([&] { import_log(text, kSaid); }), HasSubstr(fmt::format(": {}; expected ", name)));
  }
}

TEST(BenchmarkLogs, HaveBandwidthsThatAreRoundedEachByItself) {
  // 0.0018 and 0.0031, 0.0046 and 0.0081, 0.1049 and 0.1835 GB/s.
  const std::string rows =
      "64 16 float sum -1 36.06 0.00 0.00 0 36 0 0 0\n128 32 float sum -1 27.76 0.00 0.01 0 28 0 0 0\n"
      "4096 1024 float sum -1 39.06 0.10 0.18 0 39 0 0 0\n";
  EXPECT_EQ(import_log(kTitle + kHeader + rows, kOn8).table.size(), 3u);
}

TEST(BenchmarkLogs, GiveTheRowsOfAnyElementTypeThatIsAskedFor) {
  EXPECT_NEAR(import_log(kRun + kHalf, {.dtype = "half"}).table.at(0).median_s, 160e-6, 1e-12);
}

TEST(BenchmarkLogs, OfRunsOnDifferentNumbersOfRanksGiveTheRowsOfAll) {
  const std::string on_two = kTitle + devices(2) + kHeader + "1000000 250000 float sum -1 100.00 10.00 10.00 0 100.00 10.00 10.00 0\n";
  const Imported imported = import_log(on_two + kRun, {});
  EXPECT_THAT(world_sizes(imported.table), ElementsAre(2, 8));
  EXPECT_EQ(imported.table.size(), 3u);
}

}  // namespace
}  // namespace firkin
