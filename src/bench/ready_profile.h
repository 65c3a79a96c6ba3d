// Where a step's time goes, measured on the real model: when each gradient becomes ready in the backward pass and when
// forward needs its parameter; and what each layer takes.
//
//   const LayerProfile profile = measure_layers(group, workload, {.steps = 20});
//   profile.times.layers[3].name;        // "blocks.2"
//   median(profile.times.layers[3].backward_s);
//   profile.watched_to_bare.ratio;       // 1.002: watching costs 0.2 % of a step
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "firkin/comm/process_group.h"
#include "firkin/plan/measurements.h"
#include "firkin/stats/estimates.h"
#include "results/results.h"
#include "workload/workload.h"

namespace firkin {

struct ReadyProfileOptions {
  int steps = 20;                                                 // pairs of steps: a bare backward, and one with hooks
  std::function<void(const std::string& done)> on_progress = {};  // may be empty
  // Asked after each pair whether that many suffice, on every rank; all must answer alike. May be empty.
  std::function<bool(int done)> is_enough = {};
};

// The fewest pairs of steps that give medians and a ratio.
inline constexpr int kFewestProfileSteps = 4;

// A gradient is ready when it is in its bucket and could be sent. Names are the module's, in gradient-ready order; times
// are medians over steps of the slowest rank's, made non-decreasing. The forward pass is known if modules await their
// parameters; the optimiser's time is divided by bytes. hook_perturbation is the cost of hooks and of writing into
// buckets.
//
// Collective: every rank gets rank 0's order and the same times. Steps the workload, optimiser included, without
// communicating gradients. Throws InputError, on every rank, for a step without backward and for a trainable parameter
// that gets no gradient.
MeasuredProfile measure_ready_profile(const ProcessGroup& group, Workload& workload, const ReadyProfileOptions& options);

// Called by a model during forward: with "" before the first layer, then after each layer with its name.
using ForwardObserver = std::function<void(const std::string& layer)>;

struct LayerBenchOptions {
  int steps = 20;     // for each kind, watched and bare, in pairs whose order is random
  uint64_t seed = 0;  // for that order; the same on every rank
  // Gives the model an observer that its forward is to call, or an empty one to stop that. If this function is empty,
  // forward is measured only as a whole.
  std::function<void(ForwardObserver)> observe_forward = {};
  std::function<void(const std::string& done)> on_progress = {};  // called after each pair; may be empty
};

struct LayerProfile {
  // Layers in the order in which parameters are registered, then those without parameters. A layer's forward counts
  // from the end of the layer before; its backward from the last gradient of the layer that was ready before it to its
  // own last one. The whole forward includes reading the batch and the loss.
  LayersSection times;
  // Ready when autograd has finished the gradient; medians over steps, made non-decreasing.
  TensorProfile tensors;
  PairedRatio watched_to_bare;  // time of a whole step with hooks and observer over that without
};

// The layer that a parameter belongs to, by its name: up to the first part that is a number ("blocks.3" for
// "blocks.3.attn.q.weight"), else its first part ("lm_head" for "lm_head.weight").
std::string layer_of(const std::string& parameter);

// Steps the workload without communicating gradients, like measure_ready_profile(), but with clocks for each layer.
// Collective: every rank gets the same result.
LayerProfile measure_layers(const ProcessGroup& group, Workload& workload, const LayerBenchOptions& options);

}  // namespace firkin
