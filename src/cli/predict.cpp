// firkin predict: T(b), the best uniform cap and the best plan, from tensors.csv and allreduce.csv, or for a named
// model on a cluster with published all-reduce times.
#include <iterator>

#include "command.h"
#include "import/profiler_trace.h"

namespace firkin::cli {
namespace {

struct PredictFlags {
  PredictionInputs given;  // what needs no file; a world_size of 0 means the only one in the table
  std::string tensors, allreduce;
  std::vector<std::string> traces;  // in place of tensors, which may say their sizes
  // Model takes the place of tensors, cluster that of allreduce. An empty gpu is the cluster's.
  std::string model, gpu, cluster;
  LocalBatch local = {.batch = 8};  // for the model; sequence 0: its longest
  std::optional<double> utilization;
  std::optional<int64_t> largest_bucket_bytes;
  double forward_s = 0;   // 0: not given
  ImportOptions reading;  // for --allreduce
  CommonFlags common;     // an empty --out writes nothing
};

// The sources of the prediction's inputs, as errors name them.
const std::string& tensors_of(const PredictFlags& flags) {
  if (!flags.traces.empty()) return flags.traces.front();
  return flags.model.empty() ? flags.tensors : flags.model;
}
const std::string& allreduce_of(const PredictFlags& flags) {
  return flags.cluster.empty() ? flags.allreduce : flags.cluster;
}

// Sets the end of forward, which tensors.csv does not say.
void set_forward(const PredictFlags& flags, TensorProfile& profile) {
  if (flags.forward_s == 0 && !flags.given.sharded) return;
  const std::string given = flags.forward_s == 0 ? "--sharded" : "--forward " + format_seconds(flags.forward_s);
  if (!profile.knows_forward())
    throw InputError(fmt::format("{}: {} has no column {}; expected one", given, tensors_of(flags), kTensorNeeded));
  if (flags.forward_s == 0) return;
  if (flags.forward_s < profile.forward_s) {
    throw InputError(fmt::format("{}: expected at least the largest {}, {}", given, kTensorNeeded, format_seconds(profile.forward_s)));
  }
  profile.forward_s = flags.forward_s;
}

// The profile of --model on --gpu, by default the cluster's GPU. `notes` says what was assumed.
TensorProfile assume_profile(const PredictFlags& flags, const std::string& cluster_gpu, std::vector<std::string>& notes) {
  if (flags.gpu.empty() && cluster_gpu.empty()) throw InputError("--model: expected --gpu too, or --cluster, which says what it has");
  Accelerator gpu = find_accelerator(flags.gpu.empty() ? cluster_gpu : flags.gpu);
  if (flags.utilization) gpu.utilization = *flags.utilization;
  const TransformerConfig config = resolve_model(flags.model);
  LocalBatch local = flags.local;
  if (local.sequence == 0) local.sequence = config.context_length;
  if (local.sequence > config.context_length) {
    throw InputError(fmt::format("--sequence {}: expected at most the model's context_length {}", local.sequence, config.context_length));
  }
  TensorProfile profile = assumed_profile(config, local, gpu.reached_flops_per_s());
  notes.push_back(fmt::format(
      "nothing was measured of {}: {} x {} tokens a rank are taken to compute at {:.0f} % of the {}'s bf16 peak (--utilization), backward "
      "{}, forward {}; gradients are float32",
      flags.model, local.batch, local.sequence, 100 * gpu.utilization, gpu.name, format_seconds(profile.backward_s),
      format_seconds(profile.forward_s)));
  return profile;
}

// The profile of traces, whose run `traced` becomes.
TensorProfile read_traced_profile(const PredictFlags& flags, std::optional<ReadTrace>& traced, std::vector<std::string>& notes) {
  traced = read_traces({flags.traces.begin(), flags.traces.end()}, gradient_sizes({flags.tensors, flags.model}));
  notes.insert(notes.end(), traced->run.findings.begin(), traced->run.findings.end());
  return traced->profile;
}

// The all-reduce times of --allreduce, of --cluster, or of traces that tell them.
void read_allreduce(const PredictFlags& flags, PublishedTimes published, const std::optional<ReadTrace>& traced, PredictionInputs& inputs,
                    std::vector<std::string>& notes) {
  if (!flags.cluster.empty()) {
    notes.push_back(fmt::format("all-reduce times of {}, as others published them (data/README.md)", published.title));
    inputs.table = std::move(published.table);
    if (published.world_size != 0 && flags.given.world_size != 0) {
      throw InputError(fmt::format("--cluster {}: names {} ranks; leave them out beside --world", flags.cluster, published.world_size));
    }
    if (published.world_size != 0) inputs.world_size = published.world_size;
  } else if (!flags.allreduce.empty()) {
    ImportOptions options = flags.reading;
    options.world_size = flags.given.world_size;  // for times that do not state their ranks
    if (traced && options.world_size == 0) options.world_size = traced->run.world_size.value_or(0);
    Imported imported = import_files({flags.allreduce}, options);
    notes.insert(notes.end(), imported.notes.begin(), imported.notes.end());
    inputs.table = std::move(imported.table);
  } else {
    if (traced->table.empty()) throw InputError(fmt::format("predict: {} expected --allreduce or --cluster", traced->why_no_table));
    inputs.table = traced->table;
  }
  if (traced && inputs.world_size == 0) inputs.world_size = traced->run.world_size.value_or(0);
  if (inputs.world_size == 0) inputs.world_size = only_world(inputs.table, allreduce_of(flags), "--world");
}

// `notes` says what was assumed, and what was left out.
PredictionInputs read_inputs(const PredictFlags& flags, std::vector<std::string>& notes) {
  PredictionInputs inputs = flags.given;
  check_options(inputs.search.simulation);
  if (flags.largest_bucket_bytes) inputs.search.largest_bucket_bytes = *flags.largest_bucket_bytes;
  PublishedTimes published;
  if (!flags.cluster.empty()) published = read_cluster(flags.cluster, data_folder());
  std::optional<ReadTrace> traced;
  if (!flags.traces.empty()) {
    inputs.profile = read_traced_profile(flags, traced, notes);
  } else {
    inputs.compute_assumed = !flags.model.empty();
    inputs.profile = flags.model.empty() ? read_tensors_csv(flags.tensors) : assume_profile(flags, published.gpu, notes);
  }
  set_forward(flags, inputs.profile);
  read_allreduce(flags, std::move(published), traced, inputs, notes);
  // Other numbers of ranks have other rates.
  if (traced && traced->run.world_size == inputs.world_size) {
    const std::string doubt = doubt_of_rate(traced->run, comm_costs(inputs.table, inputs.world_size));
    if (!doubt.empty()) notes.insert(notes.begin(), doubt);
  }
  return inputs;
}

// Adds the flags that stand in for measurements.
void add_assumption_flags(CLI::App& app, PredictFlags& flags) {
  CLI::Option* tensors = app.get_option("--tensors");
  CLI::Option* allreduce = app.get_option("--allreduce");
  CLI::Option* model = app.add_option("--model", flags.model, "in place of --tensors: a named model or .json file");
  model->type_name("MODEL")->excludes(tensors);
  app.add_option("--cluster", flags.cluster, "in place of --allreduce: one of data/README.md, with\nits ranks or without: aws-p4de-16")
      ->type_name("CLUSTER")
      ->excludes(allreduce);
  const auto sizes = number_from(int64_t{1}, int64_t{1} << 20);
  add_value(app, "--batch", flags.local.batch, "with --model: sequences per rank")->check(sizes)->needs(model);
  app.add_option("--sequence", flags.local.sequence, "with --model: tokens per sequence (default: longest)")->check(sizes)->needs(model);
  std::vector<std::string> gpus;
  for (const Accelerator& gpu : kAccelerators) gpus.emplace_back(gpu.name);
  app.add_option("--gpu", flags.gpu, "with --model: what computes (default: the cluster's)")->check(CLI::IsMember(gpus))->needs(model);
  app.add_option("--utilization", flags.utilization, "with --model: share of the GPU's bf16 peak (default:\n0.5, H100s 0.4)")
      ->check(number_from(0.001, 1.0))
      ->needs(model);
}

int run(PredictFlags& flags) {
  if (tensors_of(flags).empty() && flags.traces.empty()) throw InputError("predict: expected --tensors or --model, or --trace");
  if (allreduce_of(flags).empty() && flags.traces.empty()) throw InputError("predict: expected --allreduce or --cluster");
  std::vector<std::string> notes;
  const PredictionInputs inputs = read_inputs(flags, notes);
  if (!flags.common.out.empty()) claim_output_folder(flags.common);
  Results results;
  results.run = start_run(std::string(kPredictCommand), flags.common);
  results.prediction = predict(inputs);
  results.notes = notes;
  std::ranges::move(notes_of(*results.prediction), std::back_inserter(results.notes));
  if (flags.common.out.empty()) {
    fmt::print("{}", flags.common.json ? results_text(results) : results_in_text(results));
    return 0;
  }
  finish_run(flags.common, results);
  return 0;
}

}  // namespace

Run declare_predict(CLI::App& app) {
  auto flags = std::make_shared<PredictFlags>();
  flags->common.app = &app;
  app.footer(
      "  firkin predict --tensors firkin-out/tune/tensors.csv \\\n"
      "    --allreduce firkin-out/tune/allreduce.csv\n"
      "  firkin predict --trace trace_0.json.gz --allreduce all_reduce.log\n"
      "  firkin predict --model gpt2-xl --batch 8 --cluster aws-p4de-16\n"
      "  firkin predict --model gpt2-xl --gpu a100 --allreduce all_reduce.log\n"
      "  firkin predict --tensors t.csv --allreduce a.csv --world 1024 --json\n"
      "  firkin predict --tensors t.csv --allreduce a.csv --cap 5MiB,25MiB\n"
      "  firkin predict --tensors t.csv --allreduce a.csv --sensitivity --out DIR\n");
  app.add_option("--tensors", flags->tensors, "name,bytes,ready_s,... in gradient-ready order");
  app.add_option("--allreduce", flags->allreduce, "bytes,world_size,median_s,..., or others' times");
  app.add_option(
      "--trace", flags->traces,
      "in place of --tensors: torch.profiler's, of one rank\nor several; --tensors or --model then says sizes if\nit lacks them");
  add_assumption_flags(app, *flags);
  PredictionInputs& inputs = flags->given;
  app.add_option("--world", inputs.world_size, "number of ranks; extrapolates if not measured")
      ->check(number_from(int64_t{2}, kLargestWorld));
  add_sizes(app, "--cap", inputs.caps, "the curve's caps: 1MiB,25MiB (default: powers of 2)");
  add_rule_flags(app, inputs.rule);
  add_import_flags(app, flags->reading, "Others' all-reduce times");
  for (const char* name : {"--collective", "--in-place", "--dtype", "--where"}) app.get_option(name)->excludes(app.get_option("--cluster"));
  const char* const group = "Performance model";
  SimulationOptions& simulation = inputs.search.simulation;
  add_time(app, "--overhead", simulation.overhead_s, "cost per call on the computing thread: 20us")->group(group);
  add_value(app, "--compute-slowdown", simulation.compute_slowdown, "slowdown of backward during communication", group);
  add_value(app, "--latency-factor", inputs.latency_factor, "all-reduce latency during backward, over that of an\nidle link", group);
  app.add_option("--residual", inputs.residual, "the calibration's residual (default: not calibrated)")
      ->check(number_from(0.0, 1.0))
      ->group(group);
  add_size(app, "--max-bucket", flags->largest_bucket_bytes, "largest bucket of several tensors")->group(group);
  add_time(app, "--forward", flags->forward_s, "end of forward: 30ms (0s: the largest needed_s)")->group(group);
  app.add_flag("--sensitivity", inputs.sensitivity, "multiply each input by 1/8 to 8");
  app.add_flag("--sharded", inputs.sharded,
               "also predict the strategy sharded: time and memory;\n--tensors needs needed_s, and elements of 4 bytes");
  app.add_option("--out", flags->common.out, "folder for results.json, report.html (default: none)");
  add_json_flag(app, flags->common.json);
  return [flags] { return run(*flags); };
}

}  // namespace firkin::cli
