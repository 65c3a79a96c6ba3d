#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../plan/helpers.h"
#include "import/import.h"

namespace firkin {
namespace {

using testing::HasSubstr;

constexpr const char* kHeader =
    "# nThread 1 nGpus 8 minBytes 8 maxBytes 16 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0\n"
    "#\n"
    "#                                                              out-of-place                       in-place\n"
    "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)\n";
constexpr const char* kFooter = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 41.3\n#\n";

std::string table_of(const std::string& rows) {
  return kHeader + rows + kFooter;
}

Imported parse(const std::string& text, bool in_place = false) {
  return parse_nccl_tests(text, "n.txt", {.world_size = 8, .in_place = in_place});
}

std::string parse_error(const std::string& text) {
  return error_of([&] { parse(text); });
}

TEST(NcclTestsTable, RejectsMalformedLinesByFileAndLine) {
  EXPECT_EQ(parse_error(table_of("8 2 float sum -1 fast 0 0 0 1 0 0 0\n")),
            "n.txt:6: only rows that are cut off; expected the results of all_reduce_perf");
  EXPECT_EQ(parse_error("8 2 float sum -1 1 0 0 0\n"),
            "n.txt:1: only rows without a header before them; expected the results of all_reduce_perf");
  EXPECT_EQ(parse_error(table_of("8 2 float sum -1 0 0 0 0 1 0 0 0\n")), "n.txt:6: the time is 0 s; expected seconds, more than 0");
  EXPECT_THAT(parse_error(table_of("8 2 float sum -1 nan 0 0 0 1 0 0 0\n")), HasSubstr("n.txt:6: the time is nan"));
  EXPECT_EQ(parse_error(table_of("-8 2 float sum -1 1 0 0 0 1 0 0 0\n")), "n.txt:6: size is -8; expected at least 0");
  EXPECT_EQ(parse_error(table_of("8 2 float sum -1 1 0 0 3 1 0 0 0\n")), "n.txt:6: 3 wrong; expected 0 at most");
  EXPECT_EQ(parse_error(table_of("8 2 float sum -1 1 -5 -5 0 1 0 0 0\n")), "n.txt:6: a bandwidth is -5; expected GB/s, at least 0");
  EXPECT_THAT(parse_error("#\n#" + std::string(size_t{2} << 20, 'x')), HasSubstr("n.txt:2: the line is longer than 1048576 bytes"));
  EXPECT_EQ(parse_error(""), "n.txt:1: no measurements; expected the results of all_reduce_perf");
  EXPECT_EQ(parse_error(table_of("")), "n.txt:8: no measurements; expected the results of all_reduce_perf");
}

std::string json_of(const std::string& results) {
  return R"({"version": 3, "args": ["./build/all_reduce_perf", "-g", "8"], "results": [)" + results + "]}";
}

const std::string kJsonRow =
    R"({"size": 8, "count": 2, "type": "float", "redop": "sum", "root": "    -1",
        "out_of_place": {"time": 20.0, "alg_bw": 0.0, "bus_bw": 0.0, "nwrong": 0.0},
        "in_place": {"time": 16.0, "alg_bw": 0.0, "bus_bw": 0.0, "nwrong": null}})";

TEST(NcclTestsJson, HoldsTheTimesOfEitherPlace) {
  EXPECT_DOUBLE_EQ(parse(json_of(kJsonRow)).table.at(0).median_s, 20e-6);
  EXPECT_DOUBLE_EQ(parse(json_of(kJsonRow), /*in_place=*/true).table.at(0).median_s, 16e-6);
}

TEST(NcclTestsJson, RejectsMalformedFilesByFileAndPlace) {
  EXPECT_EQ(parse_error("{"), "n.txt:1: not JSON; expected what nccl-tests prints, or writes with -J");
  EXPECT_EQ(parse_error("{\n\"results\": [],\n\"results\": []}"),
            "n.txt: key 'results' appears twice; expected what nccl-tests prints, or writes with -J");
  EXPECT_EQ(parse_error("{}"), "n.txt: no array 'results'; expected what nccl-tests prints, or writes with -J");
  EXPECT_EQ(parse_error("{\n\"args\": [\n\"all_gather_perf\"], \"results\": []}"),
            "n.txt: args[0] is 'all_gather_perf'; expected all_reduce_perf");
  EXPECT_EQ(parse_error(json_of("\n{\"size\": \"8\"}")), "n.txt: results[0]: no whole number 'size'");
  EXPECT_EQ(parse_error(json_of("\n" + kJsonRow + ",\n{\"size\": 18446744073709551615}")),
            "n.txt: results[1]: size does not fit into 64 bits");
  EXPECT_EQ(parse_error(json_of(R"({"size": 8, "out_of_place": null})")), "n.txt: results[0]: no object 'out_of_place'");
  EXPECT_EQ(parse_error(json_of(R"({"size": 8, "out_of_place": {"time": "nan"}})")),
            "n.txt: results[0]: time is missing or no number; expected a number");
  EXPECT_THAT(parse_error(json_of(R"({"size": 8, "out_of_place": {"cpu_time": 1}})")), HasSubstr("results[0]: the time is CPU time"));
  EXPECT_EQ(parse_error(json_of(R"({"size": 8, "out_of_place": {"time": -1, "alg_bw": 0, "bus_bw": 0}})")),
            "n.txt: results[0]: the time is -1e-06 s; expected seconds, more than 0");
}

}  // namespace
}  // namespace firkin
