#include "report/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "firkin/base/file.h"
#include "report/answer.h"
#include "report/charts.h"

namespace firkin {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

nlohmann::json tune_document() {
  return nlohmann::json::parse(read_file(FIRKIN_SOURCE_DIR "/tests/report/data/tune.json"));
}

Results tune_results() {
  return results_from_json(tune_document());
}

// The text of the page's data island.
std::string island_of(const std::string& page) {
  const std::string opening = R"(<script type="application/json" id="results">)";
  const size_t start = page.find(opening) + opening.size();
  return page.substr(start, page.find("</script>", start) - start);
}

TEST(Report, TheDataIslandParsesBackToTheResults) {
  const nlohmann::json results = tune_document();
  EXPECT_EQ(nlohmann::json::parse(island_of(render_report(results_from_json(results)))), results);
}

TEST(Report, HostileStringsStayText) {
  nlohmann::json results = tune_document();
  const std::string hostile = "</script><script>alert(1)</script><!-- \" ' & <b> \xC3\xA9";
  results["model"]["name"] = hostile;
  results["environment"]["cpu"] = hostile;
  results["command_line"].push_back(hostile);
  const std::string page = render_report(results_from_json(results));
  EXPECT_THAT(page, Not(HasSubstr("<script>alert(1)")));
  EXPECT_EQ(nlohmann::json::parse(island_of(page)), results);
}

TEST(Report, TheHeadingNamesTheAnswer) {
  const std::string page = render_report(tune_results());
  EXPECT_THAT(page, HasSubstr("MiB"));
  EXPECT_THAT(page, HasSubstr("<h1>"));
}

TEST(Report, NothingOnThePageIsFetched) {
  const std::string page = render_report(tune_results());
  const std::string markup = page.substr(0, page.find("<script"));  // Vega's JavaScript speaks of tags, too
  EXPECT_THAT(markup, HasSubstr("default-src 'none'"));
  EXPECT_THAT(markup, Not(HasSubstr("<link")));
  EXPECT_THAT(markup, Not(HasSubstr("<img")));
  EXPECT_THAT(page, Not(HasSubstr("<script src")));
}

TEST(Report, ResultsOfOtherCommandsShowWhatTheyHold) {
  nlohmann::json document = tune_document();
  document["command"] = "bench-allreduce";
  for (const char* section :
       {"curve", "dense_curve", "strategies", "profile", "best_predicted", "best_measured", "regret", "indifference_set"}) {
    document.erase(section);
  }
  const Results results = results_from_json(document);
  const std::vector<Chart> charts = charts_for(results);
  ASSERT_EQ(charts.size(), 1);
  EXPECT_EQ(charts[0].id, "allreduce");
  EXPECT_THAT(render_report(results), HasSubstr("chart-allreduce"));
}

TEST(Report, AHeadingOfOneSizeSaysItOnce) {
  Results results;
  results.allreduce = {{.bytes = 4 << 20, .world_size = 2, .median_s = 0.01}};
  EXPECT_EQ(put_in_words(results).heading, "An all-reduce of 4 MiB takes 10 ms.");
  results.allreduce.push_back({.bytes = 8 << 20, .world_size = 2, .median_s = 0.02});
  EXPECT_EQ(put_in_words(results).heading, "An all-reduce takes 10 ms for 4 MiB and 20 ms for 8 MiB.");
  results.allreduce.clear();
  results.chunks = {{.chunk_bytes = 1 << 20, .calls = 8, .total_s = 0.02}};
  EXPECT_EQ(put_in_words(results).heading, "The data takes 20 ms in 8 chunks of 1 MiB.");
}

TEST(Report, TuneHasItsFourCharts) {
  std::vector<std::string> ids;
  for (const Chart& chart : charts_for(tune_results())) ids.push_back(chart.id);
  EXPECT_THAT(ids, testing::ElementsAre("curve", "allreduce", "ready", "strategies"));
}

TEST(Report, TheCurveHasALogarithmicAxisOfBucketSize) {
  const std::string spec = charts_for(tune_results())[0].spec.dump();
  EXPECT_THAT(spec, HasSubstr("\"log\""));
  EXPECT_THAT(spec, HasSubstr("MiB"));
}

}  // namespace
}  // namespace firkin
