#include "forward_recorder.h"

#include <algorithm>
#include <limits>

namespace firkin {

ForwardRecorder::ForwardRecorder(torch::nn::Module& module, const std::vector<NamedTensor>& parameters)
    : modules_(module, parameters), parameter_count_(parameters.size()) {
  listening_.emplace(module, *this);
}

void ForwardRecorder::begin() {
  awaited_.clear();
  began_ = Clock::now();
}

void ForwardRecorder::module_awaits(const torch::nn::Module& module) {
  awaited_.emplace_back(&module, std::chrono::duration<double>(Clock::now() - began_).count());
  if (!modules_.has_learned()) modules_.note(module);
  has_awaiting_ = true;
}

std::vector<double> ForwardRecorder::needed_s() {
  if (!modules_.has_learned()) modules_.learn();
  constexpr double kNever = std::numeric_limits<double>::infinity();
  std::vector<double> needed(parameter_count_, kNever);
  for (const auto& [module, seconds] : awaited_) {
    for (const size_t parameter : modules_.parameters_of(*module)) needed[parameter] = std::min(needed[parameter], seconds);
  }
  std::ranges::replace(needed, kNever, 0.0);
  return needed;
}

}  // namespace firkin
