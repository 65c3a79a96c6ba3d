// A workload that lets the times of a profile pass instead of computing.
#include "workload/workload.h"

#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <thread>
#include <utility>

#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "firkin/ddp/await_parameters.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/optim/sgd.h>

namespace firkin {
namespace {

using Clock = std::chrono::steady_clock;

// Stands for computation by letting its time pass: on a CPU the thread sleeps, on a device the current stream waits.
class ReplayClock {
 public:
  // timer: null on a CPU.
  explicit ReplayClock(std::shared_ptr<DeviceTimer> timer) : timer_(std::move(timer)) {}

  void begin() {
    began_ = Clock::now();
    from_s_ = 0;
    held_up_.reset();
    if (timer_) from_ = timer_->stamp();
  }

  // seconds: since begin(); never less than in the call before.
  void wait_until(double seconds) {
    if (!timer_) return std::this_thread::sleep_until(began_ + std::chrono::duration<double>(seconds));
    const double rest_s = seconds - std::exchange(from_s_, seconds);
    std::optional<DeviceTimer::After> late;
    if (held_up_) late = {*std::exchange(held_up_, std::nullopt), rest_s};
    from_ = timer_->wait({from_, rest_s}, late);
  }

  // Runs `body`; the time that this takes delays all that follows.
  template <typename Body>
  void hold_up(Body body) {
    const auto before = Clock::now();
    body();
    began_ += Clock::now() - before;
    if (timer_) held_up_ = timer_->stamp();
  }

 private:
  std::shared_ptr<DeviceTimer> timer_;
  Clock::time_point began_;
  DeviceTimer::Moment from_ = 0;  // from_s_ after begin()
  double from_s_ = 0;
  std::optional<DeviceTimer::Moment> held_up_;  // when the last hold_up() ended
};

// Hands over one gradient when its time has come, then passes on to the gradients that become ready after it.
struct HandOver : torch::autograd::Function<HandOver> {
  // clock: started by the node of the first gradient.
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& /*behind*/, const at::Tensor& tensor,
                            double ready_s, bool is_first, ReplayClock* clock) {
    context->saved_data["tensor"] = tensor.detach();
    context->saved_data["ready_s"] = ready_s;
    context->saved_data["is_first"] = is_first;
    context->saved_data["clock"] = reinterpret_cast<int64_t>(clock);
    return at::zeros({}, tensor.options().requires_grad(false));
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context, torch::autograd::variable_list losses) {
    constexpr double kGradient = 1e-3;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): saved_data takes no pointers.
    auto* clock = reinterpret_cast<ReplayClock*>(context->saved_data["clock"].toInt());
    if (context->saved_data["is_first"].toBool()) clock->begin();
    at::Tensor gradient = at::full_like(context->saved_data["tensor"].toTensor(), kGradient);
    clock->wait_until(context->saved_data["ready_s"].toDouble());
    return {losses[0], gradient, {}, {}, {}};
  }
};

struct ReplayModule : torch::nn::Module {
  ReplayModule(const TensorProfile& profile, c10::Device device, std::shared_ptr<DeviceTimer> timer)
      : torch::nn::Module("replay"), clock(std::move(timer)), device_(device) {
    for (size_t i = 0; i < profile.names.size(); ++i) add(profile.names[i], profile.bytes[i] / kFloatBytes, profile.needed_s[i]);
    std::ranges::stable_sort(uses, {}, &Use::needed_s);
  }

  struct Use {
    const torch::nn::Module* module = nullptr;
    double needed_s = 0;  // when its first parameter is needed
  };
  std::vector<at::Tensor> tensors;  // in gradient-ready order
  std::vector<Use> uses;            // in the order of forward
  ReplayClock clock;

 private:
  // The parts of a name before and after its last dot.
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
    tensors.push_back(owner.register_parameter(own_name, at::full({elements}, 0.5, at::TensorOptions(at::kFloat).device(device_))));
    const auto known = std::ranges::find(uses, &owner, &Use::module);
    if (known == uses.end()) {
      uses.push_back({&owner, needed_s});
    } else {
      known->needed_s = std::min(known->needed_s, needed_s);
    }
  }

  // The module at `path`, made with its parents if it is missing. The empty path is this module.
  torch::nn::Module& module_at(const std::string& path, const std::string& tensor) {
    if (path.empty()) return *this;
    const auto known = modules_.find(path);
    if (known != modules_.end()) return *known->second;
    const auto [parent_path, own_name] = split(path);
    torch::nn::Module& parent = module_at(parent_path, tensor);
    check_free(parent, own_name, tensor);
    return *(modules_[path] = parent.register_module(own_name, std::make_shared<torch::nn::Module>(own_name)));
  }

  c10::Device device_;
  std::map<std::string, std::shared_ptr<torch::nn::Module>> modules_;
};

}  // namespace

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

Workload make_replay_workload(const TensorProfile& profile, c10::Device device, std::shared_ptr<DeviceTimer> timer) {
  check_profile(profile);
  if (!profile.knows_forward()) throw InputError("replay: the profile does not know its forward pass; expected needed_s");
  if (!device.is_cpu() && timer == nullptr) timer = make_device_timer(device, "replay");
  const auto module = std::make_shared<ReplayModule>(profile, device, std::move(timer));
  Workload workload;
  workload.module = module;
  workload.parameters = module->tensors;
  workload.loss = [module, ready_s = profile.ready_s, forward_s = profile.forward_s](int64_t /*step*/) {
    module->clock.begin();
    for (const ReplayModule::Use& use : module->uses) {
      module->clock.wait_until(use.needed_s);
      module->clock.hold_up([&] { await_parameters(*use.module); });
    }
    module->clock.wait_until(forward_s);
    at::Tensor loss = at::zeros({}, module->tensors[0].options().requires_grad(false));
    for (size_t i = module->tensors.size(); i-- > 0;) {  // backward goes through the tensors in gradient-ready order
      loss = HandOver::apply(loss, module->tensors[i], ready_s[i], i == 0, &module->clock);
    }
    return loss;
  };
  workload.optimizer = std::make_shared<torch::optim::SGD>(module->tensors, 1e-3);
  return workload;
}

}  // namespace firkin
