// Finds changes of a module's parameters and buffers during training, and sends rank 0's buffers to all ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "firkin/comm/process_group.h"
#include "firkin/ddp/module_parameters.h"

namespace firkin {

// A LibTorch module that mirrors a module of Python (python/engine/mirror.h).
class MirrorModule : public torch::nn::Module {
 public:
  using Module::Module;
  // Takes over what the other module holds now. Called before this module is read. An exception fails the step.
  virtual void read() = 0;
  // The other module's buffers, under full names; this module has none.
  virtual const std::vector<NamedTensor>& buffers_there() const = 0;
};

// All buffers, under each of their names.
std::vector<NamedTensor> buffers_in(const torch::nn::Module& module);

// Whether a module still trains the parameters that it trained at the last record(). Not thread-safe.
class ParameterWatch {
 public:
  // modules_too: it is also a change if the parameters are in other submodules.
  ParameterWatch(const torch::nn::Module& module, bool modules_too) : module_(&module), modules_too_(modules_too) {}

  // Compares every parameter's address and requires_grad, in about 0.1 us each. A computed tensor in a parameter's
  // place is no change: forwards put such tensors in and take them out again.
  bool has_changed() const;
  void record();

 private:
  const torch::nn::Module* module_;
  bool modules_too_;
  struct Place {
    const torch::nn::Module* module = nullptr;
    size_t index = 0;  // among its parameters, from 1 on
    bool operator==(const Place&) const = default;
  };
  struct Entry {
    Place place;
    const void* identity = nullptr;  // the address of a parameter or a module
    bool is_trained = false;
  };
  std::vector<Entry> recorded_;  // in the order of the tree
};

// Hooks on those parameters of a module that are not the setup's, because they are frozen or new. By these a backward
// is noticed that reaches no other parameter.
class NewcomerHooks {
 public:
  // all: what the module holds now. known: the setup's parameters, which get none of these hooks. call: called before a
  // gradient is accumulated, on the thread that runs backward, unless another wrapped module trains the parameter.
  NewcomerHooks(const std::vector<NamedTensor>& all, const std::vector<NamedTensor>& known, const std::function<void()>& call);
  ~NewcomerHooks();
  NewcomerHooks(const NewcomerHooks&) = delete;
  NewcomerHooks& operator=(const NewcomerHooks&) = delete;

 private:
  using Parameter = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

  std::vector<std::pair<Parameter, const void*>> hooked_;  // each with its hook
};

// Broadcasts tensors: all those of a device travel together, as bytes, whatever their dtypes. Not thread-safe.
class TensorBroadcast {
 public:
  // beside: used for the devices that it carries. gradients: used for the others. like: tensors with the sizes, dtypes
  // and devices of those that will be sent.
  TensorBroadcast(const ProcessGroup& beside, const ProcessGroup& gradients, const std::vector<at::Tensor>& like);

  // Starts to send the root's values. tensors: empty if wait() will not keep anything. Collective.
  void launch(int root, const std::vector<at::Tensor>& tensors);
  // Waits and, if `keep`, writes the root's values into the tensors. For autograd this is no change: a tensor that it
  // has saved can still be used. Throws RuntimeError if the collective failed.
  void wait(bool keep);

 private:
  struct DeviceBatch {
    at::Tensor bytes;               // what travels
    std::vector<at::Tensor> parts;  // views of it, one per tensor
    std::vector<at::Tensor> tensors;
    ProcessGroup group;
    Work work;
  };
  static DeviceBatch gather(const std::vector<at::Tensor>& like, const ProcessGroup& group);

  int rank_ = 0;
  std::vector<DeviceBatch> devices_;
  int root_ = 0;
};

// Sends one rank's buffers to all ranks at the end of a step. A module may have other buffers than before. Not
// thread-safe.
class BufferBroadcast {
 public:
  BufferBroadcast(const torch::nn::Module& module, const ProcessGroup& control, const ProcessGroup& gradients);

  // Finds the module's buffers, in about 0.2 us each. Returns whether their names, sizes, dtypes or devices are others
  // than at the last adopt(). If so, all ranks have to adopt theirs before wait() may keep anything.
  bool read();
  // Takes over the module's buffers as they are now. Call it on every rank, when all have the same lines().
  void adopt();
  std::vector<std::string> lines() const;

  // As in TensorBroadcast.
  void launch(int root);
  void wait(bool keep);

  // The module's buffers. Undefined tensors stand for those that are new, or have been written to, since wait() kept
  // values.
  std::vector<NamedTensor> untouched() const;

 private:
  struct Description {
    std::string name;
    std::vector<int64_t> sizes;
    at::ScalarType dtype;
    at::Device device;
  };
  struct Received {
    const void* tensor;
    uint32_t version;
  };
  bool fits(size_t position, const std::string& name, const at::Tensor& buffer) const;

  const torch::nn::Module* module_;
  ProcessGroup control_, gradients_;
  std::vector<Description> adopted_;
  std::vector<at::Tensor> buffers_;  // now
  bool has_changed_ = false;
  std::optional<TensorBroadcast> broadcast_;
  std::vector<Received> received_;
};

// Sends the root's values to all ranks, up to 64 MiB at a time, or one larger tensor. Collective. Throws GroupError if
// a collective failed.
void broadcast_tensors(const ProcessGroup& group, const std::vector<at::Tensor>& tensors, int root);

}  // namespace firkin
