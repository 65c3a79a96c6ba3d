// firkin import: other people's measurements as tensors.csv and allreduce.csv.
#include <fmt/ranges.h>

#include "command.h"

namespace firkin::cli {
namespace {

constexpr const char* kTensorsFile = "tensors.csv";
constexpr const char* kAllReduceFile = "allreduce.csv";

struct ImportFlags {
  std::vector<std::string> files;
  ImportOptions options;
  CommonFlags common;
};

nlohmann::json write_imported(const ImportFlags& flags, const Imported& imported) {
  const std::filesystem::path out = flags.common.out;
  nlohmann::json result = {{"notes", imported.notes}, {"files", nlohmann::json::array()}, {"formats", nlohmann::json::array()}};
  for (const ImportFormat format : imported.formats) result["formats"].push_back(name_of(format));
  if (imported.profile) {
    result["model"] = imported.model;
    result["tensors"] = imported.profile->bytes.size();
    result[kGradientBytesKey] = imported.profile->total_bytes();
    result[kBackwardKey] = imported.profile->backward_s;
    result["files"].push_back((out / kTensorsFile).string());
    set_aside(flags.common, {kTensorsFile});
    write_tensors_csv(out / kTensorsFile, *imported.profile);
  }
  if (!imported.table.empty()) {
    result["measurements"] = imported.table.size();
    result["world_sizes"] = world_sizes(imported.table);
    result["files"].push_back((out / kAllReduceFile).string());
    set_aside(flags.common, {kAllReduceFile});
    write_allreduce_csv(out / kAllReduceFile, imported.table);
  }
  return result;
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

int run(ImportFlags& flags) {
  claim_output_folder(flags.common);
  Imported imported = import_files({flags.files.begin(), flags.files.end()}, flags.options);
  keep_world(imported, flags.options.world_size);
  const nlohmann::json result = write_imported(flags, imported);
  for (const std::string& note : imported.notes) fmt::print(stderr, "firkin: {}\n", note);
  if (flags.common.json) {
    print_json(result);
    return 0;
  }
  for (size_t i = 0; i < imported.formats.size(); ++i) fmt::print("{}: {}\n", flags.files[i], name_of(imported.formats[i]));
  if (imported.profile) {
    fmt::print("{} tensors of {}, {} of gradients, ready within {}\n", imported.profile->bytes.size(), imported.model,
               format_bytes(imported.profile->total_bytes()), format_seconds(imported.profile->backward_s));
  }
  if (!imported.table.empty()) fmt::print("{} all-reduce times\n", imported.table.size());
  for (const nlohmann::json& file : result["files"]) fmt::print("wrote {}\n", file.get<std::string>());
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

Run declare_import(CLI::App& app) {
  auto flags = std::make_shared<ImportFlags>();
  app.footer(
      "Recognises files by their content: logs of all_reduce_perf (nccl-tests,\n"
      "rccl-tests), osu_allreduce and IMB-MPI1, all-reduce times in CSV, layer sizes\n"
      "and times of CMSC 828G's assignment 2. Where a file does not say which\n"
      "collective was timed, or on how many ranks, --collective all_reduce and --world\n"
      "do. What is left out is said.\n\n"
      "  firkin import all_reduce.log --out imported\n"
      "  firkin import osu_allreduce.txt --world 16 --out imported\n"
      "  firkin import times.csv --collective all_reduce --out imported\n"
      "  firkin import layer-sizes.csv layer-times.csv allreduce.csv --out imported\n"
      "  firkin predict --tensors imported/tensors.csv \\\n"
      "    --allreduce imported/allreduce.csv\n");
  app.add_option("FILE", flags->files, "files to convert");
  app.add_option("--world", flags->options.world_size, "number of ranks, for files that do not say it;\nof others, the rows of as many");
  add_import_flags(app, flags->options);
  add_output_flags(app, flags->common, "import");
  return [flags, &app] {
    if (app.count("--world") > 0 && flags->options.world_size < 2) {
      throw InputError(fmt::format("--world {}: expected at least 2", flags->options.world_size));
    }
    return run(*flags);
  };
}

}  // namespace firkin::cli
