// firkin import: other people's measurements and traces as tensors.csv and allreduce.csv.
#include <fmt/ranges.h>

#include "command.h"
#include "results/computed.h"

namespace firkin::cli {
namespace {

constexpr const char* kTensorsFile = "tensors.csv";
constexpr const char* kAllReduceFile = "allreduce.csv";

struct ImportFlags {
  std::vector<std::string> files;
  ImportOptions options;
  SizesFlags sizes;  // for traces without recorded shapes
  CommonFlags common;
};

ImportSummary write_imported(const ImportFlags& flags, const Imported& imported) {
  const std::filesystem::path out = flags.common.out;
  ImportSummary summary{.notes = imported.notes};
  for (const ImportFormat format : imported.formats) summary.formats.push_back(name_of(format));
  if (imported.profile) {
    summary.model = imported.model;
    summary.tensors = std::ssize(imported.profile->bytes);
    summary.gradient_bytes = imported.profile->total_bytes();
    summary.backward_s = imported.profile->backward_s;
    summary.files.push_back((out / kTensorsFile).string());
    set_aside(flags.common, {kTensorsFile});
    write_tensors_csv(out / kTensorsFile, *imported.profile);
  }
  if (!imported.table.empty()) {
    summary.measurements = std::ssize(imported.table);
    summary.world_sizes = world_sizes(imported.table);
    summary.files.push_back((out / kAllReduceFile).string());
    set_aside(flags.common, {kAllReduceFile});
    write_allreduce_csv(out / kAllReduceFile, imported.table);
  }
  return summary;
}

// With --world, drops the times of other numbers of ranks.
void keep_world(Imported& imported, int64_t world_size) {
  if (world_size == 0 || imported.table.empty()) return;
  const std::vector<int64_t> worlds = world_sizes(imported.table);
  const size_t others = std::erase_if(imported.table, [&](const AllReduceRow& row) { return row.world_size != world_size; });
  if (imported.table.empty()) {
    throw InputError(fmt::format("--world {}: the files have all-reduces of {} ranks; expected one of these, or no --world", world_size,
                                 fmt::join(worlds, ", ")));
  }
  if (others > 0) imported.notes.push_back(fmt::format("skipped {} rows of other numbers of ranks than {}", others, world_size));
}

// A traced run gets a results.json and a page as well.
int finish_traced(const ImportFlags& flags, const Imported& imported) {
  Results results;
  results.run = start_run("import", flags.common);
  results.profile = MeasuredProfile{.tensors = *imported.profile};
  results.allreduce = imported.table;
  results.notes = imported.notes;
  results.traced = imported.traced;
  std::vector<OutputFile> files = {{kTensorsFile, tensors_csv(*imported.profile)}};
  if (!imported.table.empty()) files.push_back({kAllReduceFile, allreduce_csv(imported.table)});
  finish_run(flags.common, results, files);
  return 0;
}

int run(ImportFlags& flags) {
  flags.options.sizes = gradient_sizes(flags.sizes);
  claim_output_folder(flags.common);
  Imported imported = import_files({flags.files.begin(), flags.files.end()}, flags.options);
  keep_world(imported, flags.options.world_size);
  if (const int64_t world = flags.options.world_size;
      imported.traced && world > 0 && imported.traced->world_size.value_or(world) != world) {
    throw InputError(fmt::format("import: --world {}: the trace has {} ranks; expected the same", world, *imported.traced->world_size));
  }
  if (imported.traced) return finish_traced(flags, imported);
  if (flags.options.sizes)
    throw InputError(fmt::format("{}: says sizes for a trace; expected a trace among the files", flags.options.sizes->source));
  const ImportSummary summary = write_imported(flags, imported);
  for (const std::string& note : imported.notes) fmt::print(stderr, "firkin: {}\n", note);
  if (flags.common.json) {
    print_json(json_of(summary));
    return 0;
  }
  for (size_t i = 0; i < imported.formats.size(); ++i) fmt::print("{}: {}\n", flags.files[i], name_of(imported.formats[i]));
  if (imported.profile) {
    fmt::print("{} tensors of {}, {} of gradients, ready within {}\n", imported.profile->bytes.size(), imported.model,
               format_bytes(imported.profile->total_bytes()), format_seconds(imported.profile->backward_s));
  }
  if (!imported.table.empty()) fmt::print("{} all-reduce times\n", imported.table.size());
  for (const std::string& file : summary.files) fmt::print("wrote {}\n", file);
  return 0;
}

}  // namespace

void add_import_flags(CLI::App& app, ImportOptions& options, const std::string& group) {
  app.add_option("--collective", options.collective, "all_reduce: says it for files that do not say\nwhich collective was timed")
      ->check(CLI::IsMember({"all_reduce"}))
      ->group(group);
  app.add_flag("--in-place", options.in_place, "take in-place all-reduces")->group(group);
  app.add_option("--dtype", options.dtype, "element type of the all-reduces, as the file names\nit (default: float)")->group(group);
  app.add_option("--where", options.where, "rows of a CSV file to take: COLUMN=VALUE")->group(group);
}

std::optional<GradientSizes> gradient_sizes(const SizesFlags& flags) {
  GradientSizes sizes;
  if (!flags.model.empty()) {
    sizes.source = "--model " + flags.model;
    for (const TensorSpec& tensor : tensor_specs(resolve_model(flags.model))) {
      sizes.names.push_back(tensor.name);
      sizes.sizes.push_back(tensor.numel);
    }
    // Gradients become ready in the reverse order of forward.
    std::ranges::reverse(sizes.names);
    std::ranges::reverse(sizes.sizes);
    return sizes;
  }
  if (flags.tensors.empty()) return std::nullopt;
  TensorProfile profile = read_tensors_csv(flags.tensors);
  return GradientSizes{"--tensors " + flags.tensors, std::move(profile.names), std::move(profile.bytes), /*are_bytes=*/true};
}

Run declare_import(CLI::App& app) {
  auto flags = std::make_shared<ImportFlags>();
  app.footer(
      "Recognises files by their content: traces of torch.profiler, zipped or not (one\n"
      "rank's, or several of one run); logs of NCCL's Inspector, of\n"
      "all_reduce_perf (nccl-tests, rccl-tests), osu_allreduce, IMB-MPI1 and oneCCL's\n"
      "benchmark; all-reduce times in CSV; layer sizes and times of CMSC 828G's\n"
      "assignment 2. Where a file does not say which\n"
      "collective was timed, or on how many ranks, --collective all_reduce and --world\n"
      "do. What is left out is said.\n\n"
      "  firkin import trace_0.json.gz trace_1.json.gz --out imported\n"
      "  firkin import all_reduce.log --out imported\n"
      "  firkin import osu_allreduce.txt --world 16 --out imported\n"
      "  firkin import times.csv --collective all_reduce --out imported\n"
      "  firkin import layer-sizes.csv layer-times.csv allreduce.csv --out imported\n"
      "  firkin predict --tensors imported/tensors.csv \\\n"
      "    --allreduce imported/allreduce.csv\n");
  app.add_option("FILE", flags->files, "files to convert");
  app.add_option("--world", flags->options.world_size, "number of ranks, for files that do not say it;\nof others, the rows of as many")
      ->check(number_from(int64_t{2}, kLargestWorld));
  add_import_flags(app, flags->options);
  CLI::Option* tensors = app.add_option("--tensors", flags->sizes.tensors, "sizes for a trace without shapes: a tensors.csv");
  app.add_option("--model", flags->sizes.model, "the same, of a named model or .json file")->type_name("MODEL")->excludes(tensors);
  add_output_flags(app, flags->common, "import");
  return [flags] { return run(*flags); };
}

}  // namespace firkin::cli
