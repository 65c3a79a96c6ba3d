// What a tuning says in its first lines, in the situations that there are: simulated steps, real phases and words.
// answers.txt has all of it on one page, to be read. FIRKIN_REWRITE=1 in the environment writes it anew.
#include "../test.h"
#include "report/words.h"
#include "simulated_steps.h"

namespace firkin {
namespace {

struct Situation {
  std::string name;
  SimulatedSteps steps;
  PhaseOptions options = {};
  std::vector<std::string> command_line = {"train.py"};
  bool makes_any_plan = true;
};

SimulatedSteps steps_of(double none_s, double default_s, double chosen_s, double noise = 0.005) {
  SimulatedSteps steps;
  steps.noise = noise;
  steps.gain_s = {{SettingKind::kNone, none_s}, {SettingKind::kTorchDefault, default_s}, {SettingKind::kChosenCap, chosen_s}};
  return steps;
}

std::vector<Situation> situations() {
  const PhaseOptions usual = {.seconds = 150, .gain_blocks = {.fewest = 2}};
  const auto with = [&](auto change) {
    PhaseOptions options = usual;
    change(options);
    return options;
  };
  const PhaseOptions with_options = with([](auto& o) {
    o.seconds = 600;
    o.options = {"gradient_as_bucket_view", "static_graph"};
  });
  std::vector<Situation> list = {
      {"a gain", steps_of(0.2, 0.4, 0.3), usual},
      {"nothing to gain", steps_of(0.2, 0.3, 0.3), usual},
      {"communication is hidden", steps_of(0.2, 0.201, 0.201), usual},
      {"the default is faster", steps_of(0.2, 0.25, 0.3), usual},
      {"a gain that the noise hides", steps_of(0.2, 0.3, 0.29, 0.5), usual},
      {"slow steps, of which few blocks fit into the time", steps_of(0.2, 0.3, 0.226), with([](auto& o) { o.gain_blocks.most = 4; })},
      {"a gain for which the time was too short", steps_of(0.2, 0.3, 0.29, 0.06), usual},
      {"a gain for which a longer time was enough", steps_of(0.2, 0.3, 0.29, 0.06), with([](auto& o) { o.seconds = 1500; })},
      {"a gain for which the blocks were too few",
       steps_of(0.2, 0.3, 0.29, 0.06),
       with([](auto& o) { o.gain_blocks.most = 12; }),
       {"firkin", "tune"}},
      {"options alone", steps_of(0.2, 0.3, 0.3), with_options},
      {"a cap and an option", steps_of(0.2, 0.3, 0.28), with_options},
      {"two dtypes, so that no list of caps is possible", steps_of(0.2, 0.4, 0.3), usual, {"train.py"}, false},
      {"communication takes most of a step", steps_of(0.1, 0.36, 0.358), usual},
      {"a C++ program", steps_of(0.2, 0.4, 0.3), usual, {}},
      {"steps that the model cannot explain", steps_of(0.2, 0.3, 0.29), usual},
  };
  for (Situation& situation : list) situation.steps.options = {{"gradient_as_bucket_view", 0.93}};
  return list;
}

std::string answer_to(Situation& situation) {
  Tuning tuning = twelve_tensors();
  StepMeter meter = situation.steps.meter(tuning.profile.tensors);
  if (!situation.makes_any_plan) meter.is_possible = [](const BucketPlan& /*plan*/) { return false; };
  if (situation.name == "steps that the model cannot explain") {
    // In calibration the more buckets, the faster: no parameter of the model does that.
    meter.measure = [measure = meter.measure](TuningPhase phase, const auto& settings, const auto& blocks, const auto& is_enough) {
      auto steps = measure(phase, settings, blocks, is_enough);
      if (phase != TuningPhase::kCalibration) return steps;
      for (SettingSteps& setting : steps) {
        for (double& seconds : setting.step_s) seconds *= setting.buckets == 0 ? 1 : 3.0 / static_cast<double>(1 + setting.buckets);
      }
      return steps;
    };
  }
  run_phases(situation.options, meter, tuning);
  Results results;
  results.run = begin_head("tune");
  results.run.command_line = situation.command_line;
  add_sections(tuning, results);
  return fmt::format("== {}: {} blocks\n{}\n", situation.name, tuning.gain[0].step_s.size(), answer_in_text(results));
}

TEST(Answers, AreAsTheyWereReadOnOnePage) {
  std::string page;
  for (Situation& situation : situations()) page += answer_to(situation);
  expect_as_kept(page, FIRKIN_SOURCE_DIR "/tests/measuring/answers.txt");
}

}  // namespace
}  // namespace firkin
