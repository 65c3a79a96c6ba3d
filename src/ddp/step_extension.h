// How the strategies ordered and sharded, and automatic buckets, take part in a step.
#pragma once

#include <cstddef>
#include <optional>

namespace firkin {

class GradientPipe;   // pipe.h
class StepAgreement;  // agreement.h

// In a step begin() comes first, then before_comparison() and check(), then received() if the step is good, then ended().
// before_comparison() and check() come without a step as well, under no_sync(), and before_comparison() where an optimiser
// steps. All are called under the step's lock, and all but check() on every rank alike. An exception from check() fails
// the step, and any other loses the group.
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
  // No rank has failed, and the sums are there, except for buckets that may be late. is_first: the order of these parameters is not
  // learned yet.
  virtual void received(const StepAgreement& /*agreement*/, bool /*is_first*/) {}
  // The step is over. is_good: not dropped because a rank failed or none had data. May be collective.
  virtual void ended(const StepAgreement& /*agreement*/, bool /*is_good*/) {}
  // The setup has other parameters, which have these new buckets. Between steps, or in place of received().
  virtual void renewed(GradientPipe& /*pipe*/) {}
};

}  // namespace firkin
