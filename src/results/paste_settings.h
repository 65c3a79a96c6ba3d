// A bucket size in the settings of the tools that people train with, each in its own unit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "results/table.h"

namespace firkin {

struct PasteSetting {
  std::string tool;     // "DeepSpeed"
  std::string setting;  // as it is pasted
  std::string note;     // what to know before: units, versions, what it does not reach
};

// cap_bytes: of a bucket, positive. element_bytes: of a gradient as it is reduced (4 for float32). plan_caps_mib: bucket_cap_mb_list of a
// plan that is to be offered as well; may be empty. docs/results.md names the sources and versions.
std::vector<PasteSetting> paste_settings(int64_t cap_bytes, int64_t element_bytes, const std::vector<double>& plan_caps_mib);

Table paste_table(const std::vector<PasteSetting>& settings);

}  // namespace firkin
