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

// What ranks have found out about a change of their modules' parameters. The same on every rank, except the tensors.
struct ModuleChange {
  std::vector<NamedTensor> parameters;   // those that this rank trains now
  std::vector<NamedTensor> joined = {};  // of these, the ones that some rank did not train before
  // The name of the first of `joined` that some ranks trained before, or that has other values on some rank than on
  // rank 0; empty if there is none. See equalize().
  std::string values_differ = {};
  std::string refusal = {};  // why the next step cannot use these parameters; empty if it can
  // Why the step that meets the change fails, although the next one can use these parameters; empty if it need not
  // fail.
  std::string delay = {};
};

// Why a parameter whose gradient has arrived has none any more.
std::string why_gradient_is_gone(const NamedTensor& parameter);

// Notices in every step whether the module's parameters have changed, but takes a change over only in follow(), which
// every rank calls between the same two steps. Thread-safety: every call is made under the protocol's mutex
// (protocol.h); the callbacks lock it themselves.
class ModuleFollower {
 public:
  // Called on the thread that runs backward.
  struct Callbacks {
    std::function<void(size_t parameter)> on_gradient;  // a trained parameter's gradient was accumulated
    std::function<void()> on_other_gradient;            // one of another parameter of the module is about to be
  };

  // setup: must outlive this; follow() changes its parameters.
  ModuleFollower(StepSetup& setup, Callbacks callbacks);

  // ---- Hooks
  void add_hooks();
  // Adds hooks that call on_other_gradient, to those of these parameters that are not the setup's: a backward may reach
  // them alone. all: what the module holds.
  void add_hooks_to_others(const std::vector<NamedTensor>& all);
  void remove_hooks();
  // The nodes that accumulate the parameters' gradients now.
  std::vector<const torch::autograd::Node*> nodes() const { return hooks_->nodes(); }

  // ---- Parameters
  // If the module is a MirrorModule, lets it read the module that it mirrors. Throws what that throws.
  void read_module();
  // Whether the module trains other parameters than the setup's.
  bool has_other_parameters() const { return parameters_.has_changed(); }
  // Whether the module still holds any of the setup's parameters.
  bool holds_any_parameter() const;
  // Resets the gradients of the setup's parameters, and of those that the module trains instead.
  void forget_gradients();
  // Finds out what all ranks train now. Collective, over the control group.
  ModuleChange find_change() const;
  // Gives all ranks rank 0's values of the parameters that joined, if values differ. Collective.
  void equalize(const ModuleChange& change) const;
  // Averages the gradients of the parameters that joined, which have no bucket yet, one after another. Collective.
  void average_joined(const ModuleChange& change, bool has_data, int ranks_with_data) const;
  // Makes these the setup's parameters, and records the module's buffers as they are now. The hooks stay as they are.
  void follow(std::vector<NamedTensor> parameters);

  // ---- Buffers. These do nothing if the options do not broadcast buffers.
  // Returns whether the module has other buffers than it had.
  bool read_buffers() { return buffers_ && buffers_->read(); }
  // After read_buffers(): starts to send rank 0's buffers. Collective.
  void send_buffers();
  // Waits for rank 0's buffers and keeps them. If they cannot be kept, because another rank is the root or because
  // buffers have changed, sends the root's. Collective.
  void receive_buffers(int root, bool any_changed);
  void drop_buffers();
  // How buffers differ between ranks, in the same text on every rank; empty if they do not. Collective.
  std::string difference_of_buffers() const;
  // The buffers that nobody has written to since they were received; in place of the others, undefined tensors.
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
