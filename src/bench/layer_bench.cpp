#include "bench/layer_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "bench/ready_profile.h"
#include "comm/across_ranks.h"
#include "ddp/ready_order.h"
#include "firkin/base/error.h"
#include "firkin/ddp/module_parameters.h"
#include "firkin/stats/estimates.h"

namespace firkin {
namespace {

// The end of one layer of a forward pass; the first mark, without a name, is the start.
struct Mark {
  std::string layer;
  DeviceTime time;
};

// One step on this rank.
struct WatchedStep {
  ProfiledStep times;
  std::vector<Mark> marks;  // in forward
};

WatchedStep run_watched_step(const ProcessGroup& group, Workload& workload, int64_t step, const std::vector<NamedTensor>& parameters,
                             const LayerBenchOptions& options) {
  WatchedStep watched;
  const ReadyRecorder recorder(parameters, ReadyWhen::kAccumulated);
  if (options.observe_forward) {
    options.observe_forward([&marks = watched.marks, device = device_of(workload)](const std::string& layer) {
      marks.push_back({layer, device_now(device)});
    });
  }
  watched.times = profiled_step(group, workload, step, &recorder);
  if (options.observe_forward) options.observe_forward({});
  return watched;
}

// Layers by name, and the parameters of each.
struct LayerMap {
  std::vector<LayerRow> layers;
  std::vector<size_t> layer_of_parameter;
  size_t with_parameters = 0;  // how many layers, the first ones, have some

  explicit LayerMap(const std::vector<NamedTensor>& parameters) {
    for (const NamedTensor& parameter : parameters) {
      const size_t layer = index_of(layer_of(parameter.name));
      layers[layer].parameters += parameter.tensor.numel();
      layer_of_parameter.push_back(layer);
    }
    with_parameters = layers.size();
  }

  // Adds the layer if it is new.
  size_t index_of(const std::string& name) {
    const auto found = std::ranges::find(layers, name, &LayerRow::name);
    if (found != layers.end()) return static_cast<size_t>(found - layers.begin());
    layers.push_back({.name = name});
    return layers.size() - 1;
  }
};

// Per layer with parameters, the time from when the layer before it was complete (or backward began) until it is
// complete itself.
std::vector<double> backward_by_layer(const std::vector<double>& ready_s, const LayerMap& map) {
  std::vector<double> complete(map.with_parameters, 0.0);
  for (size_t i = 0; i < ready_s.size(); ++i) {
    double& layer = complete[map.layer_of_parameter[i]];
    layer = std::max(layer, ready_s[i]);
  }
  std::vector<double> spent(complete.size());
  double before = 0;
  for (const int64_t layer : order_of_times(complete)) {
    const auto index = static_cast<size_t>(layer);
    spent[index] = complete[index] - before;
    before = complete[index];
  }
  return spent;
}

// A watched step as one list that ranks can exchange: the whole step and its parts, the layers' backward, the ready
// times, the marks.
constexpr size_t kWholes = 4;
std::vector<double> flattened(const WatchedStep& step, const LayerMap& map) {
  const ProfiledStep& times = step.times;
  std::vector<double> values = {times.whole_s(), times.forward_s, times.backward_s, times.update_s};
  const std::vector<double> backward = backward_by_layer(times.ready_s, map);
  values.insert(values.end(), backward.begin(), backward.end());
  values.insert(values.end(), times.ready_s.begin(), times.ready_s.end());
  for (size_t i = 1; i < step.marks.size(); ++i) values.push_back(seconds_between(step.marks[i - 1].time, step.marks[i].time));
  return values;
}

void check(const std::vector<NamedTensor>& parameters, const LayerBenchOptions& options) {
  if (options.steps < 1 || options.warmup_steps < 1) throw InputError("layer benchmark: expected at least one step and one warm-up step");
  if (parameters.empty()) throw InputError("layer benchmark: a model without trainable parameters");
}

// The rows of watched steps (see flattened()), as columns of a profile.
LayerProfile profile_of(const std::vector<std::vector<double>>& rows, const std::vector<std::string>& marks,
                        const std::vector<NamedTensor>& parameters, LayerMap map) {
  LayerProfile profile;
  LayersSection& times = profile.times;
  std::vector<size_t> marked;
  for (const std::string& mark : marks) marked.push_back(map.index_of(mark));
  const size_t ready = kWholes + map.with_parameters;
  for (const std::vector<double>& row : rows) {
    times.watched_step_s.push_back(row[0]);
    times.forward_s.push_back(row[1]);
    times.backward_s.push_back(row[2]);
    times.optimizer_s.push_back(row[3]);
    for (size_t i = 0; i < map.with_parameters; ++i) map.layers[i].backward_s.push_back(row[kWholes + i]);
    for (size_t i = 0; i < marked.size(); ++i) map.layers[marked[i]].forward_s.push_back(row[ready + parameters.size() + i]);
  }
  const std::vector<double> medians = column_medians(rows);
  const auto first = medians.begin() + static_cast<std::ptrdiff_t>(ready);
  const std::vector<double> ready_s(first, first + static_cast<std::ptrdiff_t>(parameters.size()));
  profile.tensors = profile_in_order(parameters, order_of_times(ready_s), ready_s, medians[2]);
  times.layers = std::move(map.layers);
  return profile;
}

}  // namespace

std::string layer_of(const std::string& parameter) {
  const auto is_number = [](const std::string& part) { return !part.empty() && part.find_first_not_of("0123456789") == std::string::npos; };
  for (size_t begin = 0; begin < parameter.size();) {
    const size_t end = std::min(parameter.find('.', begin), parameter.size());
    if (is_number(parameter.substr(begin, end - begin))) return parameter.substr(0, end);
    begin = end + 1;
  }
  return parameter.substr(0, parameter.find('.'));
}

LayerProfile measure_layers(const ProcessGroup& group, Workload& workload, const LayerBenchOptions& options) {
  const std::vector<NamedTensor> parameters = trainable_parameters(*workload.module);
  check(parameters, options);
  const LayerMap map(parameters);
  std::vector<std::string> marks;
  std::vector<std::vector<double>> rows;  // see flattened()
  std::vector<double> bare_s;
  int64_t step = 0;
  const auto run_bare = [&] { return max_over_ranks(group, {profiled_step(group, workload, step++, nullptr).whole_s()})[0]; };
  const auto run_watched = [&] {
    const WatchedStep watched = run_watched_step(group, workload, step++, parameters, options);
    marks.clear();
    for (size_t i = 1; i < watched.marks.size(); ++i) marks.push_back(watched.marks[i].layer);
    rows.push_back(max_over_ranks(group, flattened(watched, map)));
  };
  for (int i = 0; i < options.warmup_steps; ++i) run_bare();
  std::mt19937_64 random(options.seed);
  for (int i = 0; i < options.steps; ++i) {
    const bool watched_first = random() % 2 == 0;
    if (watched_first) run_watched();
    bare_s.push_back(run_bare());
    if (!watched_first) run_watched();
    if (options.on_progress) options.on_progress(fmt::format("pair {}", i + 1));
  }
  workload.optimizer->zero_grad();
  LayerProfile profile = profile_of(rows, marks, parameters, map);
  profile.times.bare_step_s = std::move(bare_s);
  profile.watched_to_bare = paired_ratio(profile.times.watched_step_s, profile.times.bare_step_s);
  return profile;
}

}  // namespace firkin
