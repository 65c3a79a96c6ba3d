#include "results/results.h"

#include "../test.h"
#include "example_results.h"

namespace firkin {
namespace {

using nlohmann::json;

// Of a tuning's results, or of others, that were changed.
std::string refusal(const std::function<void(json&)>& change, json document = tune_document()) {
  change(document);
  return message_of<InputError>([&] { results_from_json(document); });
}

TEST(Results, AMissingSectionOrFieldOfTuneIsNamed) {
  EXPECT_THAT(refusal([](json& tune) { tune.erase("curve"); }), HasSubstr("curve"));
  EXPECT_THAT(refusal([](json& tune) { tune["curve"] = json::array(); }), HasSubstr("curve: empty; expected at least one cap"));
  EXPECT_THAT(refusal([](json& tune) { tune.erase("decision"); }), HasSubstr("decision"));
  EXPECT_THAT(refusal([](json& tune) { tune["curve"][2].erase("measured_s"); }), HasSubstr("curve[2].measured_s"));
  EXPECT_THAT(refusal([](json& tune) { tune["allreduce"][0]["median_s"] = "fast"; }), HasSubstr("allreduce[0].median_s"));
  EXPECT_THAT(refusal([](json& predict) { predict["best_uniform"].erase("expected_regret"); }, results_json(predicted_results())),
              HasSubstr("best_uniform.expected_regret"));
  EXPECT_NE(refusal([](json& list) { list = json::array(); }), "");
}

TEST(Results, AnOutcomeIsWrittenAndReadByItsName) {
  Results results = results_from_json(tune_document());
  for (const Outcome outcome : {Outcome::kGain, Outcome::kNotShown, Outcome::kNotMeasured, Outcome::kSameBuckets, Outcome::kHidden,
                                Outcome::kNothingToGain, Outcome::kDefaultFaster, Outcome::kNotToldApart}) {
    results.decision->outcome = outcome;
    EXPECT_EQ(results_from_json(results_json(results)).decision->outcome, outcome);
  }
  EXPECT_EQ(results_json(results)["decision"]["outcome"], "not told apart");
  EXPECT_THAT(refusal([](json& tune) { tune["decision"]["outcome"] = "better"; }),
              HasSubstr("decision.outcome: \"better\"; expected one of gain, gain not shown, "));
}

TEST(Results, EveryLayerHasSamples) {
  Results results;
  results.run = begin_head("bench-layers");
  const std::vector<double> sample = {0.1};
  results.layers = LayersSection{
      .layers = {{"a", 1, sample, sample}, {"b", 1, sample, sample}}, .forward_s = sample, .backward_s = sample, .optimizer_s = sample};
  EXPECT_THAT(refusal([](json& layers) { layers["samples"]["layers"].erase(0); }, results_json(results)), HasSubstr("samples.layers: of"));
}

TEST(Results, TheLinksOfFourRanksCarryHalfAsMuchAgainAsOneRanksData) {
  Results results;
  results.run = begin_head("bench-allreduce");
  results.allreduce = {{.bytes = 4000, .world_size = 4, .median_s = 0.5, .calls_per_sample = 1}};
  EXPECT_EQ(results_json(results)["allreduce"][0]["busbw_bytes_per_s"], 12000.0);  // 2 * 3 / 4 of 4000 / 0.5
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
    EXPECT_THAT(refusal([&](json& tune) { tune["schema"] = schema; }), HasSubstr("expected \"firkin.results/1\"")) << schema;
  }
}

TEST(Results, IntegersThatDoNotFitAreRefusedInListsAndSizesAsWell) {
  constexpr uint64_t kTooLarge = uint64_t{1} << 63;
  json document = tune_document();
  document["environment"]["hosts"] = {
      {{"host", "a"}, {"cpu", "b"}, {"os", "c"}, {"cores", 2}, {"usable_cores", 2}, {"load", 1.0}, {"ranks", {0, 1}}}};
  EXPECT_NO_THROW(results_from_json(document));
  EXPECT_THAT(refusal([&](json& tune) { tune["environment"]["hosts"][0]["ranks"][1] = kTooLarge; }, document),
              HasSubstr("hosts[0].ranks[1]: 9223372036854775808; expected an integer of at most 64 bits"));
  EXPECT_THAT(refusal([&](json& tune) { tune["model"]["num_layers"] = kTooLarge; }),
              HasSubstr("model.num_layers: 9223372036854775808; expected an integer"));
}

TEST(Results, AProfileMaySayWhenForwardNeedsItsTensors) {
  json document = tune_document();
  document["profile"]["forward_s"] = 0.25;
  for (json& tensor : document["profile"]["tensors"]) {
    tensor["needed_s"] = 0.125;
    tensor["update_s"] = 0.001;
  }
  EXPECT_EQ(results_json(results_from_json(document)), document);
  EXPECT_THAT(refusal([](json& tune) { tune["profile"]["forward_s"] = 0.1; }, document), HasSubstr("forward_s is 0.1"));
  EXPECT_THAT(refusal([](json& tune) { tune["profile"]["tensors"][1].erase("needed_s"); }, document),
              HasSubstr("needed_s; expected as many"));
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
