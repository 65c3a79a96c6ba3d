// Firkin buckets: the named models, and the bucket assignment or the memory of a model, without allocating it, or of a
// tensors.csv.
#include <ranges>

#include "firkin/plan/sharded_plan.h"
#include "flags.h"

namespace firkin::cli {
namespace {

struct BucketsFlags {
  ModelFlags model;
  RuleFlags rule;
  std::string tensors_file;
  std::vector<int64_t> caps = {kMiB, 10 * kMiB, 25 * kMiB, 100 * kMiB, 1000 * kMiB};
  bool json = false;
  bool list = false;
  bool memory = false;
};

const std::string& source_of(const BucketsFlags& flags) {
  return flags.tensors_file.empty() ? flags.model.model : flags.tensors_file;
}

// Gradients in gradient-ready order; a model's have no times.
TensorProfile gradients_of(const BucketsFlags& flags) {
  if (!flags.tensors_file.empty()) return read_tensors_csv(flags.tensors_file);
  TensorProfile gradients;
  // Until a backward pass was observed: the reverse of registration.
  for (const TensorSpec& tensor : std::views::reverse(tensor_specs(model_config(flags.model)))) {
    gradients.names.push_back(tensor.name);
    gradients.bytes.push_back(tensor.numel * element_bytes(flags.model));
  }
  return gradients;
}

nlohmann::json assignment_json(const TensorProfile& gradients, double cap_mib, const BucketPlan& plan, bool list) {
  const std::vector<int64_t> bytes = bucket_bytes(plan, gradients.bytes);
  nlohmann::json json = {{kCapKey, cap_mib},
                         {"buckets", plan.buckets.size()},
                         {"smallest_bytes", *std::ranges::min_element(bytes)},
                         {"largest_bytes", *std::ranges::max_element(bytes)}};
  if (!list) return json;
  for (size_t b = 0; b < plan.buckets.size(); ++b) {
    const auto first = gradients.names.begin() + plan.buckets[b].first;
    json["assignment"].push_back({{"bytes", bytes[b]}, {"tensors", std::vector<std::string>(first, first + plan.buckets[b].count)}});
  }
  return json;
}

void print_assignment(const nlohmann::json& assignment) {
  fmt::print("\ncap {} MiB\n", assignment[kCapKey].get<double>());
  size_t index = 0;
  for (const nlohmann::json& bucket : assignment["assignment"]) {
    const auto& tensors = bucket["tensors"];
    const std::string last = tensors.size() > 1 ? " ... " + tensors.back().get<std::string>() : "";
    fmt::print("{:>6} {:>10} {:>5}  {}{}\n", index++, format_bytes(bucket["bytes"]), tensors.size(), tensors.front().get<std::string>(),
               last);
  }
}

void print_buckets(const nlohmann::json& result) {
  fmt::print("{}: {} tensors, {} of gradients; rule {}\n\n", result["source"].get<std::string>(), result["tensors"].get<size_t>(),
             format_bytes(result[kGradientBytesKey]), result["rule"].get<std::string>());
  fmt::print("{:>10} {:>8} {:>12} {:>12}\n", "cap MiB", "buckets", "smallest", "largest");
  for (const nlohmann::json& row : result["caps"]) {
    fmt::print("{:>10} {:>8} {:>12} {:>12}\n", row[kCapKey].get<double>(), row["buckets"].get<size_t>(),
               format_bytes(row["smallest_bytes"]), format_bytes(row["largest_bytes"]));
  }
  for (const nlohmann::json& row : result["caps"]) {
    if (row.contains("assignment")) print_assignment(row);
  }
}

int run(const BucketsFlags& flags) {
  CapOptions options = cap_options(flags.rule);
  const TensorProfile gradients = gradients_of(flags);
  nlohmann::json result = {{"source", source_of(flags)},
                           {"rule", flags.rule.rule},
                           {"tensors", gradients.bytes.size()},
                           {kGradientBytesKey, gradients.total_bytes()}};
  for (const int64_t cap : flags.caps) {
    options.cap_bytes = cap;
    const BucketPlan plan = assign_buckets(gradients.bytes, options);
    result["caps"].push_back(assignment_json(gradients, cap_in_mib(cap), plan, flags.list));
    result["counts"].push_back(plan.buckets.size());
  }
  if (flags.json) {
    print_json(result);
  } else {
    print_buckets(result);
  }
  return 0;
}

int list_models(const BucketsFlags& flags) {
  nlohmann::json rows = nlohmann::json::array();
  if (!flags.json) {
    fmt::print("{:<12} {:>14} {:>8} {:>10}   {}\n", "model", "parameters", "tensors", "gradients", "layers x width, vocabulary");
  }
  for (const NamedModel& named : named_models()) {
    const ModelDescription model = describe_model({.model = std::string(named.name), .sizes = {}, .dtype = flags.model.dtype});
    rows.push_back(json_of(model));
    rows.back()["description"] = named.description;
    if (flags.json) continue;
    fmt::print("{:<12} {:>14} {:>8} {:>10}   {} x {}, {}\n", model.name, *model.parameters, *model.tensors,
               format_bytes(*model.gradient_bytes), model.sizes.at("num_layers"), model.sizes.at("d_model"), model.sizes.at("vocab_size"));
  }
  if (flags.json) {
    print_json({{"models", rows}});
  } else {
    fmt::print("\nGradients in {}. Any size can be changed: firkin tune --model small --num-layers 4\n", flags.model.dtype);
  }
  return 0;
}

// ---- --memory

constexpr int64_t kMostRanks = 1024;

// What training keeps on one rank: without sharding, and for each power of two of ranks with it.
nlohmann::json memory_of(const BucketsFlags& flags) {
  const int64_t bytes = element_bytes(flags.model), elements = gradients_of(flags).total_bytes() / bytes;
  const TrainedMemory trained = {.elements = elements, .element_bytes = bytes, .masters = bytes < kFloatBytes};
  nlohmann::json json = {
      {"source", source_of(flags)}, {"dtype", flags.model.dtype}, {"parameters", elements}, {"plain", json_of(plain_memory(trained))}};
  for (int64_t ranks = 1; ranks <= kMostRanks; ranks *= 2) {
    json["sharded"].push_back(json_of(sharded_memory(trained, ranks)));
    json["sharded"].back()["ranks"] = ranks;
  }
  return json;
}

void print_memory(const nlohmann::json& model) {
  const std::vector<const char*> keys = {"parameters_bytes", "gradients_bytes", "received_bytes",
                                         "optimizer_bytes",  "masters_bytes",   "total_bytes"};
  fmt::print("{:>7} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}\n", "ranks", "parameters", "gradients", "received", "optimiser", "masters",
             "total");
  const auto print = [&](const std::string& name, const nlohmann::json& memory) {
    fmt::print("{:>7}", name);
    for (const char* key : keys) fmt::print(" {:>10}", format_bytes(memory[key]));
    fmt::print("\n");
  };
  print("plain", model["plain"]);
  for (const nlohmann::json& row : model["sharded"]) print(fmt::format("{}", row["ranks"].get<int64_t>()), row);
}

// Shows the memory of a model or a file in parts.
int show_memory(const BucketsFlags& flags) {
  nlohmann::json result = memory_of(flags);
  if (flags.json) {
    print_json(result);
    return 0;
  }
  fmt::print("{}, {}, AdamW: memory of a rank in a step, activations aside; plain, or sharded among so many ranks\n\n", source_of(flags),
             flags.model.dtype);
  print_memory(result);
  fmt::print("\nReceived, in totals too, is there only during a step.\n");
  return 0;
}

}  // namespace

Run declare_buckets(CLI::App& app) {
  auto flags = std::make_shared<BucketsFlags>();
  app.footer(
      "Lists the named models unless --model, --tensors or --memory is given. Tensors\n"
      "are in gradient-ready order: the file's, or the reverse of a model's\n"
      "registration.\n\n"
      "--memory, received: during a step, other ranks' slices of the gradients, as much\n"
      "as these once more (so two ranks need as much as plain with AdamW in fp32), and\n"
      "at least, where masters are stepped, the part's gradient in float32.\n\n"
      "  firkin buckets\n"
      "  firkin buckets --model xl --cap 1MiB,10MiB,100MiB,1000MiB --rule at-most\n"
      "  firkin buckets --tensors firkin-out/tune/tensors.csv --cap 4MiB --list\n"
      "  firkin buckets --model gpt2-xl --memory --dtype bf16\n");
  add_model_flags(app, flags->model);
  add_rule_flags(app, flags->rule);
  app.add_option("--tensors", flags->tensors_file,
                 "a tensors.csv (name,bytes,ready_s) instead of a model;\nwith --memory, --dtype says what its bytes are");
  add_sizes(app, "--cap", flags->caps, "bucket caps: 1MiB,25MiB");
  app.add_flag("--list", flags->list, "list the tensors of every bucket");
  app.add_flag("--memory", flags->memory, "memory of a rank with AdamW, plain and sharded, for 1\nto 1024 ranks");
  add_json_flag(app, flags->json);
  return [flags, &app] {
    std::vector<std::string> replaced = model_flag_names();
    if (flags->memory) std::erase(replaced, "--dtype");  // --dtype then says what the file's bytes are
    check_alone(app, "--tensors", replaced);
    check_alone(app, "--memory", {"--cap", "--list", "--rule", "--first-cap"}, "which is the same for all buckets");
    const bool all_models = app.count("--model") + app.count("--tensors") == 0;
    if (flags->memory) return show_memory(*flags);
    return all_models ? list_models(*flags) : run(*flags);
  };
}

}  // namespace firkin::cli
