#include "results/results.h"

#include "../test.h"
#include "example_results.h"

namespace firkin {
namespace {

using nlohmann::json;

TEST(Results, AMissingSectionOrFieldOfTuneIsNamed) {
  json without_curve = tune_document();
  without_curve.erase("curve");
  EXPECT_THAT([&] { results_from_json(without_curve); }, ThrowsMessage<InputError>(HasSubstr("curve")));
  json without_caps = tune_document();
  without_caps["curve"] = json::array();
  EXPECT_THAT([&] { results_from_json(without_caps); }, ThrowsMessage<InputError>(HasSubstr("curve: empty; expected at least one cap")));
  json without_decision = tune_document();
  without_decision.erase("decision");
  EXPECT_THAT([&] { results_from_json(without_decision); }, ThrowsMessage<InputError>(HasSubstr("decision")));
  json without_regret = results_json(predicted_results());
  without_regret["best_uniform"].erase("expected_regret");
  EXPECT_THAT([&] { results_from_json(without_regret); }, ThrowsMessage<InputError>(HasSubstr("best_uniform.expected_regret")));
  json without_time = tune_document();
  without_time["curve"][2].erase("measured_s");
  EXPECT_THAT([&] { results_from_json(without_time); }, ThrowsMessage<InputError>(HasSubstr("curve[2].measured_s")));
  json with_text = tune_document();
  with_text["allreduce"][0]["median_s"] = "fast";
  EXPECT_THAT([&] { results_from_json(with_text); }, ThrowsMessage<InputError>(HasSubstr("allreduce[0].median_s")));
  EXPECT_THROW(results_from_json(json::array()), InputError);
}

TEST(Results, AnOutcomeIsWrittenAndReadByItsName) {
  Results results = results_from_json(tune_document());
  for (const Outcome outcome : {Outcome::kGain, Outcome::kNotShown, Outcome::kNotMeasured, Outcome::kSameBuckets, Outcome::kHidden,
                                Outcome::kNothingToGain, Outcome::kDefaultFaster, Outcome::kNotToldApart}) {
    results.decision->outcome = outcome;
    EXPECT_EQ(results_from_json(results_json(results)).decision->outcome, outcome);
  }
  EXPECT_EQ(results_json(results)["decision"]["outcome"], "not told apart");
  json document = tune_document();
  document["decision"]["outcome"] = "better";
  EXPECT_THAT([&] { results_from_json(document); },
              ThrowsMessage<InputError>(HasSubstr("decision.outcome: \"better\"; expected one of gain, gain not shown, ")));
}

TEST(Results, EveryLayerHasSamples) {
  Results results;
  results.run = begin_head("bench-layers");
  const std::vector<double> sample = {0.1};
  results.layers = LayersSection{
      .layers = {{"a", 1, sample, sample}, {"b", 1, sample, sample}}, .forward_s = sample, .backward_s = sample, .optimizer_s = sample};
  json document = results_json(results);
  document["samples"]["layers"].erase(0);
  EXPECT_THAT([&] { results_from_json(document); }, ThrowsMessage<InputError>(HasSubstr("samples.layers: of")));
}

TEST(Results, AnInterruptedTuneNeedsNoAnswer) {
  json document = tune_document();
  document["complete"] = false;
  for (const char* section : {"curve", "strategies", "best_predicted", "best_measured", "indifference_set", "regret"}) {
    document.erase(section);
  }
  const Results results = results_from_json(document);
  EXPECT_FALSE(results.complete);
  EXPECT_FALSE(results.decision);
  EXPECT_TRUE(results.profile);
}

TEST(Results, OfAnotherSchemaAreRefused) {
  for (const char* schema : {"firkin.results/2", "firkin.results/10", "firkin.results/"}) {
    json document = tune_document();
    document["schema"] = schema;
    EXPECT_THAT([&] { results_from_json(document); }, ThrowsMessage<InputError>(HasSubstr("expected \"firkin.results/1\""))) << schema;
  }
}

TEST(Results, IntegersThatDoNotFitAreRefusedInListsAndSizesAsWell) {
  constexpr uint64_t kTooLarge = uint64_t{1} << 63;
  json document = tune_document();
  document["environment"]["hosts"] = {
      {{"host", "a"}, {"cpu", "b"}, {"os", "c"}, {"cores", 2}, {"usable_cores", 2}, {"load", 1.0}, {"ranks", {0, 1}}}};
  EXPECT_NO_THROW(results_from_json(document));
  document["environment"]["hosts"][0]["ranks"][1] = kTooLarge;
  EXPECT_THAT([&] { results_from_json(document); },
              ThrowsMessage<InputError>(HasSubstr("hosts[0].ranks[1]: 9223372036854775808; expected an integer of at most 64 bits")));
  document = tune_document();
  document["model"]["num_layers"] = kTooLarge;
  EXPECT_THAT([&] { results_from_json(document); },
              ThrowsMessage<InputError>(HasSubstr("model.num_layers: 9223372036854775808; expected an integer")));
}

TEST(Results, AProfileMaySayWhenForwardNeedsItsTensors) {
  json document = tune_document();
  document["profile"]["forward_s"] = 0.25;
  for (json& tensor : document["profile"]["tensors"]) {
    tensor["needed_s"] = 0.125;
    tensor["update_s"] = 0.001;
  }
  EXPECT_EQ(results_json(results_from_json(document)), document);
  json early = document;
  early["profile"]["forward_s"] = 0.1;
  EXPECT_THAT([&] { results_from_json(early); }, ThrowsMessage<InputError>(HasSubstr("forward_s is 0.1")));
  document["profile"]["tensors"][1].erase("needed_s");
  EXPECT_THAT([&] { results_from_json(document); }, ThrowsMessage<InputError>(HasSubstr("needed_s; expected as many")));
}

TEST(Results, AnIntervalWithoutAnEndIsWrittenWithNullAndReadAgain) {
  Results results = results_from_json(tune_document());
  results.curve[0].measured_ci_s = Interval{0, HUGE_VAL};
  const json document = results_json(results);
  EXPECT_EQ(document["curve"][0]["measured_ci_s"], (json{{"low", 0.0}, {"high", nullptr}}));
  EXPECT_EQ(results_json(results_from_json(document)), document);
}

TEST(Results, TextThatIsNoUtf8DoesNotLoseThem) {
  Results results = results_from_json(tune_document());
  results.run.command_line.push_back("--out=\xff\xfe");
  EXPECT_EQ(parse_results(results_text(results), "results.json").run.command_line.back(), "--out=\xEF\xBF\xBD\xEF\xBF\xBD");
}

Host host_with_load(const std::string& name, double load) {
  Host host;
  host.host = name;
  host.load = load;
  return host;
}

TEST(Results, RanksOfOneMachineAreOneHost) {
  const std::vector<Host> hosts = by_host({host_with_load("a", 1), host_with_load("b", 2), host_with_load("a", 9)});
  ASSERT_EQ(hosts.size(), 2);
  EXPECT_EQ(hosts[0].ranks, (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(hosts[0].load, 1);
  EXPECT_EQ(hosts[1].ranks, (std::vector<int64_t>{1}));
}

PasteSetting of_tool(const std::vector<PasteSetting>& settings, const std::string& tool) {
  const auto found = std::ranges::find(settings, tool, &PasteSetting::tool);
  return found == settings.end() ? PasteSetting() : *found;
}

TEST(PasteSettings, EveryToolGetsTheCapInItsOwnUnit) {
  const auto settings = paste_settings(kMiB / 2 + kMiB * 4, 4, {});  // 4.5 MiB
  EXPECT_THAT(of_tool(settings, "PyTorch").setting, HasSubstr("bucket_cap_mb=4.5)"));
  EXPECT_THAT(of_tool(settings, "Accelerate").setting, HasSubstr("bucket_cap_mb=4.5)"));
  EXPECT_THAT(of_tool(settings, "Lightning").setting, HasSubstr("bucket_cap_mb=4.5)"));
  EXPECT_THAT(of_tool(settings, "DeepSpeed").setting, HasSubstr("\"reduce_bucket_size\": 1179648"));
  EXPECT_THAT(of_tool(settings, "Megatron-LM").setting, HasSubstr("--ddp-bucket-size 1179648"));
  EXPECT_THAT(of_tool(settings, "Horovod").setting, HasSubstr("HOROVOD_FUSION_THRESHOLD=4718592"));
}

TEST(PasteSettings, ElementsOfBfloat16AreTwiceAsMany) {
  EXPECT_THAT(of_tool(paste_settings(kMiB, 2, {}), "DeepSpeed").setting, HasSubstr(": 524288"));
}

TEST(PasteSettings, TransformersTakesFractionsInPythonThoughNotOnACommandLine) {
  const PasteSetting small = of_tool(paste_settings(kMiB / 4, 4, {}), "Transformers");
  EXPECT_THAT(small.setting, HasSubstr("ddp_bucket_cap_mb=0.25)"));
  EXPECT_THAT(small.note, HasSubstr("whole MiB as a command-line flag"));
}

TEST(PasteSettings, APlanIsOfferedAsAListWhereThereIsOne) {
  EXPECT_EQ(of_tool(paste_settings(kMiB, 4, {}), "PyTorch, best plan").setting, "");
  EXPECT_THAT(of_tool(paste_settings(kMiB, 4, {1, 2.5}), "PyTorch, best plan").setting, HasSubstr("bucket_cap_mb_list=[1, 2.5]"));
}

}  // namespace
}  // namespace firkin
