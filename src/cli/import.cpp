// firkin import: other people's measurements as tensors.csv and allreduce.csv.
#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <memory>
#include <numeric>

#include "command.h"
#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "firkin/base/units.h"
#include "import/import.h"
#include "results/results.h"

namespace firkin::cli {
namespace {

constexpr const char* kTensorsFile = "tensors.csv";
constexpr const char* kAllReduceFile = "allreduce.csv";

struct ImportFlags {
  std::string sizes, times, allreduce;
  std::string model = "gpt2-large";
  std::string file;
  int64_t world = 0;
  bool in_place = false;
  CommonFlags common;
};

// Notes go where the result does not: to standard error, and into the JSON.
void say(const nlohmann::json& notes) {
  for (const nlohmann::json& note : notes) fmt::print(stderr, "firkin: {}\n", note.get<std::string>());
}

void finish(const ImportFlags& flags, const nlohmann::json& result) {
  say(result["notes"]);
  if (flags.common.json) return print_json(result);
  if (result.contains("tensors")) {
    fmt::print("{} tensors, {} of gradients, ready within {}\n", result["tensors"].get<size_t>(), format_bytes(result[kGradientBytesKey]),
               format_seconds(result[kBackwardKey]));
  }
  fmt::print("{} all-reduce times\n", result["measurements"].get<size_t>());
  for (const nlohmann::json& file : result["files"]) fmt::print("wrote {}\n", file.get<std::string>());
}

nlohmann::json table_json(const AllReduceTable& table) {
  return {{"measurements", table.size()}, {"world_sizes", world_sizes(table)}};
}

int import_cmsc828g(ImportFlags& flags) {
  claim_output_folder(flags.common);
  const Imported imported = import_files({flags.sizes, flags.times, flags.allreduce}, {.model = flags.model});
  if (!imported.profile || imported.table.empty()) throw InputError("expected layer sizes, layer times and all-reduce times");
  const std::filesystem::path out = flags.common.out;
  keep_older(flags.common, {kTensorsFile, kAllReduceFile});
  write_tensors_csv(out / kTensorsFile, *imported.profile);
  write_allreduce_csv(out / kAllReduceFile, imported.table);

  nlohmann::json result = table_json(imported.table);
  const std::vector<int64_t>& bytes = imported.profile->bytes;
  result["source"] = "cmsc828g";
  result["model"] = flags.model;
  result["tensors"] = bytes.size();
  result[kGradientBytesKey] = std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
  result[kBackwardKey] = imported.profile->backward_s;
  result["notes"] = imported.notes;
  result["files"] = {(out / kTensorsFile).string(), (out / kAllReduceFile).string()};
  finish(flags, result);
  return 0;
}

int import_nccl_tests(ImportFlags& flags) {
  claim_output_folder(flags.common);
  if (flags.world < 2) throw InputError(fmt::format("--world {}: expected at least 2", flags.world));
  const Imported imported = import_files({flags.file}, {.world_size = flags.world, .in_place = flags.in_place});
  const std::filesystem::path file = std::filesystem::path(flags.common.out) / kAllReduceFile;
  keep_older(flags.common, {kAllReduceFile});
  write_allreduce_csv(file, imported.table);

  nlohmann::json result = table_json(imported.table);
  result["source"] = "nccl-tests";
  result["in_place"] = flags.in_place;
  result["notes"] = imported.notes;
  result["files"] = {file.string()};
  finish(flags, result);
  return 0;
}

Run declare_cmsc828g(CLI::App& app) {
  auto flags = std::make_shared<ImportFlags>();
  app.add_option("--sizes", flags->sizes, "layer sizes: Name, No. Params")->required();
  app.add_option("--times", flags->times, "gradient times: Name, mean (seconds)")->required();
  app.add_option("--allreduce", flags->allreduce, "all-reduce times (seconds)")->required();
  app.add_option("--model", flags->model, "the model of these layers")
      ->capture_default_str()
      ->check(CLI::IsMember({"gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"}));
  add_output_flags(app, flags->common, "import");
  return [flags] { return import_cmsc828g(*flags); };
}

Run declare_nccl_tests(CLI::App& app) {
  auto flags = std::make_shared<ImportFlags>();
  app.add_option("FILE", flags->file, "output of all_reduce_perf, printed or from -J")->required();
  app.add_option("--world", flags->world, "number of ranks")->required();
  app.add_flag("--in-place", flags->in_place, "use the in-place times");
  add_output_flags(app, flags->common, "import");
  return [flags] { return import_nccl_tests(*flags); };
}

}  // namespace

Run declare_import(CLI::App& app) {
  static constexpr std::array kFormats = {
      Command{"cmsc828g", "the files of CMSC 828G's assignment 2", declare_cmsc828g},
      Command{"nccl-tests", "the table or the JSON file of all_reduce_perf", declare_nccl_tests},
  };
  app.footer(
      "  firkin import cmsc828g --sizes layer-sizes.csv --times layer-times.csv \\\n"
      "    --allreduce allreduce-times.csv --model gpt2-large --out imported\n"
      "  firkin import nccl-tests all_reduce.txt --world 16 --out imported\n"
      "  firkin predict --tensors imported/tensors.csv \\\n"
      "    --allreduce imported/allreduce.csv\n");
  return add_commands(app, kFormats);
}

}  // namespace firkin::cli
