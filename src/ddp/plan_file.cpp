#include "plan_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "firkin/base/json_text.h"
#include "firkin/base/units.h"
#include "text_hash.h"

#include <torch/version.h>

namespace firkin {
namespace {

using nlohmann::json;

constexpr const char* kFormat = "firkin bucket plan 1";
constexpr const char* kExpected = "a plan file that DataParallel has written";

// Frozen parameters are not among them, so that what is trainable counts as well.
std::string describe_parameters(const std::vector<NamedTensor>& parameters) {
  std::string all;
  int64_t bytes = 0;
  for (const auto& [name, tensor] : parameters) {
    bytes += static_cast<int64_t>(tensor.nbytes());
    all += fmt::format("{} [{}] {}\n", name, fmt::join(tensor.sizes(), ", "), c10::toString(tensor.scalar_type()));
  }
  return fmt::format("{} tensors, {}, hash {:016x}", parameters.size(), format_bytes(bytes), hash_of(all));
}

json json_of(const CommunicationPlan& plan) {
  std::vector<int64_t> counts;
  for (const Bucket& bucket : plan.plan.buckets) counts.push_back(bucket.count);
  return {{"ready_order", plan.order}, {"tensors_per_bucket", counts}};
}

CommunicationPlan plan_of(const json& value) {
  CommunicationPlan plan;
  value.at("ready_order").get_to(plan.order);
  int64_t first = 0;
  for (const auto count : value.at("tensors_per_bucket").get<std::vector<int64_t>>()) {
    plan.plan.buckets.push_back({first, count});
    first += count;
  }
  return plan;
}

void check_order(const std::vector<int64_t>& order, size_t parameters) {
  std::vector<int64_t> all(parameters);
  std::iota(all.begin(), all.end(), 0);
  if (!std::ranges::is_permutation(order, all)) throw InputError(fmt::format("its ready order is no permutation of 0..{}", parameters - 1));
}

void check_made_for(const json& made_for, const PlanKey& key) {
  for (const auto& [name, ours] : key) {
    const auto theirs = made_for.at(name).get<std::string>();
    if (theirs != ours) throw InputError(fmt::format("made for {} {}; expected {}", name, theirs, ours));
  }
}

}  // namespace

PlanKey plan_key(const SynchronizerSetup& setup) {
  const DataParallelOptions& options = setup.options;
  const bool is_kept = !options.ready_order.empty();
  return {{"parameters", describe_parameters(setup.parameters)},
          {"world size", std::to_string(setup.group.size)},
          {"backend", setup.group.c10d->getBackendName()},
          {"modelled link", setup.group.link.empty() ? "none" : setup.group.link},
          {"device", c10::DeviceTypeName(setup.parameters[0].tensor.device().type(), /*lower_case=*/true)},
          {"gradient hook", options.gradient_hook.name},
          {"ready order", is_kept ? fmt::format("[{}]", fmt::join(options.ready_order, ", ")) : "as observed"},
          {"finish with backward", options.finish_with_backward ? "yes" : "no"},
          {"LibTorch", TORCH_VERSION}};
}

CommunicationPlan read_plan_file(const std::filesystem::path& path, const PlanKey& key, const std::vector<NamedTensor>& parameters) {
  const json content = parse_json(read_text_file(path, kLongestJsonLine, kExpected), path.string(), kExpected);
  try {
    if (content.at("format") != kFormat) throw InputError(fmt::format("its format is {}; expected {}", content["format"].dump(), kFormat));
    check_made_for(content.at("made_for"), key);
    CommunicationPlan plan = plan_of(content.at("plan"));
    check_order(plan.order, parameters.size());
    check_communication(parameters, plan.order, plan.plan);
    return plan;
  } catch (const json::exception&) {
    throw InputError(fmt::format("{}: something is missing in it, or of another kind; expected {}", path.string(), kExpected));
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}: {}", path.string(), error.what()));
  }
}

void write_plan_file(const std::filesystem::path& path, const PlanKey& key, const CommunicationPlan& plan, const std::string& why) {
  json made_for = json::object();
  for (const auto& [name, value] : key) made_for[name] = value;
  const json content = {{"format", kFormat}, {"made_for", made_for}, {"plan", json_of(plan)}, {"why", why}};
  write_file_atomically(path, dump_json(content, /*indent=*/1) + "\n");
}

std::string plan_line(const CommunicationPlan& plan) {
  return dump_json(json_of(plan));
}

CommunicationPlan parse_plan_line(const std::string& line) {
  return plan_of(json::parse(line));
}

}  // namespace firkin
