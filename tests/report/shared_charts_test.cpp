#include "report/shared_charts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "report/report.h"

namespace firkin {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

Results trained(double last_loss, std::optional<double> held_loss = {}) {
  Results results;
  results.run = begin_head("train");
  TrainingSection training{.steps = 2, .planned_steps = 2, .tokens_per_step = 64, .last_loss = last_loss, .tokens_per_s = 100};
  training.rows = {{.step = 0, .loss = 5, .tokens_per_s = 90}, {.step = 1, .loss = last_loss, .held_loss = held_loss, .tokens_per_s = 110}};
  results.training = training;
  return results;
}

TEST(Names, AreTheFoldersThatTellResultsApart) {
  EXPECT_THAT(names_by_place({"a/results.json", "b/results.json"}), ElementsAre("a", "b"));
  EXPECT_THAT(names_by_place({"a/out/results.json", "b/out/results.json"}), ElementsAre("a/out", "b/out"));
  EXPECT_THAT(names_by_place({"/x/results.json", "/y/z/results.json"}), ElementsAre("x", "z"));
  EXPECT_THAT(names_by_place({"a/./results.json"}), ElementsAre("a"));
}

TEST(Names, AreTheFilesWhereThoseHaveOtherNames) {
  EXPECT_THAT(names_by_place({"runs/a.json", "runs/b.json"}), ElementsAre("a.json", "b.json"));
}

TEST(Names, OfAFileThatIsNamedTwiceAreNumbered) {
  EXPECT_THAT(names_by_place({"a/results.json", "b/results.json", "a/results.json"}), ElementsAre("a", "b", "a (2)"));
}

TEST(SharedCharts, HaveTheLinesOfAllTrainingsUnderTheirNames) {
  const std::vector<Chart> charts = shared_charts({trained(3), Results(), trained(2, 2.5)}, {"first", "tuned", "second"});
  ASSERT_EQ(charts.size(), 2U);
  const nlohmann::json losses = charts[0].spec["datasets"]["losses"];
  ASSERT_EQ(losses.size(), 4U);
  EXPECT_EQ(losses[1]["run"], "first");
  EXPECT_EQ(losses[3]["run"], "second");
  EXPECT_EQ(losses[3]["loss"], 2.0);
  EXPECT_EQ(charts[0].spec["datasets"]["held"].size(), 1U);
  EXPECT_EQ(charts[0].summary, "Losses of 2 trainings, which end: first at 3.0000, second at 2.0000.");
  EXPECT_EQ(charts[1].spec["datasets"]["speeds"][0]["speed"], 90.0);
}

TEST(SharedCharts, NeedTwoTrainings) {
  EXPECT_TRUE(shared_charts({trained(3), Results()}, {"a", "b"}).empty());
}

TEST(SharedCharts, StandOnThePageOfSeveralResultsWithATableOfTheTrainings) {
  const std::string page = render_reports({trained(3), trained(2)}, {"first", "<second>"});
  for (const char* part : {"chart-losses", "chart-speeds", "chart-loss-2", "Trainings side by side", "&lt;second&gt;"}) {
    EXPECT_THAT(page, HasSubstr(part));
  }
  EXPECT_THAT(render_reports({trained(3)}, {"first"}), Not(HasSubstr("chart-losses")));
}

}  // namespace
}  // namespace firkin
