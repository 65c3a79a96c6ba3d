// firkin import: other people's measurements as tensors.csv and allreduce.csv.
#include "import/import.h"
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
  keep_older(flags.common, {kTensorsFile, kAllReduceFile});
  nlohmann::json result = {{"notes", imported.notes}, {"files", nlohmann::json::array()}, {"formats", nlohmann::json::array()}};
  for (const ImportFormat format : imported.formats) result["formats"].push_back(name_of(format));
  if (imported.profile) {
    result["model"] = imported.model;
    result["tensors"] = imported.profile->bytes.size();
    result[kGradientBytesKey] = imported.profile->total_bytes();
    result[kBackwardKey] = imported.profile->backward_s;
    result["files"].push_back((out / kTensorsFile).string());
    write_tensors_csv(out / kTensorsFile, *imported.profile);
  }
  if (!imported.table.empty()) {
    result["measurements"] = imported.table.size();
    result["world_sizes"] = world_sizes(imported.table);
    result["files"].push_back((out / kAllReduceFile).string());
    write_allreduce_csv(out / kAllReduceFile, imported.table);
  }
  return result;
}

int run(ImportFlags& flags) {
  // Until 0.1 the format stood before the files.
  std::erase_if(flags.files, [](const std::string& word) { return word == "cmsc828g" || word == "nccl-tests"; });
  if (flags.files.empty()) throw InputError("import: no file; expected at least one");
  claim_output_folder(flags.common);
  const Imported imported = import_files({flags.files.begin(), flags.files.end()}, flags.options);
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

Run declare_import(CLI::App& app) {
  auto flags = std::make_shared<ImportFlags>();
  app.footer(
      "Recognises files by their content: layer sizes, layer times and all-reduce\n"
      "times of CMSC 828G's assignment 2 (in any order), or the table or JSON file of\n"
      "all_reduce_perf (nccl-tests), which needs --world.\n\n"
      "  firkin import layer-sizes.csv layer-times.csv allreduce.csv --out imported\n"
      "  firkin import all_reduce.txt --world 16 --out imported\n"
      "  firkin predict --tensors imported/tensors.csv \\\n"
      "    --allreduce imported/allreduce.csv\n");
  app.add_option("FILE", flags->files, "files to convert");
  app.add_option("--world", flags->options.world_size, "number of ranks, for nccl-tests");
  app.add_flag("--in-place", flags->options.in_place, "use the in-place times of nccl-tests");
  app.add_option("--model", flags->options.model, "the model of these layers (default: by their number)")
      ->check(CLI::IsMember({"gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"}));
  for (const char* old_name : {"--sizes", "--times", "--allreduce"}) {
    app.add_option_function<std::string>(old_name, [flags](const std::string& file) { flags->files.push_back(file); })->group("");
  }
  add_output_flags(app, flags->common, "import");
  return [flags, &app] {
    if (app.count("--world") > 0 && flags->options.world_size < 2) {
      throw InputError(fmt::format("--world {}: expected at least 2", flags->options.world_size));
    }
    return run(*flags);
  };
}

}  // namespace firkin::cli
