// What ranks put into a store, and what rank 0 makes of it.
#include "plan/watch_exchange.h"

#include <map>

#include "../test.h"

namespace firkin {
namespace {

// Ranks and the store between them.
struct Ranks {
  explicit Ranks(int64_t size) {
    for (int64_t rank = 0; rank < size; ++rank) exchanges.emplace_back(1, rank, size);
  }
  void end_window(size_t rank, const std::string& text) {
    const auto [key, value] = exchanges[rank].end_window(text);
    store[key] = value;
  }
  bool collect() {
    return exchanges[0].collect([this](const std::string& key) { return store.contains(key); },
                                [this](const std::string& key) { return store.at(key); });
  }
  std::map<std::string, std::string> store = {};
  std::vector<WatchExchange> exchanges = {};
};

TEST(WatchExchange, RankZeroGetsEveryRanksTextOnceAllHaveEndedTheWindow) {
  Ranks ranks(3);
  EXPECT_FALSE(ranks.collect());
  ranks.end_window(1, "b");
  ranks.end_window(0, "a");
  EXPECT_FALSE(ranks.collect());
  EXPECT_TRUE(ranks.exchanges[0].is_collecting());
  EXPECT_THAT(ranks.exchanges[0].texts(), ElementsAre("a", "b"));  // it waits for rank 2
  ranks.end_window(2, "c with spaces");
  EXPECT_TRUE(ranks.collect());
  EXPECT_THAT(ranks.exchanges[0].texts(), ElementsAre("a", "b", "c with spaces"));
  EXPECT_FALSE(ranks.exchanges[0].is_collecting());
  EXPECT_FALSE(ranks.exchanges[2].is_collecting());
  EXPECT_FALSE(ranks.collect());
}

TEST(WatchExchange, AnOlderWindowUnderTheSameKeyIsNotTaken) {
  Ranks ranks(2);
  for (const char* text : {"first", "second"}) {
    ranks.end_window(1, text);
    ranks.end_window(0, text);
    EXPECT_TRUE(ranks.collect());
  }
  EXPECT_THAT(ranks.store, SizeIs(4)) << "two keys for each rank, however many windows";
  ranks.end_window(0, "third");  // rank 1's key still holds its first
  EXPECT_FALSE(ranks.collect());
  ranks.end_window(1, "third");
  EXPECT_TRUE(ranks.collect());
  EXPECT_THAT(ranks.exchanges[0].texts(), ElementsAre("third", "third"));
  EXPECT_THAT(ranks.store, SizeIs(4));
}

TEST(WatchExchange, CountsWindowsThatSomeRankHasNotToldOf) {
  Ranks ranks(2);
  for (int window = 0; window < 3; ++window) {
    EXPECT_EQ(ranks.exchanges[0].missed(), std::max(0, window - 1));
    ranks.end_window(0, "alone");
    EXPECT_FALSE(ranks.collect());
  }
  EXPECT_EQ(ranks.exchanges[0].missed(), 2);
  EXPECT_THAT(ranks.exchanges[0].texts(), ElementsAre("alone")) << "rank 1 is the one that it waits for";
}

TEST(WatchExchange, ReadsManyRanksAFewAtATime) {
  Ranks ranks(20);
  for (size_t rank = 0; rank < 20; ++rank) ranks.end_window(rank, "text");
  int looks = 1;
  while (!ranks.collect()) ++looks;
  EXPECT_EQ(looks, 3);
}

}  // namespace
}  // namespace firkin
