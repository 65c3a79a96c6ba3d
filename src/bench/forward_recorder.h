// Notes when the forward pass first uses each parameter: when a module that has it awaits it (firkin/ddp/await_parameters.h).
#pragma once

#include <utility>
#include <vector>

#include "ddp/ordered/ordered.h"
#include "firkin/ddp/module_parameters.h"
#include "workload/device_clock.h"

namespace firkin {

// Listens for as long as it lives.
class ForwardRecorder {
 public:
  ForwardRecorder(torch::nn::Module& module, const std::vector<NamedTensor>& parameters);

  // A forward pass begins.
  void begin(c10::Device device);
  // Per parameter, seconds from the last begin(); 0 for one that no module awaits, which must be there before forward begins.
  std::vector<double> needed_s();
  // Whether any module awaits.
  bool has_awaiting() const { return has_awaiting_; }

 private:
  void module_awaits(const torch::nn::Module& module);

  AwaitingModules modules_;
  bool has_awaiting_ = false;
  c10::Device device_ = c10::kCPU;
  DeviceTime began_;
  std::vector<std::pair<const torch::nn::Module*, DeviceTime>> awaited_;  // in this forward
  size_t parameter_count_;
  ForwardListening listening_;  // last, so that nobody is told of a module when the rest is gone
};

}  // namespace firkin
