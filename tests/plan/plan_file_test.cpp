// The file of automatic buckets; tests/fuzz/corpus/plan_file holds more ways in which one can be wrong.
#include "../../src/plan/plan_file.h"

#include <gtest/gtest.h>

#include "helpers.h"

namespace firkin {
namespace {

const PlanKey kKey = {{"parameters", "3 tensors"}, {"world size", "2"}};
const CommunicationPlan kPlan = {{2, 0, 1}, {{{0, 1, 0, 2}, {0, 1, 1, 2}, {1, 2}}, {2, 0, 1}}};

std::string with(std::string text, const std::string& part, const std::string& other) {
  return text.replace(text.find(part), part.size(), other);
}

TEST(PlanFile, IsReadBackAsItWasWritten) {
  EXPECT_EQ(parse_plan_file(plan_file_text(kKey, kPlan, "a reason"), "plan.json", kKey, 3), kPlan);
}

TEST(PlanFile, NamesTheFirstDifference) {
  const std::string text = plan_file_text(kKey, kPlan, "a reason");
  EXPECT_EQ(error_of([&] {
              parse_plan_file(text, "plan.json", {{"parameters", "3 tensors"}, {"world size", "4"}}, 3);
            }),
            R"(plan.json: made for world size "2"; expected "4")");
  EXPECT_EQ(error_of([&] { parse_plan_file(text, "plan.json", kKey, 4); }), "plan.json: its ready order is not a permutation of 0..3");
}

TEST(PlanFile, RefusesNumbersThatNoPlanHas) {
  const std::string text = R"({"format": "firkin bucket plan 2", "made_for": {"parameters": "3 tensors", "world size": "2"},
 "plan": {"ready_order": [0, 1, 2], "count_part_parts": [[3, 0, 1]], "launch_order": []}})";
  EXPECT_EQ(parse_plan_file(text, "plan.json", kKey, 3).plan, one_bucket(3));
  for (const std::string number : {"-1", "1e300", "3.5", "true", "9223372036854775807"}) {
    EXPECT_EQ(error_of([&] {
                parse_plan_file(with(text, "[3, ", "[" + number + ", "), "plan.json", kKey, 3);
              }).find("plan.json: the plan holds "),
              0u)
        << number;
  }
}

}  // namespace
}  // namespace firkin
