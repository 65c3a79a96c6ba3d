#include "results/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <vector>

#include "firkin/base/units.h"
#include "firkin/stats/paired.h"
#include "firkin/stats/summary.h"
#include "results/numbers.h"
#include "results/run.h"

namespace firkin {
namespace {

using nlohmann::json;

constexpr Field<ProfileSection> kProfileFields[] = {{"bare_backward_s", &ProfileSection::bare_backward_s, Unit::kSeconds},
                                                    {"hook_perturbation", &ProfileSection::hook_perturbation, Unit::kChange},
                                                    {"hook_perturbation_ci", &ProfileSection::hook_perturbation_ci, Unit::kChange}};

// check_profile's rules, at the place where they are broken.
void check_last_tensor(const TensorProfile& profile, bool new_name, const JsonFields& tensor) {
  if (!new_name) tensor.fail(kTensorName, fmt::format("\"{}\" is there twice", profile.names.back()), "distinct names");
  const double ready = profile.ready_s.back();
  if (profile.bytes.back() < 0) tensor.fail(kTensorBytes, fmt::format("{}", profile.bytes.back()), "a number of bytes");
  if (ready < 0) tensor.fail(kTensorReady, fmt::format("{}", ready), "seconds, at least 0");
  const size_t before = profile.ready_s.size() - 1;
  if (before > 0 && ready < profile.ready_s[before - 1]) {
    tensor.fail(kTensorReady, fmt::format("{} after {}", ready, profile.ready_s[before - 1]), "gradient-ready order");
  }
}

// The times that only a profile with a forward pass has: for all tensors or for none.
void read_forward(const JsonFields& fields, const std::vector<JsonFields>& tensors, TensorProfile& profile) {
  const auto read = [&](const char* name, std::vector<double>& times) {
    for (const JsonFields& tensor : tensors) {
      if (tensors.front().has(name)) times.push_back(tensor.number(name));
      if (!times.empty() && times.back() < 0) tensor.fail(name, fmt::format("{}", times.back()), "seconds, at least 0");
    }
  };
  read(kTensorNeeded, profile.needed_s);
  read(kTensorUpdate, profile.update_s);
  profile.forward_s = fields.maybe_number(kForwardKey).value_or(0);
  const double last_use = profile.needed_s.empty() ? 0 : std::ranges::max(profile.needed_s);
  if (profile.forward_s < last_use) {
    fields.fail(kForwardKey, fmt::format("{}", profile.forward_s), fmt::format("at least the largest needed_s, {}", last_use));
  }
}

}  // namespace

void add_bare_backward(const std::vector<double>& hooked_s, const std::vector<double>& bare_s, ProfileSection& profile) {
  const double hooked_to_bare = paired_ratio(hooked_s, bare_s).ratio;
  profile.hook_perturbation = hooked_to_bare - 1;
  profile.bare_backward_s = median(hooked_s) / hooked_to_bare;  // of the same moments, which two medians need not be
}

json profile_json(const ProfileSection& profile) {
  json object = to_json<ProfileSection>(kProfileFields, profile);
  object[kBackwardKey] = profile.tensors.backward_s;
  if (profile.tensors.knows_forward()) object[kForwardKey] = profile.tensors.forward_s;
  json& tensors = object[kTensorsKey] = json::array();
  for (size_t i = 0; i < profile.tensors.names.size(); ++i) {
    tensors.push_back(
        {{kTensorName, profile.tensors.names[i]}, {kTensorBytes, profile.tensors.bytes[i]}, {kTensorReady, profile.tensors.ready_s[i]}});
    if (!profile.tensors.needed_s.empty()) tensors.back()[kTensorNeeded] = profile.tensors.needed_s[i];
    if (!profile.tensors.update_s.empty()) tensors.back()[kTensorUpdate] = profile.tensors.update_s[i];
  }
  return object;
}

ProfileSection read_profile(const JsonFields& fields) {
  ProfileSection section = from_json<ProfileSection>(kProfileFields, fields);
  TensorProfile& profile = section.tensors;
  profile.backward_s = fields.positive(kBackwardKey);
  std::set<std::string> seen;
  const std::vector<JsonFields> tensors = fields.objects(kTensorsKey);
  for (const JsonFields& tensor : tensors) {
    profile.names.push_back(tensor.text(kTensorName));
    profile.bytes.push_back(tensor.integer(kTensorBytes));
    profile.ready_s.push_back(tensor.number(kTensorReady));
    check_last_tensor(profile, seen.insert(profile.names.back()).second, tensor);
  }
  read_forward(fields, tensors, profile);
  return section;
}

Table profile_table(const TensorProfile& profile) {
  Table table{
      "Gradients in the order in which they become ready", {{"Tensor", false}, {"Gradient"}, {"Ready after"}, {"Ready so far"}}, {}};
  int64_t total = 0;
  for (size_t i = 0; i < profile.names.size(); ++i) {
    total += profile.bytes[i];
    table.rows.push_back({{profile.names[i], format_bytes(profile.bytes[i]), display_seconds(profile.ready_s[i]), format_bytes(total)}});
  }
  return table;
}

}  // namespace firkin
