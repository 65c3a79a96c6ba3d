// Noise that was recorded (studies/stats/record_same_setting.py): one setting under eight names, so whatever differs is noise.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "firkin/base/csv.h"

namespace firkin {

using SettingsByBlock = std::vector<std::vector<double>>;  // [name][block], seconds

inline SettingsByBlock read_recording(const std::string& name) {
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

}  // namespace firkin
