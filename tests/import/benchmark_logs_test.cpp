// Logs as people have them: what surrounds and cuts the tables of nccl-tests, rccl-tests and OSU, each with the rows that it must give.
// Forms of public reports: NVIDIA/nccl-tests#82 (broadcast_of_two), #107 (one_rank_each), #128 (reduce_scatter), #290
// (srun_tags, several runs); NVIDIA/nccl#25 (nccl_1_in_milliseconds), #340 (named), #583 (hash_signs_lost), #1453
// (row_cut_behind_the_root); aws/aws-ofi-nccl#33 (old_error_column), nebius/soperator#428 (program_with_suffix),
// coreweave/nccl-tests#43 (devices_left_out), boeschf/nccl-benchmark-on-alps-2025 (columns_as_csv), ROCm/
// container-toolkit#77 (rccl_tests), openucx/ucc#981 (osu), openucx/ucx#2111 (osu_tagged_with_times), #3045
// (osu_non_blocking), open-mpi/ompi#12318 (osu_other_benchmarks, osu_values_that_the_header_leaves_out), #9838
// (imb_other_benchmarks), ofiwg/libfabric#9772 (imb_on_a_ci_server), openucx/ucc#73 (imb_with_defects).

#include "../base/temporary_folder.h"
#include "../plan/helpers.h"
#include "firkin/base/file.h"
#include "import/import.h"

namespace firkin {
namespace {

// Two sizes of 8 ranks: 1 MB in 100 us is 10 GB/s, on the bus 17.5; 4 MB in 200 us is 20 and 35.
const std::string kHeader =
    "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n";
const std::string kSmall =
    "     1000000        250000     float     sum      -1   100.00   10.00   17.50      0   125.00    8.00   14.00      0\n";
const std::string kLarge =
    "     4000000       1000000     float     sum      -1   200.00   20.00   35.00      0   250.00   16.00   28.00      0\n";
const std::string kTable = kHeader + kSmall + kLarge;
const std::string kHalf =
    "     4000000       2000000      half     sum      -1   160.00   25.00   43.75      0   200.00   20.00   35.00      0\n";
const std::string kMax =
    "     4000000       1000000     float     max      -1   160.00   25.00   43.75      0   200.00   20.00   35.00      0\n";
const std::string kInfo = "node1:17:17 [0] NCCL INFO Channel 00/02 :    0   1   2   3   4   5   6   7\n";

std::string devices(int ranks) {
  std::string text =
      "# nThread 1 nGpus 1 minBytes 1000000 maxBytes 4000000 step: 4(factor) warmup iters: 5 iters: 20\n#\n# Using devices\n";
  for (int rank = 0; rank < ranks; ++rank) {
    text += fmt::format("#  Rank {:2} Group  0 Pid  {} on      node device {:2} [0x07] NVIDIA A100-SXM4-40GB\n", rank, 4000 + rank, rank);
  }
  return text;
}

// Every line of the text behind a tag.
std::string tagged(const std::string& tag, const std::string& text) {
  std::string result;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin) + 1;
    result += tag + text.substr(begin, end - begin);
    begin = end;
  }
  return result;
}

std::string replaced(std::string text, const std::string& before, const std::string& after) {
  for (size_t at = text.find(before); at != std::string::npos; at = text.find(before, at + after.size())) {
    text.replace(at, before.size(), after);
  }
  return text;
}

const std::string kOldTable =  // nccl-tests 2.10 and older: no root, and the largest error
    "#       size         count      type   redop     time   algbw   busbw  error     time   algbw   busbw  error\n"
    "#        (B)    (elements)                       (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)\n"
    "     1000000        250000     float     sum   100.00   10.00   17.50  2e-07   125.00    8.00   14.00  2e-07\n"
    "     4000000       1000000     float     sum   200.00   20.00   35.00  5e-07   250.00   16.00   28.00  5e-07\n";
const std::string kBroadcast =  // of two ranks, where its bandwidths are those of an all-reduce
    "#       size         count    type    root     time   algbw   busbw  error     time   algbw   busbw  error\n"
    "     1000000        250000   float       0   100.00   10.00   10.00    N/A   125.00    8.00    8.00    N/A\n";
const std::string kSides = "#                              out-of-place                       in-place\n";
const std::string kOtherSides = "#                              in-place                       out-of-place\n";
const std::string kSendRecv =  // of two ranks; it is not checked in place
    kHeader + "     1000000        250000     float     sum      -1   100.00   10.00   10.00      0   125.00    8.00    8.00    N/A\n";
const std::string kReduceScatter =
    kHeader + "     1000000         31250     float     sum      -1   100.00   10.00    8.75      0   125.00    8.00    7.00      0\n";
const std::string kAllGather =
    kHeader + "     1000000         31250     float    none      -1   100.00   10.00    8.75      0   125.00    8.00    7.00      0\n";
const std::string kReduce =
    kHeader + "     1000000        250000     float     sum       0   100.00   10.00   10.00      0   125.00    8.00    8.00      0\n";
const std::string kCpuTime = replaced(kTable, "time", "cputime");
const std::string kPerIteration =  // -I 1, nccl-tests 2.19
    "# size count type redop root time algbw busbw #wrong i_min i_max i_p99 i_cv% time algbw busbw #wrong i_min i_max i_p99 i_cv%\n"
    "  1000000 250000 float sum -1 100.00 10.00 17.50 0 90.00 110.0 109.0 2.10 125.00 8.00 14.00 0 120.0 130.0 129.0 1.90\n"
    "  4000000 1000000 float sum -1 200.00 20.00 35.00 0 190.0 210.0 209.0 2.10 250.00 16.00 28.00 0 240.0 260.0 259.0 1.90\n";
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

std::string imb(const std::string& benchmark, const std::string& column = "") {
  return "# MPI_Datatype                   :   MPI_BYTE\n# MPI_Datatype for reductions    :   MPI_FLOAT\n#---------\n# Benchmarking " +
         benchmark + "\n# #processes = 8\n# ( 8 additional processes waiting in MPI_Barrier)\n#---------\n" +
         "       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]" + (column.empty() ? "" : "  " + column) + "\n" +
         "      1000000         1000        90.00       110.00       100.00" + (column.empty() ? "" : "  0.00") + "\n" +
         "      4000000          160       190.00       210.00       200.00" + (column.empty() ? "" : "  0.00") + "\n\n";
}

const std::string kGroups =  // -multi 1
    "# Benchmarking Multi-Allreduce\n# ( 2 groups of 4 processes each running simultaneous )\n# Group  0:     0    1    2    3\n#\n"
    "# Group  1:     4    5    6    7\n#\n#---------\n"
    "        Group       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]\n"
    "            0            4         1000        90.00       110.00       100.00\n"
    "            1            4         1000        90.00       110.00       101.00\n"
    "            0      4000000          160       190.00       210.00       200.00\n"
    "            1      4000000          160       190.00       210.00       201.00\n\n";
const std::string kOneccl = replaced(replaced(imb("allreduce", "stddev[%]"), "# Benchmarking", "# Benchmarking:"), " MPI_", " ");

// With a character in place of the blanks between the words of each line.
std::string separated(const std::string& text, char separator) {
  std::string result;
  for (const char c : text) {
    if (c != ' ')
      result += c;
    else if (!result.empty() && result.back() != separator && result.back() != '\n')
      result += separator;
  }
  return result;
}

const std::string kNamedSides =
    "size,count,type,redop,root,out-of-place time,out-of-place algbw,out-of-place busbw,#wrong,in-place time,in-place "
    "algbw,in-place busbw,#wrong\n";

// Each character as two bytes, behind a byte-order mark.
std::string utf16(const std::string& text, bool little_endian) {
  std::string result = little_endian ? "\xFF\xFE" : "\xFE\xFF";
  for (const char c : text) result += little_endian ? std::string{c, '\0'} : std::string{'\0', c};
  return result;
}

// The file of -J, of two processes with four devices each, of which they list the first. As text, `kTable`.
std::string json(const std::string& program, const std::string& wrong_in_place = "0.000000") {
  const auto result = [&](int64_t bytes, double time_us, double in_place_us) {
    const auto side = [&](double us, const std::string& wrong) {
      const double gigabytes = static_cast<double>(bytes) / us / 1e3;
      return fmt::format(R"({{"time":{:f},"alg_bw":{:f},"bus_bw":{:f},"nwrong":{}}})", us, gigabytes, 1.75 * gigabytes, wrong);
    };
    return fmt::format(R"({{"size":{},"count":{},"type":"float","redop":"sum","root":"    -1","out_of_place":{},"in_place":{}}})", bytes,
                       bytes / 4, side(time_us, "0.000000"), side(in_place_us, wrong_in_place));
  };
  return fmt::format(R"({{"version":1,"args":["./build/{}","-J","x"],"env":["A=NCCL"],"nccl_version":22907,"config":{{"nthreads":1,)"
                     R"("ngpus":4,"devices":[{{"rank":0,"group":0}},{{"rank":4,"group":0}}]}},"results":[{},{}]}})",
                     program, result(1000000, 100, 125), result(4000000, 200, 250));
}

struct Log {
  const char* name;
  std::string text;
  std::string note = "";  // a part of one
  ImportOptions options = {.world_size = 8};
};

const ImportOptions kRanksInTheLog = {};

const Log kLogs[] = {
    {"nccl_tests", devices(8) + kTable, "", kRanksInTheLog},
    {"old_error_column", devices(8) + kOldTable, "", kRanksInTheLog},
    {"nccl_1_in_milliseconds", kNccl1},
    {"per_iteration_columns", kPerIteration},
    {"mpirun_tags", tagged("[1,0]<stdout>:", devices(8) + kInfo + kHeader + kSmall + kInfo + kLarge), "", kRanksInTheLog},
    {"mpirun_tags_without_blanks", kHeader + tagged("[1,0]<stdout>:",
                                                    "1000000 250000 float sum -1 100.00 10.00 17.50 0 125.00 8.00 14.00 0\n"
                                                    "4000000 1000000 float sum -1 200.00 20.00 35.00 0 250.00 16.00 28.00 0\n")},
    {"srun_tags", tagged("0: ", devices(8) + kTable) + tagged("7: ", kInfo), "", kRanksInTheLog},
    {"mpich_tags", tagged("[0] ", devices(8) + kTable), "", kRanksInTheLog},
    {"prte_tags", tagged("[prterun-node-1@1,0]<stdout>: ", devices(8) + kTable), "", kRanksInTheLog},
    {"kubernetes", tagged("2025-03-14T12:26:53.589793238Z ", devices(8) + kTable), "", kRanksInTheLog},
    {"syslog", tagged("Mar 14 12:26:53 node1 bench[4711]: ", devices(8) + kTable), "", kRanksInTheLog},
    {"python_logging", tagged("2025-03-14 12:26:53,589 INFO ", devices(8) + kTable), "", kRanksInTheLog},
    {"colours", devices(8) + replaced(kTable, "sum", "\x1b[1;32msum\x1b[0m"), "", kRanksInTheLog},
    {"byte_order_mark", "\xEF\xBB\xBF" + devices(8) + kTable, "", kRanksInTheLog},
    {"windows_line_ends", replaced(devices(8) + kTable, "\n", "\r\n"), "", kRanksInTheLog},
    {"utf16_of_powershell", utf16(devices(8) + kTable, true), "", kRanksInTheLog},
    {"utf16_of_the_other_order", utf16(replaced(devices(8) + kTable, "\n", "\r\n"), false), "", kRanksInTheLog},
    {"no_break_spaces", replaced(devices(8) + kTable, "  ", " \xC2\xA0"), "", kRanksInTheLog},
    {"no_break_spaces_of_latin_1", replaced(devices(8) + kTable, "  ", " \xA0"), "", kRanksInTheLog},
    {"spaces_of_a_web_page", replaced(replaced(devices(8) + kTable, "   ", "\xE2\x80\x83"), "  ", "\xE3\x80\x80"), "", kRanksInTheLog},
    {"json", json("all_reduce_perf"), "", kRanksInTheLog},
    {"sides_named", devices(8) + kSides + kTable, "", kRanksInTheLog},
    {"in_place_on_the_left", devices(8) + kOtherSides + kTable, "", {.in_place = true}},
    {"out_of_place_on_the_right", kOtherSides + kHeader + "1000000 250000 float sum -1 125.00 8.00 14.00 0 100.00 10.00 17.50 0\n" +
                                      "4000000 1000000 float sum -1 250.00 16.00 28.00 0 200.00 20.00 35.00 0\n"},
    {"rccl_tests", "# nThread 1 nGpus 8\n#\nrccl-tests: Version develop:5272cd1\n" + devices(8) + kTable, "", kRanksInTheLog},
    {"command_and_warnings_before",
     "Warning: Permanently added 'worker-1' (ED25519) to the list of known hosts.\n"
     "$ mpirun -np 8 ./build/all_reduce_perf_mpi -b 1000000 -e 4000000 -f 4\n" +
         devices(8) + kTable,
     "", kRanksInTheLog},
    {"other_names_that_end_in_perf",
     "#SBATCH --job-name=nccl_perf --exclusive\n+ srun --job-name=nccl_perf --ntasks=8 ./build/all_reduce_perf -b 1000000\n" + devices(8) +
         kTable,
     "", kRanksInTheLog},
    {"program_with_suffix", "# Collective test starting: all_reduce_perf_mpi\n" + devices(8) + kTable, "", kRanksInTheLog},
    {"hash_signs_lost", replaced(devices(8) + kTable, "#  ", "   "), "", kRanksInTheLog},
    {"devices_left_out", "#  Rank  7 Group  0 Pid  14840 on node device  7 [0x01] NVIDIA A100\n" + kTable, "", kRanksInTheLog},
    {"timestamps_at_the_end", replaced(replaced(kTable, "#wrong\n", "#wrong timestamp\n"), "      0\n", "      0  2025-03-14 12:26:53\n")},
    {"in_place_and_unchecked",
     replaced(kHeader, "#wrong", "#wrong #bitdiff") + "1000000 250000 float sum -1 125.00 8.00 14.00 N/A 0 100.00 10.00 17.50 N/A 0\n"
                                                      "4000000 1000000 float sum -1 250.00 16.00 28.00 N/A 0 200.00 20.00 35.00 N/A 0\n",
     "",
     {.world_size = 8, .in_place = true}},
    {"columns_as_csv", separated(kHeader.substr(kHeader.find("size")) + kSmall + kLarge, ',')},
    {"columns_as_csv_with_semicolons", separated(kHeader.substr(kHeader.find("size")) + kSmall + kLarge, ';')},
    {"columns_as_csv_that_name_the_side", kNamedSides + separated(kSmall + kLarge, ',')},
    // As in nccl issue 1453: pieces of one row, each with another process's line right behind it.
    {"row_cut_behind_the_root",
     devices(8) + kHeader + kSmall + "[0]      4000000       1000000     float     sum      -1[0] " + kInfo + kInfo +
         "[0]    200.00   20.00   35.00      0[0] " + kInfo + "[0]    250.00   16.00   28.00      0\n",
     "", kRanksInTheLog},
    {"row_cut_behind_the_operation", replaced(kOldTable, "sum   200.00", "sum" + kInfo + "   200.00")},
    {"row_cut_short_at_the_end", devices(8) + kTable + "    16000000       4000000     float     sum      -1   400",
     "skipped 1 rows that are cut off", kRanksInTheLog},
    {"row_cut_in_a_number",
     devices(8) + kHeader + kSmall + kLarge +
         "    16000000       4000000     float     sum      -1   40node1:17:17 [0] NCCL INFO x\n0.00\n",
     "skipped 1 rows that are cut off", kRanksInTheLog},
    {"empty_messages", kHeader + "0 0 float sum -1 5.00 0.00 0.00 0 5.00 0.00 0.00 0\n" + kSmall + kLarge,
     "log:2: skipped 1 rows of 0 bytes"},
    {"size_beyond_64_bits", kHeader + replaced(kSmall, "1000000 ", "99999999999999999999 ") + kSmall + kLarge,
     "log:2: skipped 1 rows whose size does not fit into 64 bits"},
    {"several_types", kHeader + kHalf + kHalf + kSmall + kLarge, "skipped 2 rows of the element type 'half', which is not float"},
    {"several_operations", kTable + kMax, "skipped 1 rows of the operation 'max', which is not sum"},
    {"other_collectives_beside", kReduceScatter + kAllGather + kTable, "skipped 1 rows of a collective whose count is of one rank's part"},
    {"other_programs_beside",
     "# Collective test starting: sendrecv_perf\n" + kTable + "# Collective test starting: all_reduce_perf\n" + kTable,
     "skipped 2 rows of sendrecv_perf"},
    {"cpu_times_beside", kCpuTime + kTable, "skipped 2 rows of CPU times"},
    {"markdown", "| " + separated(kHeader.substr(kHeader.find("size")) + "|---|\n" + kSmall.substr(5) + kLarge.substr(5), '|')},
    {"beside_another_table", replaced(kTable, "\n", "  |  1000000 250000 float sum -1 90.00 11.11 19.44 0 90.00 11.11 19.44 0\n")},
    {"osu", kOsu},
    {"osu_validated", replaced(replaced(kOsu, "Iterations", "Validation"), "1000\n", "Pass\n")},
    {"osu_tagged", tagged("[1,0]<stdout>:", kOsu)},
    {"osu_tagged_with_times", tagged("Sun Dec 24 09:52:05 2017[1,0]<stdout>:", kOsu)},
    {"osu_with_numbers_behind", kOsu + "slurmstepd: the job took 3600 1 2 3 4\n"},
    {"osu_old", "# OSU MPI Allreduce Latency Test v3.9\n# Size            Latency (us)\n1000000   100.00\n4000000   200.00\n"},
    {"osu_in_a_log", "Loading module openmpi/4.1\n" + tagged("0: ", kOsu) + "real 0m3.1s\n"},
    {"osu_several_types", replaced(kOsu, "MPI_FLOAT", "MPI_INT") + kOsu, "skipped 2 rows of the element type 'MPI_INT'"},
    {"osu_between_two_ranks_beside", kOsu + "# OSU MPI Latency Test v5.8\n# Size          Latency (us)\n1   0.46\n",
     "skipped 1 rows of OSU's Latency"},
    {"osu_with_a_trace",
     replaced(kOsu, "4000000  ", "[1678205653.81] [node:903  :0]  ucc_coll.c:255  UCC_COLL INFO  team_id 32768\n4000000  ")},
    {"osu_other_benchmarks", replaced(kOsu, "Allreduce", "Broadcast") + kOsu, "skipped 2 rows of OSU's Broadcast"},
    {"osu_values_that_the_header_leaves_out", replaced(kOsu, "   Min Latency(us)   Max Latency(us)  Iterations", "")},
    {"osu_between_two_ranks_before_nccl_tests",
     "# OSU MPI Bandwidth Test v7.3\n# Size      Bandwidth (MB/s)\n1   3.21\n" + devices(8) + kTable, "", kRanksInTheLog},
    {"imb", imb("Allreduce"), "", kRanksInTheLog},
    {"imb_empty_messages",
     replaced(imb("Allreduce"), "      1000000", "            0         1000         0.04         0.06         0.05\n1000000"),
     "log:9: skipped 1 rows of 0 bytes", kRanksInTheLog},
    {"imb_other_benchmarks", imb("Reduce") + imb("Allreduce") + imb("Allgather"), "log:9: skipped 2 rows of IMB's Reduce", kRanksInTheLog},
    {"imb_groups", kGroups + imb("Allreduce"), "log:9: skipped 4 rows of IMB's Multi-Allreduce", kRanksInTheLog},
    {"imb_wrong_beside", replaced(imb("Allreduce", "defects"), "0.00", "0.25") + imb("Allreduce", "defects"), "whose validation failed",
     kRanksInTheLog},
    {"imb_on_a_ci_server", tagged("00:55:22  ", imb("Allreduce")), "", kRanksInTheLog},
    {"imb_tagged", tagged("[1,0]<stdout>:", imb("Allreduce")), "", kRanksInTheLog},
    {"imb_with_defects", imb("Allreduce", "defects"), "", kRanksInTheLog},
    {"oneccl", kOneccl, "", kRanksInTheLog},
    {"oneccl_with_numbers_of_elements", replaced(replaced(kOneccl, "#rep", "elem_count  #rep"), "00000  ", "00000  250000  "), "",
     kRanksInTheLog},
    {"oneccl_several_types", "dtype: int8\nreduction: sum\n" + kOneccl + "dtype: float32\nreduction: sum\n" + kOneccl,
     "skipped 2 rows of the element type 'int8', which is not float32", kRanksInTheLog},
    {"oneccl_several_operations", "dtype: float32\nreduction: max\n" + kOneccl + "dtype: float32\nreduction: sum\n" + kOneccl,
     "skipped 2 rows of the operation 'max', which is not sum", kRanksInTheLog},
    {"oneccl_two_at_once", replaced(kOneccl, " allreduce", " bcast allreduce") + kOneccl, "skipped 2 rows of IMB's bcast allreduce",
     kRanksInTheLog},
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
    try {
      const Imported imported = import_log(log.text, log.options);
      EXPECT_EQ(imported.table.size(), 2u);
      if (imported.table.size() != 2) continue;
      EXPECT_EQ(imported.table[0].bytes, 1000000);
      EXPECT_NEAR(imported.table[0].median_s, 100e-6, 1e-12);
      EXPECT_EQ(imported.table[1].bytes, 4000000);
      EXPECT_NEAR(imported.table[1].median_s, 200e-6, 1e-12);
      for (const AllReduceRow& row : imported.table) EXPECT_EQ(row.world_size, 8);
      if (log.note.empty()) {
        EXPECT_THAT(imported.notes, IsEmpty());
      } else {
        EXPECT_THAT(imported.notes, Contains(HasSubstr(log.note)));
      }
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

struct Refusal {
  const char* name;
  std::string text;
  std::string error;  // its end
  ImportOptions options = {.world_size = 8};
};

const Refusal kRefusals[] = {
    {"broadcast_of_two",
     kBroadcast,
     "log:2: only rows of a collective with a root and no reduction (broadcast_perf); expected the results of all_reduce_perf",
     {.world_size = 2}},
    {"reduce_scatter", kReduceScatter,
     "log:2: only rows of a collective whose count is of one rank's part (reduce_scatter_perf); expected the results of all_reduce_perf"},
    {"all_gather", kAllGather,
     "log:2: only rows of a collective without reduction (all_gather_perf); expected the results of all_reduce_perf"},
    {"reduce",
     kReduce,
     "log:2: only rows of a reduction to one rank (reduce_perf); expected the results of all_reduce_perf",
     {.world_size = 2}},
    {"sendrecv_of_two",
     kSendRecv,
     "log:2: only rows of a collective that is not checked in place (sendrecv_perf, alltoall_perf); expected the results of "
     "all_reduce_perf",
     {.world_size = 2}},
    {"json_of_sendrecv", json("sendrecv_perf"), "log: result 1: only rows of sendrecv_perf; expected the results of all_reduce_perf"},
    {"json_of_an_unnamed_sendrecv", json("a.out", "null"),
     "log: result 1: only rows of a collective that is not checked in place (sendrecv_perf, alltoall_perf); expected the results of "
     "all_reduce_perf"},
    {"json_of_something_else", "[\n{\"size\": 8, \"time\": 1}\n]\n",
     "log: JSON of another kind; expected what all_reduce_perf writes with -J, or the log that it prints"},
    {"json_cut_off", json("all_reduce_perf").substr(0, 600),
     "log:1: not JSON; expected what all_reduce_perf writes with -J, or the log that it prints"},
    {"named", "$ ./build/sendrecv_perf -b 1M\n" + kTable, "log:3: only rows of sendrecv_perf; expected the results of all_reduce_perf"},
    {"cpu_times", kCpuTime, "log:2: only rows of CPU times (-C); expected the results of all_reduce_perf"},
    {"types_without_float", kHeader + kHalf + replaced(kHalf, "    half", "bfloat16"),
     "log:2: rows of the element types half, bfloat16; expected one, or --dtype with one of them"},
    {"ranks_not_stated", kTable, "log:2: the number of ranks is not stated; expected --world, at least 2", {}},
    {"ranks_contradicted", kTable, "log:2: busbw is 1.75 times algbw; expected 1.5, for an all-reduce of 4 ranks", {.world_size = 4}},
    // Without MPI every process runs alone and prints a table of its own.
    {"one_rank_each", devices(1) + "#   Rank  0 Pid   2066 on node2 device  0 [0x00] V100\n" + replaced(kTable, "17.50", " 0.00"),
     "only rows of one rank alone (was nccl-tests built with MPI=1?); expected the results of all_reduce_perf"},
    {"nothing_measured", "node1:17:17 [0] NCCL INFO Bootstrap\nnode1:17:17 [0] NCCL WARN Cuda failure\n",
     "log:2: no measurements; expected the results of all_reduce_perf"},
    {"osu_not_valid", replaced(replaced(kOsu, "Iterations", "Validation"), "1000\n", "Fail\n"),
     "log:4: only rows whose validation failed; expected the results of osu_allreduce or IMB-MPI1"},
    {"osu_non_blocking", replaced(kOsu, "Allreduce", "Non-blocking Allreduce"),
     "log:4: only rows of OSU's Non-blocking Allreduce; expected the results of osu_allreduce or IMB-MPI1"},
    {"osu_ranks_not_stated", kOsu, "log:4: the number of ranks is not stated; expected --world, at least 2", {}},
    {"osu_and_nccl_tests", kOsu + devices(8) + kTable, "log:1: all-reduces of both nccl-tests and MPI; expected one file each"},
    {"imb_without_averages",
     replaced(imb("Allreduce"), "t_avg[usec]", ""),
     "log:11: no measurements; expected the results of osu_allreduce or IMB-MPI1",
     {}},
    {"imb_non_blocking", imb("Iallreduce"), "log:9: only rows of IMB's Iallreduce; expected the results of osu_allreduce or IMB-MPI1"},
    {"inconsistent_columns", replaced(kTable, "200.00   20.00", "200.00   21.00"),
     "log:3: algbw is 21 GB/s; expected 20, as size and time have it"},
};

TEST(BenchmarkLogs, AreRefusedByName) {
  for (const Refusal& log : kRefusals) {
    SCOPED_TRACE(log.name);
    EXPECT_THAT(error_of([&] { import_log(log.text, log.options); }), EndsWith(log.error));
  }
}

// Forms of openucx/ucc#166, microsoft/mscclpp#83, NVIDIA/nvshmem#39, pytorch/gloo#122, and of AWS's pages.
TEST(BenchmarkLogs, OfOtherBenchmarksAreRefusedByTheirNames) {
  const std::pair<const char*, std::string> tables[] = {
      {"nccom-test", "size(B)  count(elems)  type  time(us)  algbw(GB/s)  busbw(GB/s)\n1000000  250000  fp32  100  9.31  16.30\n"},
      {"NVSHMEM's perftest",
       "size(B)  count  type  redop  latency(us)  algbw(GB/s)  busbw(GB/s)\n1000000  250000  float  sum  100.0  10.0  17.5\n"},
      {"mscclpp-test", "# Initializing MSCCL++\n#  size  count  time  algbw  busbw  #wrong\n1000000  250000  100.0  10.00  17.50  0\n"},
      {"ucc_perftest", "Collective: Allreduce\n  Count  Size  Time, us\n  avg  min  max\n250000  1000000  100.0  90.0  110.0\n"},
      {"Gloo's benchmark", "  elements  min (us)  p50 (us)  avg (GB/s)  samples\n  250000  90  100  10.000  961\n"},
  };
  for (const auto& [name, text] : tables) {
    EXPECT_THAT(error_of([&] { import_log(text, {.world_size = 8}); }), HasSubstr(fmt::format(": output of {}; expected ", name)));
  }
}

TEST(BenchmarkLogs, AreRefusedByFileAndLineWhereARowIsMalformed) {
  const auto error = [](const std::string& text) { return error_of([&] { parse_nccl_tests(text, "n.txt", {.world_size = 8}); }); };
  const std::string cut_off = "only rows that are cut off; expected the results of all_reduce_perf";
  EXPECT_EQ(error(kHeader + "8 2 float sum -1 fast 0 0 0 1 0 0 0\n"), "n.txt:2: " + cut_off);
  EXPECT_EQ(error(kHeader + "8 2 float\n"), "n.txt:2: " + cut_off);
  EXPECT_EQ(error("8 2 float sum -1 1 0 0 0\n"),
            "n.txt:1: only rows without a header before them; expected the results of all_reduce_perf");
  EXPECT_EQ(error(kHeader + "8 2 float sum -1 0 0 0 0 1 0 0 0\n"), "n.txt:2: the time is 0 s; expected seconds, more than 0");
  EXPECT_THAT(error(kHeader + "8 2 float sum -1 nan 0 0 0 1 0 0 0\n"), HasSubstr("n.txt:2: the time is nan"));
  EXPECT_EQ(error(kHeader + "-8 2 float sum -1 1 0 0 0 1 0 0 0\n"), "n.txt:2: size is -8; expected at least 0");
  EXPECT_EQ(error(kHeader + "8 2 float sum -1 1 0 0 3 1 0 0 0\n"), "n.txt:2: 3 wrong; expected 0 at most");
  EXPECT_EQ(error(kHeader + "8 2 float sum -1 1 -5 -5 0 1 0 0 0\n"), "n.txt:2: a bandwidth is -5; expected GB/s, at least 0");
  for (const std::string& nothing : {std::string(), kHeader}) {
    EXPECT_EQ(error(nothing), "n.txt:1: no measurements; expected the results of all_reduce_perf");
  }
}

TEST(BenchmarkLogs, HaveBandwidthsThatAreRoundedEachByItself) {
  // 0.0018 and 0.0031, 0.0046 and 0.0081, 0.1049 and 0.1835 GB/s.
  const std::string rows =
      "64 16 float sum -1 36.06 0.00 0.00 0 36 0 0 0\n"
      "128 32 float sum -1 27.76 0.00 0.01 0 28 0 0 0\n"
      "4096 1024 float sum -1 39.06 0.10 0.18 0 39 0 0 0\n";
  EXPECT_EQ(import_log(kHeader + rows, {.world_size = 8}).table.size(), 3u);
}

TEST(BenchmarkLogs, GiveTheRowsOfAnyElementTypeThatIsAskedFor) {
  const Imported imported = import_log(kTable + kHalf, {.world_size = 8, .dtype = "half"});
  ASSERT_EQ(imported.table.size(), 1u);
  EXPECT_NEAR(imported.table[0].median_s, 160e-6, 1e-12);
}

TEST(BenchmarkLogs, OfSeveralRunsGiveTheRowsOfAll) {
  const std::string two_ranks = devices(2) + kHeader + "1000000 250000 float sum -1 100.00 10.00 10.00 0 100.00 10.00 10.00 0\n";
  const Imported imported = import_log(two_ranks + devices(8) + kTable + devices(8) + kTable, {});
  EXPECT_THAT(world_sizes(imported.table), ElementsAre(2, 8));
  EXPECT_EQ(imported.table.size(), 5u);
}

TEST(BenchmarkLogs, OfSeveralRunsOfOsuAreTakenToBeOfTheSameRanks) {
  const Imported imported = import_log(kOsu + "$ mpirun -np 4 ./osu_allreduce\n" + kOsu, {.world_size = 8});
  EXPECT_EQ(imported.table.size(), 4u);
  EXPECT_THAT(imported.notes, ElementsAre("log:10: a size for the second time, taken to be of 8 ranks again (--world)"));
}

TEST(BenchmarkLogs, OfTwoRanksWithoutChecksMayBeOfAnotherProgram) {
  const std::string text = devices(2) + replaced(kSendRecv, " 0\n", " N/A\n");
  const std::string unchecked = replaced(text, "10.00      0", "10.00    N/A");
  EXPECT_THAT(import_log(unchecked, {}).notes, ElementsAre(HasSubstr("two ranks and no checks, which sendrecv_perf prints alike")));
  EXPECT_THAT(import_log("# Collective test starting: all_reduce_perf\n" + unchecked, {}).notes, IsEmpty());
}

TEST(BenchmarkLogs, OfASplitCommunicatorCountItsFirstGroup) {
  std::string text = devices(8);
  text = replaced(replaced(text, "Rank  1 Group  0", "Rank  1 Group  1"), "Rank  3 Group  0", "Rank  3 Group  1");
  EXPECT_EQ(import_log(text + kHeader + "1000000 250000 float sum -1 100.00 10.00 16.67 0 100.00 10.00 16.67 0\n", {}).table[0].world_size,
            6);
}

}  // namespace
}  // namespace firkin
