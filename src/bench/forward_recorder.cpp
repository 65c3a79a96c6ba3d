#include "forward_recorder.h"

#include <algorithm>
#include <limits>

namespace firkin {

ForwardRecorder::ForwardRecorder(torch::nn::Module& module, const std::vector<NamedTensor>& parameters)
    : modules_(module, parameters),
      parameter_count_(parameters.size()),
      listening_(module, [this](const torch::nn::Module& awaiting) { module_awaits(awaiting); }) {}

void ForwardRecorder::begin(c10::Device device) {
  awaited_.clear();
  device_ = device;
  began_ = device_now(device);
}

void ForwardRecorder::module_awaits(const torch::nn::Module& module) {
  awaited_.emplace_back(&module, device_now(device_));
  if (!modules_.has_learned()) modules_.note(module, 0);
  has_awaiting_ = true;
}

std::vector<double> ForwardRecorder::needed_s() {
  if (!modules_.has_learned()) modules_.learn();
  constexpr double kNever = std::numeric_limits<double>::infinity();
  std::vector<double> needed(parameter_count_, kNever);
  for (const auto& [module, time] : awaited_) {
    const double seconds = seconds_between(began_, time);
    for (const size_t parameter : modules_.parameters_of(*module)) needed[parameter] = std::min(needed[parameter], seconds);
  }
  std::ranges::replace(needed, kNever, 0.0);
  return needed;
}

}  // namespace firkin
