// Keeps a module's state equal on all ranks during training: parameters that are added or removed,
// buffers that follow rank 0's.
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

// A module that mirrors one that is kept elsewhere, in Python.
class MirrorModule : public torch::nn::Module {
 public:
  using Module::Module;
  // Takes over what the other module holds now; called before this one is read. An exception fails the step.
  virtual void read() = 0;
  // The other module's buffers, under full names; this module has none.
  virtual const std::vector<NamedTensor>& buffers_there() const = 0;
};

// All buffers, under each of their names.
std::vector<NamedTensor> buffers_in(const torch::nn::Module& module);

// Tells whether a module trains the same parameters as at the last record() and, if its modules are awaited, has them in
// the same modules. Not thread-safe.
class ParameterWatch {
 public:
  ParameterWatch(const torch::nn::Module& module, bool modules_too) : module_(&module), modules_too_(modules_too) {}

  // Compares every parameter's identity and requires_grad: about 0.1 us each. A computed tensor in a parameter's place
  // is no change: forwards put such tensors in and take them out again.
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

// Hooks on a module's frozen and new parameters, to notice a backward that reaches none of the
// known ones. Parameters that another wrapped module trains get none.
class NewcomerHooks {
 public:
  // all: what the module holds now, known ones too. call: before such a gradient is accumulated, on the thread that runs
  // backward.
  NewcomerHooks(const std::vector<NamedTensor>& all, const std::vector<NamedTensor>& known, const std::function<void()>& call);
  ~NewcomerHooks();
  NewcomerHooks(const NewcomerHooks&) = delete;
  NewcomerHooks& operator=(const NewcomerHooks&) = delete;

 private:
  using Parameter = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

  std::vector<std::pair<Parameter, const void*>> hooked_;  // with their hooks
};

// All tensors of a device travel as bytes in one broadcast, whatever their dtypes. Not thread-safe.
class TensorBroadcast {
 public:
  // gradients: a group that carries every device. beside: the group for the devices that it carries. like: tensors with
  // the sizes, dtypes and devices of all that will be sent.
  TensorBroadcast(const ProcessGroup& beside, const ProcessGroup& gradients, const std::vector<at::Tensor>& like);

  // Starts sending the root's values. tensors: empty if what travels will not be kept. Collective.
  void launch(int root, const std::vector<at::Tensor>& tensors);
  // Waits, and writes what came into the tensors if `keep`: what autograd has saved of these does not count as changed.
  // Throws RuntimeError if the collective failed.
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

// Sends the buffers that a module has at the end of a step to all ranks, whatever it had before. Not thread-safe.
class BufferBroadcast {
 public:
  BufferBroadcast(const torch::nn::Module& module, const ProcessGroup& control, const ProcessGroup& gradients);

  // Finds the module's buffers, in about 0.2 us per buffer. Returns whether its buffers differ in names, sizes, dtypes or devices
  // from those at adopt(). If so, nothing that is launched may be kept before all ranks have adopted theirs.
  bool read();
  // Call it on every rank, when all have the same lines().
  void adopt();
  std::vector<std::string> lines() const;

  // As in TensorBroadcast.
  void launch(int root);
  void wait(bool keep);

  // The buffers that nobody has written to, and that are still in their places, since wait() kept what came; the others
  // are undefined.
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

// Sends the root's values to all ranks, up to 64 MiB at a time, or one larger tensor. Collective. Throws GroupError
// when a collective failed.
void broadcast_tensors(const ProcessGroup& group, const std::vector<at::Tensor>& tensors, int root);

}  // namespace firkin
