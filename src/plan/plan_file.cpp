#include "plan_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "firkin/base/json_text.h"

namespace firkin {
namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "firkin bucket plan 2";
constexpr const char* kExpected = "a plan file written by DataParallel";
constexpr int64_t kMostOfAnything = int64_t{1} << 32;  // sums of as many as a file holds fit into 64 bits

std::vector<int64_t> integers_of(const Json& list) {
  std::vector<int64_t> values;
  for (const Json& value : list.get_ref<const Json::array_t&>()) {
    if (!value.is_number_integer() || value < 0 || value > kMostOfAnything) {
      throw InputError(fmt::format("the plan holds {}; expected whole numbers from 0 to {}", dump_json(value), kMostOfAnything));
    }
    values.push_back(value.get<int64_t>());
  }
  return values;
}

bool is_permutation_of_all(const std::vector<int64_t>& order, int64_t tensors) {
  if (std::ssize(order) != tensors) return false;
  std::vector<int64_t> sorted = order, all(order.size());
  std::ranges::sort(sorted);
  std::iota(all.begin(), all.end(), 0);
  return sorted == all;
}

Json json_of(const CommunicationPlan& plan) {
  std::vector<std::array<int64_t, 3>> buckets;
  for (const Bucket& bucket : plan.plan.buckets) buckets.push_back({bucket.count, bucket.part, bucket.parts});
  return {{"ready_order", plan.order}, {"count_part_parts", buckets}, {"launch_order", plan.plan.launch_order}};
}

// Throws InputError or Json::exception when a field is missing or has another type or an impossible value. What the
// plan says of the tensors is not checked.
CommunicationPlan plan_from(const Json& value) {
  CommunicationPlan plan = {.order = integers_of(value.at("ready_order")), .plan = {}};
  int64_t first = 0;
  for (const Json& entry : value.at("count_part_parts").get_ref<const Json::array_t&>()) {
    const std::vector<int64_t> numbers = integers_of(entry);
    if (numbers.size() != 3) throw InputError(fmt::format("a bucket is {}; expected count, part and parts", dump_json(entry)));
    const Bucket bucket = {.first = first, .count = numbers[0], .part = numbers[1], .parts = numbers[2]};
    plan.plan.buckets.push_back(bucket);
    if (bucket.part == bucket.parts - 1) first += bucket.count;
  }
  plan.plan.launch_order = integers_of(value.at("launch_order"));
  return plan;
}

}  // namespace

std::string line_of_plan(const CommunicationPlan& plan) {
  return dump_json(json_of(plan));
}

CommunicationPlan plan_of_line(std::string_view line) {
  return plan_from(Json::parse(line));
}

CommunicationPlan parse_plan_file(std::string_view text, const std::string& file, const PlanKey& key, int64_t tensors) {
  const Json content = parse_json(text, file, kExpected);
  try {
    if (const Json& format = content.at("format"); format != kFormat) {
      throw InputError(fmt::format("its format is {}; expected {}", dump_json(format), kFormat));
    }
    for (const auto& [name, ours] : key) {
      const Json& theirs = content.at("made_for").at(name);
      if (theirs != ours) throw InputError(fmt::format("made for {} {}; expected {}", name, dump_json(theirs), dump_json(ours)));
    }
    CommunicationPlan plan = plan_from(content.at("plan"));
    if (!is_permutation_of_all(plan.order, tensors)) {
      throw InputError(fmt::format("its ready order is not a permutation of 0..{}", tensors - 1));
    }
    check_plan(plan.plan, tensors);
    return plan;
  } catch (const Json::exception&) {
    throw InputError(fmt::format("{}: a field is missing or has another type; expected {}", file, kExpected));
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}: {}", file, error.what()));
  }
}

CommunicationPlan read_plan_file(const std::filesystem::path& path, const PlanKey& key, int64_t tensors) {
  return parse_plan_file(read_text_file(path, kLongestJsonLine, kExpected), path.string(), key, tensors);
}

std::string plan_file_text(const PlanKey& key, const CommunicationPlan& plan, const std::string& why) {
  Json made_for = Json::object();
  for (const auto& [name, value] : key) made_for[name] = value;
  return dump_json({{"format", kFormat}, {"made_for", made_for}, {"plan", json_of(plan)}, {"why", why}}, /*indent=*/1) + "\n";
}

void write_plan_file(const std::filesystem::path& path, const PlanKey& key, const CommunicationPlan& plan, const std::string& why) {
  write_file_atomically(path, plan_file_text(key, plan, why));
}

}  // namespace firkin
