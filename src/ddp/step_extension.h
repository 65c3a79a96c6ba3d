// How the strategies ordered and sharded, and automatic buckets, take part in a step.
#pragma once

#include <cstddef>
#include <optional>

namespace firkin {

class GradientPipe;   // pipe.h
class StepAgreement;  // agreement.h

// In a step StepProtocol calls begin() first, then before_comparison() (if the step compares) and check(), then
// received() if the step is good, and at last ended(). Under no_sync() it calls before_comparison() and check() without
// a step; before_comparison() also when an optimiser has stepped. The protocol's mutex is locked during every call. All
// calls but check() come on every rank alike. An exception from check() fails the step, any other loses the group.
class StepExtension {
 public:
  virtual ~StepExtension() = default;

  // A step begins, and nothing is in a bucket yet.
  virtual void begin() {}
  // Parameters will be compared between ranks: receive what is in flight.
  virtual void before_comparison() {}
  // Throws the error with which this rank fails the step. Called for every gradient, synchronised or not, where the
  // exception comes out of backward(); and once without a gradient, when backward is over.
  virtual void check(std::optional<size_t> /*gradient*/) {}
  // No rank has failed, and all buckets are received that may not be late. is_first: the first such step with these
  // parameters, whose order was not known before.
  virtual void received(const StepAgreement& /*agreement*/, bool /*is_first*/) {}
  // The step is over. is_good: no rank has failed, and some rank had data. May be collective.
  virtual void ended(const StepAgreement& /*agreement*/, bool /*is_good*/) {}
  // The setup has other parameters, for which this pipe is made. Between steps, or in place of received().
  virtual void renewed(GradientPipe& /*pipe*/) {}
};

}  // namespace firkin
