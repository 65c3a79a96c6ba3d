// Follows the wrapped module: what it trains now, the hooks on its parameters, and its buffers.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "firkin/ddp/module_parameters.h"
#include "module_state.h"
#include "step_setup.h"

namespace firkin {

// What ranks found when the parameters of some of them had changed; the same on every rank, but for the tensors.
struct ModuleChange {
  std::vector<NamedTensor> parameters;   // those that this rank trains now
  std::vector<NamedTensor> joined = {};  // of these, the ones that some rank did not train before
  // The first of these that joined on some ranks only, or with other values on some rank than on rank 0; empty if there
  // is none. See equalize().
  std::string values_differ = {};
  std::string refusal = {};  // why the next step cannot use these parameters; empty if it can
  // Why a step that meets the change fails although the next one can use it; empty if the step can go on.
  std::string delay = {};
};

// Why a parameter whose gradient has come has none any more.
std::string why_gradient_is_gone(const NamedTensor& parameter);

// Parameters are found again, and hooks made for them, only by follow(), on every rank between the same two steps; until
// then a change is only noticed. Thread-safety: every call, and every callback from a hook, is made under the protocol's
// mutex (protocol.h), which the callbacks take themselves.
class ModuleFollower {
 public:
  // On the thread that runs backward.
  struct Callbacks {
    std::function<void(size_t parameter)> on_gradient;  // a trained parameter's gradient was accumulated
    std::function<void()> on_other_gradient;            // one of another parameter of the module is about to be
  };

  // setup: must outlive this; follow() changes its parameters. Begins with what it has.
  ModuleFollower(StepSetup& setup, Callbacks callbacks);

  // ---- Hooks
  void add_hooks();
  // So that a backward which reaches only parameters that are not trained yet is noticed as well. all: what the module
  // holds.
  void add_hooks_to_others(const std::vector<NamedTensor>& all);
  void remove_hooks();
  // The nodes that accumulate the parameters' gradients now.
  std::vector<const torch::autograd::Node*> nodes() const { return hooks_->nodes(); }

  // ---- Parameters
  // Lets a mirror of a module that is kept elsewhere read that module; throws what this throws.
  void read_module();
  bool has_other_parameters() const { return parameters_.has_changed(); }
  // Whether the module still holds any of the setup's parameters.
  bool holds_any_parameter() const;
  // Of the setup's parameters, and of those that the module trains instead.
  void forget_gradients();
  // Finds out what all ranks train now. Collective, over the control group.
  ModuleChange find_change() const;
  // Gives all ranks rank 0's values of the parameters that joined, unless they have them. Collective.
  void equalize(const ModuleChange& change) const;
  // Averages gradients that have no bucket yet, one after another. Collective.
  void average_joined(const ModuleChange& change, bool has_data, int ranks_with_data) const;
  // Makes these the setup's parameters, and takes the module's buffers as they are now. The hooks stay as they are.
  void follow(std::vector<NamedTensor> parameters);

  // ---- Buffers; nothing happens if the options do not broadcast them
  // Returns whether the module has other buffers than it had.
  bool read_buffers() { return buffers_ && buffers_->read(); }
  // After read_buffers(): starts to send rank 0's. Collective.
  void send_buffers();
  // Waits for what was sent, and keeps it; if it cannot be kept, sends the root's again. Collective.
  void receive_buffers(int root, bool any_changed);
  void drop_buffers();
  // How buffers differ between ranks, in the same text on every rank; empty if they do not. Collective.
  std::string difference_of_buffers() const;
  // Those that nobody has written to since they were received; the others are undefined.
  std::vector<NamedTensor> untouched_buffers() const;

 private:
  void record_module();

  StepSetup& setup_;
  Callbacks callbacks_;
  ParameterWatch parameters_;
  std::optional<BufferBroadcast> buffers_;  // if they are broadcast
  std::unique_ptr<ParameterHooks> hooks_;
  std::optional<NewcomerHooks> other_hooks_;
};

}  // namespace firkin
