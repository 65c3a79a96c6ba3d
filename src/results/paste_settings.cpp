#include "results/paste_settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "firkin/base/units.h"
#include "results/field.h"

namespace firkin {
namespace {

constexpr size_t kLongestList = 64;

constexpr Field<PasteSetting> kPasteFields[] = {{"tool", &PasteSetting::tool, Unit::kText, "tool"},
                                                {"setting", &PasteSetting::setting, Unit::kText, "setting"},
                                                {"note", &PasteSetting::note, Unit::kText, "note"}};

}  // namespace

std::vector<PasteSetting> paste_settings(int64_t cap_bytes, int64_t element_bytes, const std::vector<double>& plan_caps_mib) {
  const std::string cap = fmt::format("{:.6g}", mib(cap_bytes));
  const int64_t elements = std::max<int64_t>(1, cap_bytes / element_bytes);
  std::vector<PasteSetting> settings = {
      {"PyTorch", fmt::format("DistributedDataParallel(model, bucket_cap_mb={})", cap), "MiB; fractions work"}};
  if (!plan_caps_mib.empty() && plan_caps_mib.size() <= kLongestList) {
    settings.push_back(
        {"PyTorch, best plan", fmt::format("DistributedDataParallel(model, bucket_cap_mb_list=[{}])", fmt::join(plan_caps_mib, ", ")),
         "MiB; from 2.11; for gradients of one dtype on one device; in effect from the second step on, not with find_unused_parameters"});
  }
  settings.push_back({"Transformers", fmt::format("TrainingArguments(ddp_bucket_cap_mb={})", cap),
                      "MiB; whole MiB as a command-line flag; 25 counts as not given"});
  settings.push_back({"Accelerate", fmt::format("DistributedDataParallelKwargs(bucket_cap_mb={})", cap), "MiB; 25 counts as not given"});
  settings.push_back({"Lightning", fmt::format("DDPStrategy(bucket_cap_mb={})", cap), "MiB"});
  settings.push_back({"DeepSpeed", fmt::format("\"zero_optimization\": {{\"reduce_bucket_size\": {}}}", elements),
                      fmt::format("elements of {} bytes; ZeRO stages 1 to 3, with overlap_comm", element_bytes)});
  settings.push_back({"Megatron-LM", fmt::format("--overlap-grad-reduce --ddp-bucket-size {}", elements),
                      fmt::format("elements of {} bytes", element_bytes)});
  settings.push_back({"Horovod", fmt::format("HOROVOD_FUSION_THRESHOLD={}", cap_bytes), "bytes; an upper bound, not a plan"});
  return settings;
}

Table paste_table(const std::vector<PasteSetting>& settings) {
  return table_of<PasteSetting>(kPasteFields, settings, Medium::kPage, "Settings to paste");
}

}  // namespace firkin
