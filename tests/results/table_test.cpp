#include "results/field.h"

#include <gtest/gtest.h>

namespace firkin {
namespace {

TEST(Table, ColumnsAreAsWideAsTheirWidestCellAndNumbersStandOnTheRight) {
  const Table table{"", {{"name", false}, {"step"}}, {{{"naive", "12 ms"}}, {{"b", "345 µs"}}}};
  EXPECT_EQ(terminal_table(table, {"", "< best"}), "name     step\nnaive   12 ms\nb      345 µs  < best\n");
}

TEST(Table, WordsAreWrappedAtEightyColumnsUnderTheirHead) {
  std::string words;
  for (int i = 0; i < 30; ++i) words += "word ";
  words.pop_back();
  const std::string text = wrapped("  * ", words);
  EXPECT_EQ(text.find('\n'), 4 + 15 * 5 - 1);
  EXPECT_EQ(text.substr(text.find('\n') + 1, 8), "    word");
}

}  // namespace
}  // namespace firkin
