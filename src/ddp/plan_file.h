// A plan that was chosen, kept for the next run of the same training.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "communication_plan.h"
#include "step_synchronizer.h"

namespace firkin {

// What a plan was chosen for: names and values, in words. Under any other it may be a bad one, or none at all.
using PlanKey = std::vector<std::pair<std::string, std::string>>;
PlanKey plan_key(const SynchronizerSetup& setup);

// Throws InputError, "FILE: ...; expected ...", when it cannot be read, is no plan file, was made for another key (naming the first
// difference and both values), or its plan does not cover the parameters.
CommunicationPlan read_plan_file(const std::filesystem::path& path, const PlanKey& key, const std::vector<NamedTensor>& parameters);

// why: for who reads the file. Throws RuntimeError when it cannot be written; the file is then as it was.
void write_plan_file(const std::filesystem::path& path, const PlanKey& key, const CommunicationPlan& plan, const std::string& why);

// A plan without parts and launch order as one line, and back. What is no such line throws nlohmann::json::exception.
std::string plan_line(const CommunicationPlan& plan);
CommunicationPlan parse_plan_line(const std::string& line);

}  // namespace firkin
