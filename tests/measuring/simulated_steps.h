// A tuning without a machine: the phases of measuring/tuning.h over steps that are drawn, and a clock that they move.
#pragma once

#include <map>
#include <random>

#include "../test.h"
#include "firkin/base/units.h"
#include "measuring/tuning.h"

namespace firkin {

// Twelve tensors that get ready one after another, and a link that takes 3 ms a call and 4 ns a byte.
inline Tuning twelve_tensors() {
  Tuning tuning;
  tuning.world_size = 2;
  TensorProfile& tensors = tuning.profile.tensors;
  for (const int64_t quarters : {8, 8, 1, 16, 16, 8, 8, 4, 8, 8, 16, 1}) {
    tensors.names.push_back(fmt::format("tensor {}", tensors.names.size()));
    tensors.bytes.push_back(quarters * kMiB / 4);
    tensors.ready_s.push_back(0.01 * static_cast<double>(tensors.bytes.size()));
  }
  tensors.backward_s = tuning.profile.bare_backward_s.emplace(0.12);
  for (const int64_t bytes : {int64_t{4}, kMiB / 4, kMiB, 4 * kMiB, 16 * kMiB, 64 * kMiB}) {
    tuning.allreduce.push_back({.bytes = bytes, .world_size = 2, .median_s = 0.003 + 4e-9 * static_cast<double>(bytes)});
  }
  return tuning;
}

// A step of 0.2 s, 0.12 s of it backward, as the model has it: buckets one after another, none before its last tensor is
// ready.
inline double modelled_step_s(const BucketPlan& plan, const TensorProfile& tensors) {
  if (plan.buckets.empty()) return 0.2;
  double end_s = 0;
  for (const Bucket& bucket : plan.buckets) {
    double bytes = 0, ready_s = 0;
    for (auto i = static_cast<size_t>(bucket.first); i < static_cast<size_t>(bucket.first + bucket.count); ++i) {
      bytes += static_cast<double>(tensors.bytes[i]);
      ready_s = tensors.ready_s[i];
    }
    end_s = std::max(end_s, ready_s) + 0.003 + 4e-9 * bytes;
  }
  return 0.2 - 0.12 + end_s;
}

// Runs blocks of steps, each a few percent off, and as slow as the machine is in that block.
class SimulatedSteps {
 public:
  double noise = 0.005;                   // standard deviation of a step's logarithm, of its own; and twice as much that a block shares
  std::map<SettingKind, double> gain_s;   // seconds of settings where they are not the model's, in all phases but the calibration
  std::vector<double> raced_s;            // seconds of the raced caps, where they are not the model's; the last of all others too
  std::map<std::string, double> options;  // the time with an option over that without

  // What run_phases() asks. tensors: of the tuning.
  StepMeter meter(const TensorProfile& tensors) {
    StepMeter meter;
    meter.elapsed_s = [this] { return clock_s_; };
    meter.of_rank_0 = [](const std::vector<int64_t>& list) { return list; };
    meter.measure = [this, &tensors](TuningPhase phase, const std::vector<TunedSetting>& settings, const StepBlocks& blocks,
                                     const auto& is_enough) { return measure(phase, settings, blocks, is_enough, tensors); };
    return meter;
  }

 private:
  double normal() {  // as a sum of twelve: std::normal_distribution differs between libraries
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += static_cast<double>(random_() >> 11) * 0x1p-53;
    return sum;
  }

  double typical_s(TuningPhase phase, const TunedSetting& setting, size_t place, const TensorProfile& tensors) const {
    if (phase == TuningPhase::kRace && !raced_s.empty()) return raced_s[std::min(place, raced_s.size() - 1)];
    const auto known = gain_s.find(setting.kind);
    double seconds = known != gain_s.end() && phase != TuningPhase::kCalibration ? known->second : modelled_step_s(setting.plan, tensors);
    for (const std::string& option : setting.options) {
      if (const auto factor = options.find(option); factor != options.end()) seconds *= factor->second;
    }
    return seconds;
  }

  std::vector<SettingSteps> measure(TuningPhase phase, const std::vector<TunedSetting>& settings, const StepBlocks& blocks,
                                    const std::function<bool(const std::vector<SettingSteps>&)>& is_enough, const TensorProfile& tensors) {
    constexpr double kSteps = 4;  // of a visit
    std::vector<SettingSteps> steps;
    for (const TunedSetting& setting : settings) steps.push_back({.name = name_of(setting), .buckets = std::ssize(setting.plan.buckets)});
    const double started_s = clock_s_;
    for (int block = 0; block < blocks.most;) {
      const double shared = 2 * noise * normal();
      for (size_t i = 0; i < settings.size(); ++i) {
        steps[i].step_s.push_back(typical_s(phase, settings[i], i, tensors) * std::exp(shared + noise * normal()));
        clock_s_ += kSteps * steps[i].step_s.back();
      }
      ++block;
      const double with_another_s = (clock_s_ - started_s) * (block + 1) / block;
      if (is_enough(steps) || (block >= blocks.fewest && with_another_s > blocks.seconds)) break;
    }
    return steps;
  }

  std::mt19937_64 random_{7};
  double clock_s_ = 0;
};

}  // namespace firkin
