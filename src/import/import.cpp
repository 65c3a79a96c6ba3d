#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <ranges>

#include "benchmark_rows.h"
#include "firkin/base/csv.h"
#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "firkin/base/units.h"

namespace firkin {
namespace {

constexpr const char* kExpectedFiles =
    "layer sizes or layer times of CMSC 828G, all-reduce times in CSV with a header such as bytes,time_us,ranks, or a log of nccl-tests, "
    "osu_allreduce or IMB-MPI1";

// Benchmarks whose output is not read, after a phrase in it.
constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kOtherBenchmarks = {{
    {"count(elems)", "nccom-test"},
    {"busbw(GB/s)", "NVSHMEM's perftest"},
    {"MSCCL++", "mscclpp-test"},
    {"Time, us", "ucc_perftest"},
    {"avg (GB/s)", "Gloo's benchmark"},
}};

struct ImportText {
  std::string file, text;
  ImportFormat format = {};
};

// The text of the one file of that format, or null. Throws InputError for two.
const ImportText* only_one(const std::vector<ImportText>& texts, ImportFormat wanted) {
  const ImportText* found = nullptr;
  for (const ImportText& text : texts) {
    if (text.format != wanted) continue;
    if (found) throw InputError(fmt::format("{}:1: {}, as in {}; expected one such file", text.file, name_of(wanted), found->file));
    found = &text;
  }
  return found;
}

Imported parse_allreduce(const ImportText& text, const ImportOptions& options) {
  if (!options.where.empty() && text.format != ImportFormat::kAllReduceCsv) {
    throw InputError(fmt::format("{}:1: {}; --where takes rows of all-reduce times in CSV", text.file, name_of(text.format)));
  }
  if (text.format == ImportFormat::kNcclTests) return parse_nccl_tests(text.text, text.file, options);
  if (text.format == ImportFormat::kMpiBenchmark) return parse_mpi_benchmark(text.text, text.file, options);
  return parse_allreduce_times(text.text, text.file, options);
}

}  // namespace

std::string name_of(ImportFormat format) {
  constexpr std::array kNames = {"layer sizes of CMSC 828G", "layer times of CMSC 828G", "all-reduce times in CSV", "output of nccl-tests",
                                 "output of an MPI benchmark"};
  return kNames[static_cast<size_t>(format)];
}

ImportFormat recognize_import(std::string_view text, const std::string& file) {
  const std::string clean = undecorated(text);
  if (clean.find('\0') != std::string::npos) {
    fail(at_line(file, 1),
         fmt::format("holds bytes of 0; expected text in UTF-8, not compressed (iconv -f UTF-16LE -t UTF-8 {} converts UTF-16)", file));
  }
  if (is_json(clean)) return ImportFormat::kNcclTests;
  bool nccl_header = false, nccl_row = false, mpi_benchmark = false, mpi_allreduce = false;
  std::string_view first;  // the first line that is neither empty nor a comment
  int64_t first_number = 1;
  for_each_line(clean, [&](int64_t number, std::string_view line) {
    const std::vector<std::string_view> words = words_of(line);
    if (words.empty()) return;
    const std::string title = mpi_title_in(line);
    mpi_benchmark = mpi_benchmark || !title.empty();
    mpi_allreduce = mpi_allreduce || is_mpi_allreduce(title);
    nccl_header = nccl_header || is_nccl_tests_header(line);
    nccl_row = nccl_row || is_nccl_tests_row(line);
    if (!first.empty() || words[0].starts_with('#')) return;
    first = line;
    first_number = number;
  });
  const auto holds = [&](std::string_view words) { return clean.find(words) != std::string::npos; };
  if (nccl_header && mpi_allreduce) fail(at_line(file, 1), "all-reduces of both nccl-tests and MPI; expected one file each");
  if (nccl_header) return ImportFormat::kNcclTests;
  if (is_allreduce_csv_header(first)) return ImportFormat::kAllReduceCsv;
  if (mpi_benchmark) return ImportFormat::kMpiBenchmark;
  if (first.find("Params") != std::string_view::npos) return ImportFormat::kCmsc828gSizes;
  if (first.find("Name,") != std::string_view::npos) return ImportFormat::kCmsc828gTimes;
  const auto other = std::ranges::find_if(kOtherBenchmarks, [&](const auto& known) { return holds(known.first); });
  const bool is_unknown = other == kOtherBenchmarks.end();
  if (is_unknown && (nccl_row || holds("NCCL INFO") || holds("NCCL WARN") || holds("nThread"))) return ImportFormat::kNcclTests;
  const std::string found = is_unknown ? "unknown format" : fmt::format("output of {}", other->second);
  fail(at_line(file, first_number), fmt::format("{}; expected {}", found, kExpectedFiles));
}

Imported import_files(const std::vector<std::filesystem::path>& files, const ImportOptions& options) {
  if (files.empty()) throw InputError(fmt::format("no file to import; expected {}", kExpectedFiles));
  std::vector<ImportText> texts;
  for (const std::filesystem::path& path : files) {
    texts.push_back({path.string(), read_text_file(path, kLongestCsvLine, kExpectedFiles)});
    texts.back().format = recognize_import(texts.back().text, texts.back().file);
  }
  const ImportText* sizes = only_one(texts, ImportFormat::kCmsc828gSizes);
  const ImportText* times = only_one(texts, ImportFormat::kCmsc828gTimes);
  if (!sizes != !times) {
    const auto& [there, missing] = sizes ? std::pair(sizes, ImportFormat::kCmsc828gTimes) : std::pair(times, ImportFormat::kCmsc828gSizes);
    throw InputError(fmt::format("{}:1: without {}; expected both", there->file, name_of(missing)));
  }
  Imported imported;
  if (sizes) imported = parse_cmsc828g_profile(sizes->text, sizes->file, times->text, times->file);
  for (const ImportText& text : texts) {
    imported.formats.push_back(text.format);
    if (text.format == ImportFormat::kCmsc828gSizes || text.format == ImportFormat::kCmsc828gTimes) continue;
    const Imported of_file = parse_allreduce(text, options);
    imported.table.insert(imported.table.end(), of_file.table.begin(), of_file.table.end());
    imported.notes.insert(imported.notes.end(), of_file.notes.begin(), of_file.notes.end());
  }
  return imported;
}

namespace {

struct Cluster {
  std::string_view name, title, gpu, file;
  std::string_view where = {};  // the rows to read, as COLUMN=VALUE
};

constexpr std::array kClusters = {
    Cluster{"alps-gh200", "CSCS Alps, 4 GH200 a node, Slingshot-11", "gh200", "allreduce_alps_gh200_4to2048gpu.csv",
            "config=cross_nic-ofi1.9.2"},
    Cluster{"aws-p4de", "AWS p4de.24xlarge, 8 A100 a node, EFA", "a100", "allreduce_aws_p4de_16xA100.csv"},
    Cluster{"azure-nd-a100", "Azure ND A100 v4, 8 A100 a node, InfiniBand", "a100", "allreduce_azure_a100_1to128gpu.csv"},
    Cluster{"cs336-pcie", "PCIe (CS336), A100 assumed", "a100", "gpu_sweeps/allreduce_damek_nccl.csv"},
    Cluster{"h200", "8 H200, NVLink", "h200", "allreduce_8xH200.csv"},
    Cluster{"superbench-a100", "8 A100, NVLink (SuperBench)", "a100", "allreduce_superbench_8xA100_40GB.csv"},
    Cluster{"zaratan", "Zaratan, 4 A100 a node (CMSC 828G)", "a100", "cmsc828g/allreduce-times.csv"},
};

}  // namespace

PublishedTimes read_cluster(const std::string& name, const std::filesystem::path& data_folder) {
  for (const Cluster& cluster : kClusters) {
    if (!name.starts_with(cluster.name)) continue;
    const std::string_view rest = std::string_view(name).substr(cluster.name.size());
    const int64_t ranks = rest.starts_with('-') ? parse_number<int64_t>(rest.substr(1)).value_or(0) : 0;
    if (!rest.empty() && ranks < 2) continue;
    ImportOptions options{.in_place = true};
    if (!cluster.where.empty()) options.where.emplace_back(cluster.where);
    Imported imported = import_files({data_folder / cluster.file}, options);
    return {.title = std::string(cluster.title), .gpu = std::string(cluster.gpu), .table = std::move(imported.table), .world_size = ranks};
  }
  throw InputError(fmt::format("unknown cluster '{}'; expected one of {}, or one with its number of ranks behind it, such as aws-p4de-16",
                               name, fmt::join(kClusters | std::views::transform(&Cluster::name), ", ")));
}

}  // namespace firkin
