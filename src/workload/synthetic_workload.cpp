#include "workload/synthetic_workload.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <numeric>
#include <thread>
#include <utility>

#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "firkin/ddp/await_parameters.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/optim/sgd.h>

namespace firkin {
namespace {

struct EqualTensors : torch::nn::Module {
  EqualTensors(const SyntheticTensors& tensors, c10::Device device) {
    const int64_t elements = tensors.bytes / 4;
    for (int64_t i = 0; i < tensors.count; ++i) {
      all.push_back(
          register_parameter(fmt::format("tensor{}", i), at::full({elements}, 0.5, at::TensorOptions(at::kFloat).device(device))));
    }
  }
  std::vector<at::Tensor> all;
};

using Clock = std::chrono::steady_clock;

std::chrono::nanoseconds nanoseconds(double seconds) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
}

// Hands over one gradient when its time has come, then goes on to those behind it in gradient-ready order.
struct HandOver : torch::autograd::Function<HandOver> {
  // began: when the backward pass began; decided by the first.
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& /*behind*/, const at::Tensor& tensor,
                            double ready_s, bool is_first, Clock::time_point* began) {
    context->saved_data["elements"] = tensor.numel();
    context->saved_data["ready_s"] = ready_s;
    context->saved_data["is_first"] = is_first;
    context->saved_data["began"] = reinterpret_cast<int64_t>(began);
    return at::zeros({});
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context, torch::autograd::variable_list losses) {
    constexpr double kGradient = 1e-3;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): saved_data takes no pointers.
    auto* began = reinterpret_cast<Clock::time_point*>(context->saved_data["began"].toInt());
    if (context->saved_data["is_first"].toBool()) *began = Clock::now();
    at::Tensor gradient = at::full({context->saved_data["elements"].toInt()}, kGradient, at::kFloat);
    std::this_thread::sleep_until(*began + nanoseconds(context->saved_data["ready_s"].toDouble()));
    return {losses[0], gradient, {}, {}, {}};
  }
};

struct ReplayModule : torch::nn::Module {
  explicit ReplayModule(const TensorProfile& profile) : torch::nn::Module("replay") {
    for (size_t i = 0; i < profile.names.size(); ++i) add(profile.names[i], profile.bytes[i] / kFloatBytes, profile.needed_s[i]);
    std::ranges::stable_sort(uses, {}, &Use::needed_s);
  }

  struct Use {
    const torch::nn::Module* module = nullptr;
    double needed_s = 0;  // of the parameter that is needed first
  };
  std::vector<at::Tensor> tensors;  // in gradient-ready order
  std::vector<Use> uses;            // in the order of forward
  Clock::time_point backward_began;

 private:
  // What stands before and behind the last dot.
  static std::pair<std::string, std::string> split(const std::string& name) {
    const size_t dot = name.rfind('.');
    if (dot == std::string::npos) return {"", name};
    return {name.substr(0, dot), name.substr(dot + 1)};
  }

  static void check_free(const torch::nn::Module& parent, const std::string& own_name, const std::string& tensor) {
    if (!own_name.empty() && !parent.named_parameters(false).contains(own_name) && !parent.named_children().contains(own_name)) return;
    throw InputError(fmt::format("replay: tensor \"{}\"; expected a name that no other tensor or module has", tensor));
  }

  void add(const std::string& name, int64_t elements, double needed_s) {
    const auto [path, own_name] = split(name);
    torch::nn::Module& owner = module_at(path, name);
    check_free(owner, own_name, name);
    tensors.push_back(owner.register_parameter(own_name, at::full({elements}, 0.5, at::kFloat)));
    const auto known = std::ranges::find(uses, &owner, &Use::module);
    if (known == uses.end()) {
      uses.push_back({&owner, needed_s});
    } else {
      known->needed_s = std::min(known->needed_s, needed_s);
    }
  }

  // Made on the way. The empty path is this module.
  torch::nn::Module& module_at(const std::string& path, const std::string& tensor) {
    if (path.empty()) return *this;
    const auto known = modules_.find(path);
    if (known != modules_.end()) return *known->second;
    const auto [parent_path, own_name] = split(path);
    torch::nn::Module& parent = module_at(parent_path, tensor);
    check_free(parent, own_name, tensor);
    return *(modules_[path] = parent.register_module(own_name, std::make_shared<torch::nn::Module>(own_name)));
  }

  std::map<std::string, std::shared_ptr<torch::nn::Module>> modules_;
};

// What a module awaits is late for all that follows.
void run_forward(const ReplayModule& module, double forward_s) {
  const auto began = Clock::now();
  std::chrono::nanoseconds awaited{0};
  for (const ReplayModule::Use& use : module.uses) {
    std::this_thread::sleep_until(began + nanoseconds(use.needed_s) + awaited);
    const auto before = Clock::now();
    await_parameters(*use.module);
    awaited += Clock::now() - before;
  }
  std::this_thread::sleep_until(began + nanoseconds(forward_s) + awaited);
}

// The loss of a step, from which backward goes through the tensors in gradient-ready order.
at::Tensor replay_loss(ReplayModule& module, const std::vector<double>& ready_s) {
  at::Tensor loss = at::zeros({});
  for (size_t i = module.tensors.size(); i-- > 0;) {
    loss = HandOver::apply(loss, module.tensors[i], ready_s[i], i == 0, &module.backward_began);
  }
  return loss;
}

}  // namespace

Workload make_synthetic_workload(const SyntheticTensors& tensors, c10::Device device) {
  if (tensors.count < 1 || tensors.bytes < kFloatBytes || tensors.bytes % kFloatBytes != 0) {
    throw InputError(fmt::format("synthetic tensors: {} of {} bytes; expected at least one, of a positive multiple of {} bytes",
                                 tensors.count, tensors.bytes, kFloatBytes));
  }
  auto module = std::make_shared<EqualTensors>(tensors, device);
  Workload workload;
  workload.module = module;
  workload.parameters = module->all;
  workload.loss = [module](int64_t /*step*/) {
    at::Tensor loss = at::zeros({}, at::TensorOptions(module->all[0].device()));
    for (const at::Tensor& tensor : module->all) loss = loss + tensor.square().sum();
    return loss;
  };
  workload.optimizer = std::make_shared<torch::optim::SGD>(module->all, 1e-4);
  return workload;
}

TensorProfile scaled(const TensorProfile& profile, const ReplayScale& scale) {
  for (const auto& [name, factor] : {std::pair{"bytes", scale.bytes}, {"time", scale.time}}) {
    if (!(factor > 0) || !std::isfinite(factor))
      throw InputError(fmt::format("replay: {} times {}; expected a positive factor", name, factor));
  }
  TensorProfile result = profile;
  for (int64_t& bytes : result.bytes) {
    bytes = kFloatBytes * std::max<int64_t>(1, std::llround(static_cast<double>(bytes) * scale.bytes / static_cast<double>(kFloatBytes)));
  }
  for (std::vector<double>* times : {&result.ready_s, &result.needed_s, &result.update_s}) {
    for (double& time : *times) time *= scale.time;
  }
  result.backward_s *= scale.time;
  result.forward_s *= scale.time;
  return result;
}

Workload make_replay_workload(const TensorProfile& profile) {
  check_profile(profile);
  if (!profile.knows_forward()) throw InputError("replay: the profile does not know its forward pass; expected needed_s");
  const auto module = std::make_shared<ReplayModule>(profile);
  Workload workload;
  workload.module = module;
  workload.parameters = module->tensors;
  workload.loss = [module, ready_s = profile.ready_s, forward_s = profile.forward_s](int64_t /*step*/) {
    run_forward(*module, forward_s);
    return replay_loss(*module, ready_s);
  };
  workload.optimizer = std::make_shared<torch::optim::SGD>(module->tensors, 1e-3);
  return workload;
}

}  // namespace firkin
