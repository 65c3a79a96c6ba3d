// A plan together with the order of the tensors in its buckets, and the file in which automatic buckets keep one for
// the next run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "firkin/plan/bucket_plan.h"

namespace firkin {

// The order in which tensors lie in the buckets, and the buckets over it.
struct CommunicationPlan {
  std::vector<int64_t> order;  // parameter indices; the ready order itself unless dtypes or devices are mixed
  BucketPlan plan;

  bool operator==(const CommunicationPlan&) const = default;
};

// The plan for another rank, on one line, and back.
std::string line_of_plan(const CommunicationPlan& plan);
CommunicationPlan plan_of_line(std::string_view line);

// What a plan was chosen for: names and values, in words. For anything else the plan may be bad, or not fit.
using PlanKey = std::vector<std::pair<std::string, std::string>>;

// Throws InputError, "FILE: ...; expected ...", when the text is no plan file, was made for another key (naming
// the first difference and both values), or its plan does not cover tensors 0 to tensors - 1. `file`: the name used in
// errors.
CommunicationPlan parse_plan_file(std::string_view text, const std::string& file, const PlanKey& key, int64_t tensors);
CommunicationPlan read_plan_file(const std::filesystem::path& path, const PlanKey& key, int64_t tensors);

// why: a sentence in the file, for its reader. Throws RuntimeError when the file cannot be written; it is then
// unchanged.
std::string plan_file_text(const PlanKey& key, const CommunicationPlan& plan, const std::string& why);
void write_plan_file(const std::filesystem::path& path, const PlanKey& key, const CommunicationPlan& plan, const std::string& why);

}  // namespace firkin
