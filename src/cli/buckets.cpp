// firkin buckets: the named models, and the buckets or the memory of a model (not allocated) or of a tensors.csv.
#include <ranges>

#include "firkin/plan/sharded_plan.h"
#include "flags.h"
#include "results/computed.h"

namespace firkin::cli {
namespace {

struct BucketsFlags {
  ModelFlags model;
  CapOptions rule;
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
  // Reverse order of registration, until a backward pass was observed.
  for (const TensorSpec& tensor : std::views::reverse(tensor_specs(model_config(flags.model)))) {
    gradients.names.push_back(tensor.name);
    gradients.bytes.push_back(tensor.numel * element_bytes(flags.model));
  }
  return gradients;
}

// Prints the result as JSON, or else the text.
int show(const BucketsFlags& flags, const nlohmann::json& result, const std::string& text) {
  if (flags.json) {
    print_json(result);
  } else {
    fmt::print("{}", text);
  }
  return 0;
}

std::vector<ListedBucket> listed_buckets(const TensorProfile& gradients, const BucketPlan& plan, const std::vector<int64_t>& bytes) {
  std::vector<ListedBucket> list;
  for (size_t b = 0; b < plan.buckets.size(); ++b) {
    const auto first = gradients.names.begin() + plan.buckets[b].first;
    list.push_back({bytes[b], {first, first + plan.buckets[b].count}});
  }
  return list;
}

std::string buckets_in_text(const std::vector<ListedBucket>& buckets) {
  Table table{"", {{"bucket"}, {"size"}, {"tensors"}, {"from, to", false}}, {}};
  for (const ListedBucket& bucket : buckets) {
    const std::string last = bucket.tensors.size() > 1 ? " ... " + bucket.tensors.back() : "";
    table.rows.push_back({{fmt::format("{}", table.rows.size()), format_bytes(bucket.bytes), fmt::format("{}", bucket.tensors.size()),
                           bucket.tensors.front() + last}});
  }
  return terminal_table(table);
}

int show_buckets(const BucketsFlags& flags) {
  const TensorProfile gradients = gradients_of(flags);
  BucketsByCap result = {.source = source_of(flags),
                         .rule = name_of(flags.rule.rule),
                         .tensors = std::ssize(gradients.bytes),
                         .gradient_bytes = gradients.total_bytes()};
  Table table{"", {{"cap MiB"}, {"buckets"}, {"smallest"}, {"largest"}}, {}};
  std::string lists;
  for (const int64_t cap : flags.caps) {
    const BucketPlan plan = assign_buckets(gradients.bytes, with_cap(flags.rule, cap));
    const std::vector<int64_t> bytes = bucket_bytes(plan, gradients.bytes);
    const auto [least, most] = std::ranges::minmax(bytes);
    BucketsOfCap& row = result.caps.emplace_back(cap, std::ssize(bytes), least, most);
    const std::string shown = cap < kKiB ? format_bytes(cap) : fmt::format("{}", short_mib(cap));
    table.rows.push_back({{shown, fmt::format("{}", row.buckets), format_bytes(least), format_bytes(most)}});
    if (!flags.list) continue;
    row.assignment = listed_buckets(gradients, plan, bytes);
    lists += fmt::format("\ncap {}{}\n{}", shown, cap < kKiB ? "" : " MiB", buckets_in_text(row.assignment));
  }
  return show(flags, json_of(result),
              fmt::format("{}: {} tensors, {} of gradients; rule {}\n\n{}{}", result.source, result.tensors,
                          format_bytes(result.gradient_bytes), result.rule, terminal_table(table), lists));
}

int list_models(const BucketsFlags& flags) {
  ListedModels result;
  Table table{"", {{"model", false}, {"parameters"}, {"tensors"}, {"gradients"}, {"layers x width, vocabulary", false}}, {}};
  for (const NamedModel& named : named_models()) {
    const ModelDescription model = describe_model({.model = std::string(named.name), .sizes = {}, .dtype = flags.model.dtype});
    result.models.push_back({model, std::string(named.description)});
    table.rows.push_back(
        {{model.name, fmt::format("{}", *model.parameters), fmt::format("{}", *model.tensors), format_bytes(*model.gradient_bytes),
          fmt::format("{} x {}, {}", *model.num_layers, *model.d_model, *model.vocab_size)}});
  }
  return show(flags, json_of(result),
              fmt::format("{}\nGradients in {}. Any size can be changed: firkin tune --model small --num-layers 4\n", terminal_table(table),
                          flags.model.dtype));
}

// What training keeps on one rank: without sharding, and for each power of two of ranks with it.
int show_memory(const BucketsFlags& flags) {
  const int64_t bytes = element_bytes(flags.model), elements = gradients_of(flags).total_bytes() / bytes;
  const TrainedMemory trained = {.elements = elements, .element_bytes = bytes};
  MemoryByRanks result = {.source = source_of(flags), .dtype = flags.model.dtype, .parameters = elements, .plain = plain_memory(trained)};
  for (int64_t ranks = 1; ranks <= 1024; ranks *= 2) result.sharded.push_back({ranks, sharded_memory(trained, ranks)});
  Table table = table_of(result.sharded, kFirstTable);
  Table::Row plain = table_of(std::vector{result.plain}, kFirstTable).rows[0];
  plain.cells.insert(plain.cells.begin(), "plain");
  table.rows.insert(table.rows.begin(), plain);
  return show(flags, json_of(result),
              fmt::format("{}, {}, AdamW: memory of a rank in a step, activations aside; plain, or sharded among so many ranks\n\n{}\n"
                          "Received, in totals too, is there only during a step.\n",
                          result.source, result.dtype, terminal_table(table)));
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
  CLI::Option* tensors = app.add_option("--tensors", flags->tensors_file,
                                        "a tensors.csv (name,bytes,ready_s), not a model;\nwith --memory, --dtype says what its bytes are");
  add_sizes(app, "--cap", flags->caps, "bucket caps: 1MiB,25MiB");
  app.add_flag("--list", flags->list, "list the tensors of every bucket");
  CLI::Option* memory = app.add_flag("--memory", flags->memory, "memory of a rank with AdamW, plain and sharded, for\n1 to 1024 ranks");
  add_json_flag(app, flags->json);
  for (const std::string& name : model_flag_names()) {
    if (name != "--dtype") tensors->excludes(app.get_option(name));
  }
  for (const char* name : {"--cap", "--list", "--rule", "--first-cap"}) memory->excludes(app.get_option(name));
  return [flags, &app] {
    if (app.count("--tensors") * app.count("--dtype") > 0 && !flags->memory) {
      throw InputError("--dtype: expected --memory beside --tensors, whose file has bytes");
    }
    const bool all_models = app.count("--model") + app.count("--tensors") == 0;
    if (flags->memory) return show_memory(*flags);
    return all_models ? list_models(*flags) : show_buckets(*flags);
  };
}

}  // namespace firkin::cli
