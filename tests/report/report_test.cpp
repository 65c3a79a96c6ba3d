#include "report/report.h"

#include "../results/example_results.h"
#include "../test.h"
#include "report/charts.h"
#include "results/field.h"

namespace firkin {
namespace {

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

TEST(Report, AHeadingKeepsANumberAndItsPercentSignOnOneLine) {
  Results results = tune_results();
  Decision& decision = results.decision.value();
  decision.outcome = Outcome::kGain;
  decision.over_default = PairedRatio{0.75, {0.7, 0.8}};
  EXPECT_THAT(render_report(results), HasSubstr("25.0&nbsp;% less time"));
}

TEST(Report, NothingOnThePageIsFetched) {
  const std::string page = render_report(tune_results());
  const std::string markup = page.substr(0, page.find("<script"));  // Vega's JavaScript speaks of tags, too
  EXPECT_THAT(markup, HasSubstr("default-src 'none'"));
  EXPECT_THAT(markup, Not(HasSubstr("<link")));
  EXPECT_THAT(markup, Not(HasSubstr("<img")));
  EXPECT_THAT(page, Not(HasSubstr("<script src")));
}

TEST(Report, AHeadingOfOneSizeSaysItOnce) {
  Results results;
  results.allreduce = {{.bytes = 4 << 20, .world_size = 2, .median_s = 0.01}};
  EXPECT_EQ(summarize(results).heading, "An all-reduce of 4 MiB takes 10 ms.");
  results.allreduce.push_back({.bytes = 8 << 20, .world_size = 2, .median_s = 0.02});
  EXPECT_EQ(summarize(results).heading, "An all-reduce takes 10 ms for 4 MiB and 20 ms for 8 MiB.");
  results.allreduce.clear();
  results.chunks = {{.chunk_bytes = 1 << 20, .calls = 8, .total_s = 0.02}};
  EXPECT_EQ(summarize(results).heading, "The data takes 20 ms in 8 chunks of 1 MiB.");
}

TEST(Report, TheCurveHasALogarithmicAxisOfBucketSize) {
  const std::string spec = charts_for(tune_results())[0].spec.dump();
  EXPECT_THAT(spec, HasSubstr("\"log\""));
  EXPECT_THAT(spec, HasSubstr("MiB"));
}

TEST(Report, SettingsInElementsCountThoseOfTheModelHoweverItsTypeIsCalled) {
  Results results = tune_results();
  results.decision->cap_bytes = kMiB;
  for (const auto& [bytes, elements] : {std::pair{4, "262144"}, {2, "524288"}}) {
    results.run.model = ModelDescription{.name = "Net", .dtype = "bfloat16", .parameters = 1000, .gradient_bytes = 1000 * bytes};
    const std::vector<PasteSetting> settings = summarize(results).settings;
    EXPECT_THAT(std::ranges::find(settings, "DeepSpeed", &PasteSetting::tool)->setting, HasSubstr(elements));
  }
}

TEST(Report, TheNextStepIsAnOptionOfTheFrontEndThatMeasured) {
  Results results = tune_results();
  results.decision->blocks = 12;
  results.decision->blocks_needed = 37.2;
  const std::vector<std::tuple<std::vector<std::string>, NextStep, std::string>> front_ends = {
      {{"firkin", "tune"}, NextStep::kMoreTime, "a longer --time"},
      {{"firkin", "tune"}, NextStep::kMoreBlocks, "--blocks 38"},
      {{"train.py"}, NextStep::kMoreTime, "a larger time_budget_s"},
      {{}, NextStep::kMoreTime, "a larger ModuleTuningOptions::seconds"}};
  for (const auto& [command_line, step, option] : front_ends) {
    results.run.command_line = command_line;
    results.decision->next_step = step;
    EXPECT_EQ(summarize(results).next_step, "to decide, measure about 38 blocks of steps instead of 12: " + option + ".");
  }
}

// A pair of ranks whose 8 MB each way take so many ms.
PairRow pair_of(int64_t rank, int64_t other, double ms) {
  return {.rank = rank,
          .other = other,
          .host = fmt::format("host{}", rank),
          .other_host = fmt::format("host{}", other),
          .bytes = 8'000'000,
          .seconds = ms / 1000,
          .samples = 5};
}

TEST(Report, ASlowLinkIsThatOfTheRankWithoutAFastPair) {
  Results results;
  const auto heading_of_pairs = [&results](const std::vector<PairRow>& pairs) {
    results.pairs = pairs;
    results.links = links_of(pairs);
    return summarize(results).heading;
  };
  EXPECT_EQ(heading_of_pairs({pair_of(0, 1, 200), pair_of(0, 2, 64), pair_of(1, 2, 210)}),
            "Slow link: host1 (rank 1), 0.32 Gbit/s, 32.0 % of the fastest.");
  EXPECT_THAT(results_in_text(results), HasSubstr("   1  host1"));
  EXPECT_THAT(render_report(results), HasSubstr("Two ranks at a time"));
  EXPECT_EQ(heading_of_pairs(
                {pair_of(0, 1, 64), pair_of(0, 2, 200), pair_of(0, 3, 64), pair_of(1, 2, 210), pair_of(1, 3, 64), pair_of(2, 3, 200)}),
            "Slow link: host2 (rank 2), 0.32 Gbit/s, 32.0 % of the fastest.");
  EXPECT_EQ(heading_of_pairs({pair_of(0, 1, 64), pair_of(0, 2, 70), pair_of(1, 2, 70)}),
            "No link is slower than the others: the slowest has 0.914 Gbit/s, 91.4 % of the fastest.");
  EXPECT_EQ(heading_of_pairs({pair_of(0, 1, 200)}),
            "The two ranks exchange 0.32 Gbit/s each way. Which of their links limits that takes a third to tell.");
  EXPECT_EQ(heading_of_pairs({pair_of(0, 1, 200), pair_of(0, 2, 200), pair_of(1, 2, 64)}),
            "Slow link: host0 (rank 0), 0.32 Gbit/s, 32.0 % of the fastest.");
}

TEST(Report, ThePageOfAWatchBeginsWithItsStepsAndItsVerdict) {
  Results results;
  results.run = begin_head("watch");
  results.notes = {"steps 5 to 16, 2 ranks: 90.2 ms a step",
                   "communication not hidden  70.3 ms, 78.0 %",
                   "a better bucket size could gain at most 12 ms, 13.3 %: worth a firkin.tune",
                   "why: one bucket",
                   "next: firkin.tune",
                   "next: another",
                   "note: ranks share cores"};
  results.traces = {
      {.strategy = "watched", .name = "rank 0", .file = "", .timeline = {{"compute", 0, 0.02}, {"communication", 0.01, 0.09}}}};
  const Wording answer = summarize(results);
  EXPECT_EQ(answer.heading, "steps 5 to 16, 2 ranks: 90.2 ms a step");
  EXPECT_THAT(answer.certainty, StartsWith("a better bucket size could gain at most 12 ms"));
  EXPECT_THAT(answer.lead, ElementsAre("communication not hidden 70.3 ms, 78.0 %", "why: one bucket", "next: another"));
  EXPECT_EQ(answer.next_step, "firkin.tune");
  EXPECT_THAT(answer.notes, ElementsAre("ranks share cores"));
  const std::string page = render_report(results);
  EXPECT_THAT(page.substr(0, page.find("<script")), Not(HasSubstr("<table>"))) << "a watch has no figures of a table";
  EXPECT_THAT(page, Not(HasSubstr("strategy ordered")));
}

TEST(Report, OfTheDefaultsOwnBucketsNoRatioIsQuoted) {
  Results results = tune_results();
  Decision& decision = *results.decision;
  decision.outcome = Outcome::kSameBuckets;
  decision.over_default = PairedRatio{0.95, {0.92, 0.98}};  // noise
  const Wording answer = summarize(results);
  EXPECT_THAT(answer.heading, HasSubstr("the same buckets"));
  EXPECT_THAT(answer.certainty, Not(HasSubstr("PyTorch's default")));
}

TEST(Report, TheAnswerOfTuneNamesTheBestOfFirkinsOwnEngineAboveTheCharts) {
  Results results = tune_results();
  EXPECT_EQ(summarize(results).own_engine, "");  // it was not measured
  results.strategies.push_back({.strategy = "ordered", .measured_s = 0.179});
  results.ordered_over_best_cap = PairedRatio{0.877, {0.85, 0.9}};
  const std::string engine =
      "ordered (recommended), which also overlaps the next forward pass: 179 ms per step, 12.3 % less time than the best cap";
  EXPECT_THAT(summarize(results).own_engine, HasSubstr(engine));
  EXPECT_THAT(answer_in_text(results), HasSubstr("\n  firkin  ordered (recommended), which"));
  const std::string page = render_report(results);
  EXPECT_LT(page.find("own engine is ordered"), page.find("class=\"charts\""));
  results.ordered_over_best_cap = PairedRatio{0.99, {0.95, 1.03}};
  EXPECT_THAT(summarize(results).own_engine, HasSubstr("179 ms per step, as long as the best cap, as far as this measurement can tell"));
  EXPECT_THAT(summarize(results).own_engine, Not(HasSubstr("recommended")));
  EXPECT_THAT(answer_in_text(results), Not(HasSubstr("  firkin  ")));
  results.sharded_over_best_cap = PairedRatio{0.8, {0.78, 0.82}};
  EXPECT_THAT(summarize(results).own_engine, StartsWith("sharded (recommended)"));
}

TEST(Report, TheCardOfATuningHoldsOnlyWhatHelpsToAct) {
  Results results = tune_results();
  results.notes = {"what was noticed on the way"};
  results.decision->lowest_cap_bytes = 3 * kMiB / 4;
  results.decision->highest_cap_bytes = 3 * kMiB / 4;
  const std::string text = results_in_text(results), page = render_report(results);
  EXPECT_THAT(text, StartsWith(summarize(results).heading.substr(0, 20)));
  EXPECT_THAT(text, HasSubstr("\n  paste   DistributedDataParallel(model"));
  for (const char* explanation : {"what was noticed on the way", "makes the same buckets", "the model predicts"}) {
    EXPECT_THAT(text, Not(HasSubstr(explanation)));
    EXPECT_THAT(page, HasSubstr(explanation));
  }
}

TEST(Report, TheAnswerIsTheFirstAndTheLastThingInTheTerminal) {
  Results chunks;
  chunks.chunks = {{.chunk_bytes = 1 << 20, .calls = 8, .total_s = 0.02}};
  const Results predicted = predicted_results();
  for (const Results& results : {predicted, chunks}) {
    const std::string text = results_in_text(results), start = summarize(results).heading.substr(0, 20);
    EXPECT_THAT(text, StartsWith(start));
    EXPECT_NE(text.find('\n' + start), std::string::npos) << text;
  }
  EXPECT_THAT(results_in_text(chunks), EndsWith("\n" + summarize(chunks).heading + "\n"));
}

TEST(Report, APageSaysOnceWhatLimitsItsAnswer) {
  Results results = tune_results();
  results.complete = false;
  results.run.environment.link = "1 Gbit/s";
  results.notes = {"the machine was busy"};
  const std::string page = render_report(results);
  const std::string text = page.substr(0, page.find("<script"));
  for (const char* warning : {"This run is incomplete", "Modelled link (1 Gbit/s)", "the machine was busy"}) {
    const size_t first = text.find(warning);
    ASSERT_NE(first, std::string::npos) << warning;
    EXPECT_EQ(text.find(warning, first + 1), std::string::npos) << warning;
  }
  EXPECT_THAT(render_report(tune_results()), Not(HasSubstr("<aside")));
}

TEST(Report, TuneAndPredictSayWhereOnTheMapTheyLie) {
  Prediction prediction;
  prediction.workload.gradient_bytes = int64_t{1} << 30;
  prediction.best_uniform.cap_bytes = prediction.curve.emplace_back().cap_bytes = 1 << 20;
  prediction.best_uniform.near_best = prediction.best_uniform.expected_regret = 0.01;
  const auto lead_with = [&](double backward_s, double alpha_s, double beta_s_per_byte) {
    prediction.workload.backward_s = backward_s;
    prediction.alpha_beta = {.alpha_s = alpha_s, .beta_s_per_byte = beta_s_per_byte};
    Results results;
    results.prediction = prediction;
    std::string text;
    for (const std::string& paragraph : summarize(results).lead) text += paragraph + "\n";
    return text;
  };
  EXPECT_THAT(lead_with(100, 1e-4, 1e-9), HasSubstr("communication here is hidden"));           // 1.07 s in 100 s
  EXPECT_THAT(lead_with(2, 0.1, 1e-9), HasSubstr("communication here is latency-bound"));       // 25 MiB: 26 ms and 100 ms of latency
  EXPECT_THAT(lead_with(0.5, 1e-4, 1e-9), HasSubstr("communication here is bandwidth-bound"));  // 1.07 s in 0.5 s
  EXPECT_THAT(lead_with(2, 1e-4, 1e-9), HasSubstr("communication here is in between"));
}

TEST(Report, TheHighlightedRowOfAPredictionIsTheCapOfTheHeadline) {
  const Results results = predicted_results();
  Prediction prediction = *results.prediction;
  const auto rows = [&] {
    std::string text;
    const std::vector<Table> tables = prediction_tables(prediction, kPage);
    for (const Table::Row& row : tables[0].rows) text += (row.highlighted ? "*" : "") + row.cells[0] + " ";
    return text;
  };
  EXPECT_THAT(summarize(results).heading, HasSubstr("bucket_cap_mb=4"));
  EXPECT_EQ(rows(), "1 *4 7 25 ");
  prediction.curve[1].cap_bytes = 4 << 20;
  prediction.curve[1].buckets = prediction.best_uniform.buckets;
  prediction.curve[1].time_s = prediction.best_uniform.time_s;
  EXPECT_EQ(rows(), "1 *4 25 ");
  prediction.curve[1].time_s *= 1.01;  // other buckets under nearly the same cap
  prediction.best_uniform.cap_bytes += 1000;
  EXPECT_EQ(rows(), "1 4 *4.00095 25 ");
}

TEST(Report, TheFastestSettingIsSaidAsSurelyAsItsBlocksShowIt) {
  Results results;
  StepConfiguration& configuration = results.configurations.emplace_back();
  configuration.model.name = "demo";
  const auto heading = [&](double without_s, std::vector<double> other_s) {
    const std::vector<double> fastest_s = {0.100, 0.101, 0.102, 0.103, 0.104, 0.105};
    configuration.strategies = {{.strategy = "none", .measured_s = without_s},
                                {.strategy = "bucketed", .measured_s = 0.1025, .exposed_s = 0.1025 - without_s},
                                {.strategy = "flat", .measured_s = median(other_s)}};
    configuration.samples = {{"step_s", {fastest_s, fastest_s, other_s}}};
    return summarize(results).heading;
  };
  EXPECT_THAT(heading(0.09, {0.200, 0.201, 0.202, 0.203, 0.204, 0.205}), HasSubstr("per step, 12.5 ms of it exposed communication."));
  EXPECT_THAT(
      heading(0.11, {0.109, 0.100, 0.112, 0.099, 0.111, 0.098}),
      HasSubstr("per step. Steps without communication took as long, so what it exposes is not known. 1 of 1 other settings may be"));
  configuration.strategies.resize(1);
  EXPECT_EQ(summarize(results).heading, "Steps without communication were measured, and no others.");
  configuration.strategies.clear();
  EXPECT_EQ(summarize(results).heading, "None of 1 configurations fits into memory.");
}

TEST(Report, APredictionIsFourParagraphsBesideItsTables) {
  Prediction prediction;
  prediction.workload.tensors = 2;
  prediction.workload.gradient_bytes = int64_t{1} << 30;
  prediction.workload.backward_s = 0.5;
  prediction.alpha_beta = {.alpha_s = 1e-4, .beta_s_per_byte = 1e-9};
  prediction.best_uniform.cap_bytes = prediction.curve.emplace_back().cap_bytes = 1 << 20;
  prediction.best_uniform.near_best = prediction.best_uniform.expected_regret = 0.01;
  prediction.ordered.emplace();
  Results results;
  results.prediction = prediction;
  const Wording answer = summarize(results);
  EXPECT_THAT(answer.heading, HasSubstr("Set bucket_cap_mb=1: backward is predicted to take"));
  ASSERT_EQ(answer.lead.size(), 3u);
  EXPECT_THAT(
      answer.lead[0],
      HasSubstr("It is expected to take 1.0 % longer than with the best cap, which is not known; that it is within 5 % is unlikely"));
  for (const char* part : {"2 tensors", "a(x) fits", "On the map of clusters"}) {
    EXPECT_THAT(answer.lead[1], HasSubstr(part));
  }
  EXPECT_THAT(answer.lead[2], HasSubstr("With the strategy ordered, which also overlaps the next forward pass, a step takes"));
}

}  // namespace
}  // namespace firkin
