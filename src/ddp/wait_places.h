// Where this rank waits: in a step of the wrapped module, or in a collective that the program has called between steps.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "step_setup.h"

namespace firkin {

// Sets the places of the setup's groups. Ranks that wait for each other in different calls, or in a call and a step, then
// get an error that names both, well before the timeout: see Note [Crossed waits] in comm/group_state.h. Not thread-safe.
class WaitPlaces {
 public:
  // setup: must outlive this. Its groups have the place of the wrapped module, in no step.
  explicit WaitPlaces(StepSetup& setup) : setup_(setup) {}

  // step: counted from 0, failed steps included.
  void begin_step(int64_t step);

  // While one lives, this rank waits in a collective that the program has called between steps.
  class Call {
   public:
    // name: as the error gives it, "audit()". Ranks make the same calls in the same order.
    Call(WaitPlaces& places, std::string_view name);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    StepSetup& setup_;
    WaitPlace before_;  // of both groups
  };

 private:
  StepSetup& setup_;
  std::map<std::string, int64_t, std::less<>> calls_;  // by name: the number of the last call, from 0
};

}  // namespace firkin
