// A workload without a model: a replayed profile has tensors whose gradients become ready when the profile says. It
// sleeps instead of computing, so that the steps of a large model on fast devices can be run on any machine, with real
// gradients over a real or a modelled link.
#pragma once

#include <memory>

#include "comm/device_time.h"
#include "firkin/plan/measurements.h"
#include "workload/workload.h"

namespace firkin {

struct ReplayScale {
  double bytes = 1;  // factor for every gradient's size, rounded to whole float32 elements, at least one
  double time = 1;   // factor for every ready, needed and update time
};

// Throws InputError unless both factors are positive and finite.
TensorProfile scaled(const TensorProfile& profile, const ReplayScale& scale);

// A module with the tensors of the profile, named as there ("blocks.0.weight" is in the module "blocks.0"). In forward
// each module awaits its parameters (firkin/ddp/await_parameters.h) at needed_s; waiting there delays all that follows.
// In backward one autograd node per tensor hands over its gradient at ready_s, counted from the first node, and never
// before; all gradients are small and equal. What runs beside it does not slow it down: contention for cores is not
// replayed. The optimiser, SGD, is real: update_s is not used.
//
// On a CPU the thread sleeps. On a device its stream waits, by `timer` or, by default, make_device_timer(); a module
// that awaits its parameters then gets there late by the few microseconds of a kernel.
//
// Throws InputError when the profile does not know its forward pass (with_forward()), or a tensor and a module have the
// same name.
Workload make_replay_workload(const TensorProfile& profile, c10::Device device = c10::kCPU, std::shared_ptr<DeviceTimer> timer = nullptr);

}  // namespace firkin
