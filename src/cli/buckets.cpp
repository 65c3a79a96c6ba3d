// firkin buckets: the named models, and the bucket assignment of a model, without allocating it, or of a tensors.csv.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "firkin/base/units.h"
#include "firkin/plan/bucket_plan.h"
#include "firkin/plan/tensor_profile.h"
#include "job.h"
#include "model/transformer.h"
#include "model/transformer_config.h"
#include "results/results.h"

namespace firkin::cli {
namespace {

struct BucketsFlags {
  ModelFlags model;
  RuleFlags rule;
  std::string tensors_file;
  std::vector<int64_t> caps = {kMiB, 10 * kMiB, 25 * kMiB, 100 * kMiB, 1000 * kMiB};
  bool json = false;
  bool list = false;
};

// Tensors in gradient-ready order.
struct Gradients {
  std::string source;
  std::vector<std::string> names;
  std::vector<int64_t> bytes;
};

Gradients gradients_of(const BucketsFlags& flags) {
  if (!flags.tensors_file.empty()) {
    TensorProfile profile = read_tensors_csv(flags.tensors_file);
    return {flags.tensors_file, std::move(profile.names), std::move(profile.bytes)};
  }
  Gradients gradients{.source = flags.model.model, .names = {}, .bytes = {}};
  for (const TensorSpec& tensor : tensor_specs(model_config(flags.model))) {
    gradients.names.push_back(tensor.name);
    gradients.bytes.push_back(tensor.numel * element_bytes(flags.model));
  }
  std::ranges::reverse(gradients.names);  // until a backward pass was observed: the reverse of registration
  std::ranges::reverse(gradients.bytes);
  return gradients;
}

nlohmann::json assignment_json(const Gradients& gradients, double cap_mib, const BucketPlan& plan, bool list) {
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
  const Gradients gradients = gradients_of(flags);
  nlohmann::json result = {{"source", gradients.source},
                           {"rule", flags.rule.rule},
                           {"tensors", gradients.bytes.size()},
                           {kGradientBytesKey, std::accumulate(gradients.bytes.begin(), gradients.bytes.end(), int64_t{0})}};
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
    rows.push_back(model_json(model));
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

}  // namespace

Run declare_buckets(CLI::App& app) {
  auto flags = std::make_shared<BucketsFlags>();
  app.footer(
      "Lists the named models unless --model or --tensors is given. Tensors are in\n"
      "gradient-ready order: the file's, or the reverse of a model's registration.\n\n"
      "  firkin buckets\n"
      "  firkin buckets --model xl --cap 1MiB,10MiB,100MiB,1000MiB --rule at-most\n"
      "  firkin buckets --tensors firkin-out/tune/tensors.csv --cap 4MiB --list\n");
  add_model_flags(app, flags->model);
  add_rule_flags(app, flags->rule);
  app.add_option("--tensors", flags->tensors_file, "a tensors.csv (name,bytes,ready_s) instead of a model");
  add_old_name(app, "--cap-mib", add_sizes(app, "--cap", flags->caps, "bucket caps: 1MiB,25MiB"), "MiB");
  app.add_flag("--list", flags->list, "list the tensors of every bucket");
  add_json_flag(app, flags->json);
  return [flags, &app] {
    check_alone(app, "--tensors", model_flag_names());
    return app.count("--model") + app.count("--tensors") == 0 ? list_models(*flags) : run(*flags);
  };
}

}  // namespace firkin::cli
