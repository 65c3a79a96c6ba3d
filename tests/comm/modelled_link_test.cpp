// What a modelled link is said to be, and what a collective takes over it.
#include "firkin/comm/modelled_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../base/temporary_folder.h"
#include "thread_ranks.h"

namespace firkin {
namespace {

using testing::HasSubstr;

constexpr double kPayloadOfGbit = 1e9 / 8 * 1448 / 1514;  // bytes per second

std::string refusal_of(const std::string& text, int64_t world = 2) {
  return message_of<InputError>([&] { parse_link(text, world); });
}

class LinkTable : public testing::Test {
 protected:
  LinkTable() {
    folder_.write("link.csv",
                  "bytes,world_size,median_s,gap_s\n1000,2048,0.001,0.0005\n3000,2048,0.002,0.001\n1000,2,0.0001,\n3000,2,0.0002,\n");
  }
  const TemporaryFolder folder_;
  const std::string file_ = folder_.path / "link.csv";
};

TEST(ParseLink, TakesARateAndALatency) {
  const ModelledLink link = parse_link("200mbit,1ms", 4);
  EXPECT_EQ(link.bits_per_s, 200e6);
  EXPECT_EQ(link.latency_s, 1e-3);
  EXPECT_EQ(link.world, 4);
  EXPECT_EQ(describe(link), "200 Mbit/s, 1 ms, 4 ranks");
}

TEST(ParseLink, HasALatencyOfItsOwn) {
  EXPECT_EQ(parse_link("1gbit", 2).latency_s, kDefaultLinkLatency);
  EXPECT_EQ(parse_link("2.5gbit,0us", 2).latency_s, 0);
}

TEST(ParseLink, RefusesWhatIsNoLinkAndSaysWhatOneIs) {
  const std::string expected = ": expected RATE[,LATENCY] such as 1gbit or 200mbit,1ms, or an allreduce.csv";
  for (const char* text : {"1gbti", "1gbit,", "gbit", "1", "", "1gbit,1", "1gbit,1ms,1", "-1gbit", "1gbit,-1ms", "nangbit", "1 gbit"}) {
    EXPECT_EQ(refusal_of(text), std::string("--link ") + text + expected);
  }
  EXPECT_EQ(refusal_of("0gbit"), "--link 0gbit: expected a rate from 1kbit to 1000tbit");
  EXPECT_EQ(refusal_of("1gbit,61s"), "--link 1gbit,61s: expected a latency of at most 60s");
  EXPECT_EQ(refusal_of("1gbit", 0), "--link 1gbit: timed for 0 ranks; expected at least 1");
}

TEST(LinkTime, OfAnAllReduceIsThatOfARing) {
  const LinkTime of_two = all_reduce_time(parse_link("1gbit,1ms", 2), 10'000'000);
  EXPECT_NEAR(of_two.alone_s, 10e6 / kPayloadOfGbit + 2e-3, 1e-9);
  EXPECT_NEAR(of_two.gap_s, 10e6 / kPayloadOfGbit, 1e-9);
  EXPECT_NEAR(all_reduce_time(parse_link("1gbit,0us", 2048), 10'000'000).alone_s, 2 * 2047.0 / 2048 * 10e6 / kPayloadOfGbit, 1e-9);
  const LinkTime of_few_bytes = all_reduce_time(parse_link("1gbit,1ms", 5), 8);
  EXPECT_NEAR(of_few_bytes.alone_s, 8e-3, 1e-6);
  EXPECT_NEAR(of_few_bytes.gap_s, 4e-3, 1e-6);  // two at a time hide half
}

TEST(LinkTime, OfABroadcastIsThatOfATree) {
  EXPECT_NEAR(broadcast_time(parse_link("1gbit,1ms", 2), 1'000'000).alone_s, 1e6 / kPayloadOfGbit + 1e-3, 1e-9);
  EXPECT_NEAR(broadcast_time(parse_link("1gbit,1ms", 5), 1'000'000).alone_s, 3 * (1e6 / kPayloadOfGbit + 1e-3), 1e-9);
}

TEST(LinkTime, OfOneRankIsNothing) {
  for (const auto& time : {all_reduce_time, broadcast_time, share_time}) EXPECT_EQ(time(parse_link("1gbit", 1), 1000).alone_s, 0);
}

TEST_F(LinkTable, AShareIsHalfAnAllReduce) {
  for (const ModelledLink& link : {parse_link("1gbit,1ms", 5), parse_link(file_, 2048)}) {
    EXPECT_DOUBLE_EQ(share_time(link, 3000).alone_s, all_reduce_time(link, 3000).alone_s / 2);
    EXPECT_DOUBLE_EQ(share_time(link, 3000).gap_s, all_reduce_time(link, 3000).gap_s / 2);
  }
}

TEST_F(LinkTable, GivesTimesAndGapsAtItsWorldSize) {
  const ModelledLink link = parse_link(file_, 2048);
  EXPECT_DOUBLE_EQ(all_reduce_time(link, 1000).alone_s, 0.001);
  EXPECT_DOUBLE_EQ(all_reduce_time(link, 1000).gap_s, 0.0005);
  EXPECT_DOUBLE_EQ(all_reduce_time(link, 5000).alone_s, 0.003);
  EXPECT_DOUBLE_EQ(broadcast_time(link, 3000).alone_s, 0.002);
  EXPECT_EQ(describe(link), file_ + ", 2048 ranks");
}

TEST_F(LinkTable, WithoutGapsIsAsSlowWhenItIsBusy) {
  EXPECT_DOUBLE_EQ(all_reduce_time(parse_link(file_, 2), 3000).gap_s, 0.0002);
}

TEST_F(LinkTable, WithoutTheWorldSizeIsRefusedWithThoseThatItHas) {
  EXPECT_THAT(refusal_of(file_, 16), testing::AllOf(HasSubstr("world size 16"), HasSubstr("2, 2048"), HasSubstr(file_)));
  EXPECT_THAT(refusal_of("no_such_file.csv"), HasSubstr("no_such_file.csv"));
}

}  // namespace
}  // namespace firkin
