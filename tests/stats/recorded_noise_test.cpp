// What intervals promise, on noise that was recorded (studies/stats/record_same_setting.py): loopback and a modelled link, with and without
// processes that compute beside it. One setting has eight names, so whatever differs is noise.
#include <random>

#include "../test.h"
#include "firkin/base/csv.h"
#include "firkin/stats/estimates.h"

namespace firkin {
namespace {

using SettingsByBlock = std::vector<std::vector<double>>;  // [name][block], seconds

SettingsByBlock read_recording(const std::string& name) {
  const std::vector<std::string> columns = {"name1", "name2", "name3", "name4", "name5", "name6", "name7", "name8"};
  const CsvTable csv = read_csv(FIRKIN_SOURCE_DIR "/tests/stats/data/same_setting_" + name + ".csv", {.required = columns});
  SettingsByBlock recording(columns.size());
  for (size_t row = 0; row < csv.rows(); ++row) {
    for (size_t i = 0; i < columns.size(); ++i) recording[i].push_back(csv.number(row, columns[i]));
  }
  return recording;
}

// Measurements that might as well have been recorded: blocks that follow each other, and in each the names in another order, of which some
// are taken. All of them stay in `everything`, which says what is true of these blocks.
class RecordedMeasurements {
 public:
  explicit RecordedMeasurements(const std::string& recording) : recording_(read_recording(recording)) {}

  struct Measurement {
    SettingsByBlock settings;
    SettingsByBlock everything;
  };

  Measurement draw(size_t settings, size_t blocks) {
    const size_t first = random_() % (recording_[0].size() - blocks + 1);
    Measurement measurement{SettingsByBlock(settings), SettingsByBlock(recording_.size())};
    for (size_t block = first; block < first + blocks; ++block) {
      std::vector<double> times;
      for (const std::vector<double>& name : recording_) times.push_back(name[block]);
      for (size_t i = times.size(); i > 1; --i) std::swap(times[i - 1], times[random_() % i]);
      for (size_t i = 0; i < times.size(); ++i) {
        if (i < settings) measurement.settings[i].push_back(times[i]);
        measurement.everything[i].push_back(times[i]);
      }
    }
    return measurement;
  }

 private:
  SettingsByBlock recording_;
  std::mt19937_64 random_{1};
};

class RecordedNoise : public testing::TestWithParam<std::string> {};
const auto name_of_recording = [](const auto& test) { return test.param; };
INSTANTIATE_TEST_SUITE_P(Of, RecordedNoise, Values("link_loaded"), name_of_recording);
INSTANTIATE_TEST_SUITE_P(Full, RecordedNoise, Values("loopback", "loaded", "link"), name_of_recording);

// Of what everything measured in the same blocks has taken.
double true_median(const SettingsByBlock& everything) {
  std::vector<double> all;
  for (const std::vector<double>& name : everything) all.insert(all.end(), name.begin(), name.end());
  return median(all);
}

TEST_P(RecordedNoise, IntervalsOfSettingsHoldTheTrueMedianInNinetyTwoToNinetyEightPercent) {
  for (const size_t blocks : {6, 12, 20, 30}) {
    RecordedMeasurements recorded(GetParam());
    int held = 0;
    int intervals = 0;
    for (int trial = 0; trial < 300; ++trial) {
      const auto measured = recorded.draw(8, blocks);
      for (const SettingFit& setting : fit_blocks(measured.settings)) {
        held += setting.interval.contains(true_median(measured.everything)) ? 1 : 0;
        ++intervals;
      }
    }
    EXPECT_THAT(100.0 * held / intervals, AllOf(Ge(92), Le(98))) << blocks << " blocks";
  }
}

// Few settings say less of what is typical of the blocks: the level that all of them share is off, which no comparison sees.
TEST_P(RecordedNoise, IntervalsOfFewSettingsHoldTheTrueMedianInEightyFivePercentOrMore) {
  for (const size_t settings : {2, 3, 4}) {
    RecordedMeasurements recorded(GetParam());
    int held = 0;
    for (int trial = 0; trial < 1000; ++trial) {
      const auto measured = recorded.draw(settings, std::vector<size_t>{6, 12, 20, 30}[static_cast<size_t>(trial) % 4]);
      held += fit_blocks(measured.settings)[0].interval.contains(true_median(measured.everything)) ? 1 : 0;
    }
    EXPECT_THAT(100.0 * held / 1000, AllOf(Ge(85), Le(98))) << settings << " settings";
  }
}

TEST_P(RecordedNoise, PairsAreCalledDifferentInAboutFivePercentOrLess) {
  for (const size_t blocks : {6, 12, 20, 30}) {
    RecordedMeasurements recorded(GetParam());
    int different = 0;
    for (int trial = 0; trial < 2000; ++trial) {
      const auto measured = recorded.draw(2, blocks).settings;
      different += paired_ratio(measured[0], measured[1]).interval.contains(1) ? 0 : 1;
    }
    EXPECT_LE(different, 120) << blocks << " blocks";  // 100, and two standard deviations
  }
}

TEST_P(RecordedNoise, ATrulyBestSettingIsSeldomLeftOutAndTwoAreSeldomToldApart) {
  RecordedMeasurements recorded(GetParam());
  constexpr int kTrials = 200;
  int left_out = 0;
  int told_apart = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    const IndifferenceSet set = indifference_set(recorded.draw(6, 12).settings);
    const auto member = [&](size_t setting) { return std::ranges::count(set.members, setting) == 1; };
    left_out += member(0) ? 0 : 1;
    told_apart += member(0) == member(1) ? 0 : 1;
  }
  EXPECT_LE(left_out, 0.05 * kTrials);  // 2.5 %, and two standard deviations
  EXPECT_LE(told_apart, 0.05 * kTrials);
}

}  // namespace
}  // namespace firkin
