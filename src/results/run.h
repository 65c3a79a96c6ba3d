// Where a result comes from: the command, the machines, the model.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "firkin/base/machine.h"
#include "firkin/plan/measurements.h"
#include "results/field.h"

namespace firkin {

// Names of fields in several tables.
inline constexpr const char* kGradientBytesKey = "gradient_bytes";
inline constexpr const char* kBackwardKey = "backward_s";
inline constexpr const char* kCapKey = "cap_mib";

template <>
inline constexpr auto kFields<Host> = std::tuple(Field("host", &Host::host), Field("cpu", &Host::cpu), Field("os", &Host::os),
                                                 Field("cores", &Host::cores), Field("usable_cores", &Host::usable_cores),
                                                 Field("cpu_quota", &Host::cpu_quota, "cpu quota (cores)"),
                                                 Field("governor", &Host::governor), Field("load", &Host::load, "load at start"),
                                                 Field("ranks", &Host::ranks));

struct Environment {
  std::string firkin;  // version
  std::optional<std::string> libtorch = {}, backend = {}, device = {}, cpu = {}, os = {};
  std::optional<std::string> gpu = {}, nccl = {}, float32_matmul = {};  // rank 0's; absent on a CPU
  std::optional<int64_t> cores = {}, world_size = {}, threads_per_rank = {};
  std::optional<std::string> link = {};  // a modelled one, in words; absent: times are those of the real link
  std::vector<Host> hosts = {};
};

// What was trained. The sizes in the last line are called so in a model file, too.
struct ModelDescription {
  std::string name;
  std::optional<std::string> family = {}, dtype = {}, text = {};
  std::optional<bool> tied = {};
  std::optional<int64_t> parameters = {}, tensors = {}, gradient_bytes = {}, batch_size = {}, sequence_length = {};
  std::optional<int64_t> vocab_size = {}, context_length = {}, d_model = {}, d_ff = {}, num_layers = {}, num_heads = {};

  friend bool operator==(const ModelDescription&, const ModelDescription&) = default;
};

template <>
inline constexpr auto kFields<ModelDescription> =
    std::tuple(Field("name", &ModelDescription::name), Field("family", &ModelDescription::family, kPage),
               Field("dtype", &ModelDescription::dtype), Field("tied", &ModelDescription::tied, kPage),
               Field("parameters", &ModelDescription::parameters, kPage), Field("tensors", &ModelDescription::tensors, kPage),
               Field(kGradientBytesKey, &ModelDescription::gradient_bytes, Unit::kBytes, "gradient size"),
               Field("batch_size", &ModelDescription::batch_size), Field("sequence_length", &ModelDescription::sequence_length),
               Field("text", &ModelDescription::text, kPage), Field("context_length", &ModelDescription::context_length, kPage),
               Field("d_ff", &ModelDescription::d_ff, kPage), Field("d_model", &ModelDescription::d_model, kPage),
               Field("num_heads", &ModelDescription::num_heads, kPage), Field("num_layers", &ModelDescription::num_layers, kPage),
               Field("vocab_size", &ModelDescription::vocab_size, kPage));

// The head of every results.json.
struct RunHead {
  std::string command;  // "bench-step"
  std::vector<std::string> command_line = {};
  std::string started;  // UTC, when measuring began
  std::optional<int64_t> seed = {};
  std::vector<std::string> files = {};          // the files that the run wrote, results.json included
  std::map<std::string, std::string> settings;  // every flag's name and its value in force
  Environment environment;
  std::optional<ModelDescription> model = {};
};

// The head of a result that starts now; `environment` holds only Firkin's version.
RunHead begin_head(const std::string& command);

// The distinct machines among those of all ranks, each with its ranks. The first rank's figures count.
std::vector<Host> by_host(const std::vector<Host>& of_ranks);

// For field.h. A head reads and writes its fields among those of the document.
void write_object(const RunHead& run, nlohmann::json& document);
void read_object(const JsonFields& document, RunHead& run);

// The command whose "model" describes a predicted workload instead of a trained model.
inline constexpr std::string_view kPredictCommand = "predict";

// "demo, batch 4, sequence 128, float32"
std::string name_of(const ModelDescription& model);

// The environment as names and values, for a page.
Facts facts_of(const Environment& environment);

}  // namespace firkin
