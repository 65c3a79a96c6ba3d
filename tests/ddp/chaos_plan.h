// What happens in a chaos sequence, drawn before it starts: every rank reads the same plan.
#pragma once

#include "chaos_model.h"
#include "firkin/plan/bucket_plan.h"

namespace firkin {

enum class ChaosFault {
  kNone,
  kForward,        // forward throws; the handler abandons the step
  kBackward,       // backward throws, at ChaosPass::throw_at
  kAfterBackward,  // between backward and finish_gradient_synchronization()
  kAbandon,        // abandon_step() instead of the step
  kCreateGraph,    // backward(create_graph = true), which no step can average
};

// What one rank does in one step.
struct ChaosAction {
  int micro_batches = 1;          // all but the last without synchronisation
  bool by_setter = false;         // set_gradient_synchronization() instead of no_sync()
  bool without_backward = false;  // finish_gradient_synchronization() alone
  bool finishes_twice = false;    // calls finish_gradient_synchronization() though the step is complete or has failed
  int abandons = 0;               // how many times the handler of an exception calls abandon_step()
  ChaosFault fault = ChaosFault::kNone;
  int fault_micro = 0;  // the micro-batch in which it strikes
  ChaosPass pass;
};

enum class ChaosOutcome {
  kSucceeds,
  kFails,
  kEither,
  kDrifts,  // parameters may differ already: succeeds, or every rank has the same AuditError
};
enum class ZeroGrad { kToNone, kInPlace, kNever };

// What happens to the parameters before a step.
enum class ChaosChangeKind { kThaw, kFreeze, kAdd, kReplace };
struct ChaosChange {
  ChaosChangeKind kind = ChaosChangeKind::kThaw;
  std::string name;         // of the parameter, or of the layer
  std::vector<int> ranks;   // that do it; the others follow after the step, which fails
  bool same_values = true;  // on every rank, where it brings new ones
  bool tells = false;       // parameters_changed()
  bool brings_values() const { return kind == ChaosChangeKind::kAdd || kind == ChaosChangeKind::kReplace; }
};

struct ChaosStep {
  int number = 0;  // in the sequence
  int module = 0;
  std::optional<ChaosChange> change;
  ZeroGrad zero_grad = ZeroGrad::kToNone;
  bool sets_bank = false;                           // a buffer gets other sizes, and values of each rank's own
  bool halves_weight = false;                       // after each micro-batch but the last, in place, on every rank
  std::vector<std::optional<ChaosAction>> actions;  // per rank; none: the rank has no batch left
  ChaosOutcome outcome = ChaosOutcome::kSucceeds;
  std::vector<int> culprits;         // the ranks that may be named when the step fails; empty: any
  std::vector<std::string> reasons;  // per rank: part of what it says when it is the one that is named; empty: anything
  bool knows_mean = true;            // the gradient must be the mean of what the ranks compute alone
};

// Steps of one module that every rank takes part in, a join section, or a drift: one rank trains at another rate until the audit finds it
// (at the last but one step at the latest), then all go back to where they were and take the last step.
struct ChaosSection {
  bool joins = false;
  int module = 0;
  std::optional<int> drifting_rank;
  std::vector<ChaosStep> steps;
};

struct ChaosPlan {
  uint64_t seed = 0;
  int ranks = 2;
  ChaosModelSpec model;
  std::string strategy;
  CapOptions cap;
  bool explicit_ready_order = false;
  bool find_unused_parameters = false;
  bool broadcast_buffers = true;
  bool finish_with_backward = true;
  bool whole_parameters = false;      // how sharded divides buckets
  bool abandons_in_handlers = false;  // abandon_step() is called within the handler, and for every exception but a StepError
  bool compresses = false;            // bf16
  bool adam = false;                  // AdamW, else SGD with momentum
  int modules = 1;                    // of the same size, wrapped on the same group
  int64_t audit_every = 0;
  std::optional<double> clip_norm;  // by clip_gradients()
  bool clips_by_hand = false;       // or after drain()
  bool keeps_gradients = false;     // takes gradients out of the parameters, and looks at them again later
  std::vector<ChaosSection> sections;
};

ChaosPlan draw_chaos_plan(uint64_t seed);

// Trainable parameters cut into buckets of one dtype, for the strategy planned. ready_order: indices into `dtypes`.
BucketPlan draw_bucket_plan(uint64_t seed, const std::vector<at::ScalarType>& dtypes, const std::vector<int64_t>& ready_order);
std::vector<int64_t> draw_ready_order(uint64_t seed, size_t parameters);

}  // namespace firkin
