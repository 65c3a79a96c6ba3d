// What a prediction says in its first lines, in the situations that there are. predictions.txt has all of it on one page,
// to be read. FIRKIN_REWRITE=1 in the environment writes it anew.
#include "../plan/helpers.h"
#include "firkin/plan/prediction.h"
#include "report/words.h"

namespace firkin {
namespace {

PredictionInputs inputs_with(double s_per_byte, const std::vector<int64_t>& worlds = {4}) {
  const AllReduceTable table = table_of(worlds, [&](double ranks, double bytes) { return 20e-6 * ranks + s_per_byte * bytes; });
  return {.profile = even_profile(40, kMiB, 0.1), .table = table, .world_size = 4};
}

AllReduceTable far_from_its_line(AllReduceTable table) {
  for (size_t row = 0; row < table.size(); row += 2) table[row].median_s *= 2;
  return table;
}

std::string answer_to(const std::string& situation, const PredictionInputs& inputs) {
  Results results;
  results.run = begin_head("predict");
  results.prediction = predict(inputs);
  return fmt::format("== {}\n{}\n", situation, answer_in_text(results));
}

TEST(Predictions, AreAsTheyWereReadOnOnePage) {
  PredictionInputs likely = inputs_with(1e-8);
  likely.profile = even_profile(12, kMiB, 0.12);
  PredictionInputs scattered = inputs_with(2.2e-9);
  scattered.table = far_from_its_line(scattered.table);
  PredictionInputs assumed = likely;
  assumed.compute_assumed = true;
  const std::string page =
      answer_to("a gain is likely", likely) + answer_to("not told apart", inputs_with(8e-10)) +
      answer_to("nothing to gain", inputs_with(1e-11)) + answer_to("more ranks than were measured", inputs_with(2.2e-9, {2})) +
      answer_to("a table that misses its own line", scattered) + answer_to("the likely gain, had computing times been assumed", assumed);
  expect_as_kept(page, FIRKIN_SOURCE_DIR "/tests/report/predictions.txt");
}

}  // namespace
}  // namespace firkin
