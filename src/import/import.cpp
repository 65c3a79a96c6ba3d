#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <ranges>

#include "benchmark_rows.h"
#include "firkin/base/csv.h"
#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "firkin/base/units.h"
#include "nccl_inspector.h"
#include "profiler_trace.h"
#include "trace_events.h"
#include "unzipped.h"

namespace firkin {
namespace {

constexpr const char* kExpectedFiles =
    "a trace of torch.profiler, all-reduce times in CSV with a header such as bytes,time_us,ranks, a log of nccl-tests, rccl-tests, "
    "osu_allreduce, IMB-MPI1, oneCCL's benchmark or NCCL's Inspector, or layer sizes or layer times of CMSC 828G";

struct Format {
  ImportFormat format;
  const char* name;
  bool (*is_it)(std::string_view text);  // of a text without decoration; null for files that are read as streams
  // The all-reduce times in it; null for files of which several are read together.
  Imported (*read)(std::string_view text, const std::string& file, const ImportOptions& options);
};

// In the order in which a file is tried.
constexpr std::array kFormats = {
    Format{ImportFormat::kAllReduceCsv, "all-reduce times in CSV", is_allreduce_csv, parse_allreduce_times},
    Format{ImportFormat::kBenchmarkLog, "log of an all-reduce benchmark", is_benchmark_log, parse_benchmark_log},
    Format{ImportFormat::kCmsc828gSizes, "layer sizes of CMSC 828G",
           [](auto text) { return first_line(text).second.find("No. Params") != std::string_view::npos; }, nullptr},
    Format{ImportFormat::kCmsc828gTimes, "layer times of CMSC 828G", [](auto text) { return first_line(text).second.starts_with("Name,"); },
           nullptr},
    Format{ImportFormat::kNcclInspector, "log of NCCL's Inspector", nullptr, nullptr},
    Format{ImportFormat::kProfilerTrace, "trace of torch.profiler", nullptr, nullptr},
};

const Format& find_format(ImportFormat format) {
  return *std::ranges::find(kFormats, format, &Format::format);
}

// What is not read, after a phrase in it.
constexpr std::array<std::pair<std::string_view, const char*>, 8> kOthers = {{
    {"\"bus_bw\"", "JSON of nccl-tests (-J), which prints a log as well"},
    {"count(elems)", "output of nccom-test"},
    {"busbw(GB/s)", "output of NVSHMEM's perftest"},
    {"MSCCL++", "output of mscclpp-test"},
    {"Time, us", "output of ucc_perftest"},
    {"avg (GB/s)", "output of Gloo's benchmark"},
    {"time across ranks (ms)", "a log of Megatron-LM, whose times are of no single all-reduce"},
    {"nThread ", "a log of nccl-tests without the # before its lines"},
}};

struct ImportText {
  std::string file, text;
  ImportFormat format = {};
};

// The files of CMSC 828G's assignment among the texts: both, or none. Throws InputError for one alone, and for two of one
// format.
std::map<ImportFormat, const ImportText*> course_files(const std::vector<ImportText>& texts) {
  std::map<ImportFormat, const ImportText*> course;
  for (const ImportText& text : texts) {
    if (find_format(text.format).read) continue;
    const auto [same, is_first] = course.emplace(text.format, &text);
    if (!is_first)
      fail(at_line(text.file, 1), fmt::format("{}, as in {}; expected one such file", name_of(text.format), same->second->file));
  }
  if (course.size() == 1) {
    const auto& [there, text] = *course.begin();
    const ImportFormat missing = there == ImportFormat::kCmsc828gSizes ? ImportFormat::kCmsc828gTimes : ImportFormat::kCmsc828gSizes;
    fail(at_line(text->file, 1), fmt::format("without {}; expected both", name_of(missing)));
  }
  return course;
}

}  // namespace

std::string name_of(ImportFormat format) {
  return find_format(format).name;
}

ImportFormat recognize_import(std::string_view text, const std::string& file) {
  const std::string clean = undecorated(text);
  if (is_zipped(text)) fail(at_line(file, 1), "zipped; expected it unzipped, since only traces and NCCL's Inspector may be zipped");
  if (clean.find('\0') != std::string::npos) {
    fail(at_line(file, 1), fmt::format("not a text: a byte is zero; expected UTF-8 (iconv -f UTF-16 -t UTF-8 {} converts UTF-16)", file));
  }
  for (const Format& format : kFormats) {
    if (format.is_it && format.is_it(clean)) return format.format;
  }
  const auto other = std::ranges::find_if(kOthers, [&](const auto& known) { return clean.find(known.first) != std::string::npos; });
  const char* found = other == kOthers.end() ? "unknown format" : other->second;
  fail(at_line(file, first_line(clean).first), fmt::format("{}; expected {}", found, kExpectedFiles));
}

Imported import_files(const std::vector<std::filesystem::path>& files, const ImportOptions& options) {
  if (files.empty()) throw InputError(fmt::format("no file to import; expected {}", kExpectedFiles));
  Imported imported;
  std::vector<ImportText> texts;
  std::vector<std::filesystem::path> traces, inspected;  // read as streams, those of all ranks together
  for (const std::filesystem::path& path : files) {
    const std::string beginning = unzipped_beginning(path);
    if (is_trace_text(beginning)) {
      traces.push_back(path);
      imported.formats.push_back(ImportFormat::kProfilerTrace);
    } else if (is_inspector_text(beginning)) {
      inspected.push_back(path);
      imported.formats.push_back(ImportFormat::kNcclInspector);
    } else {
      texts.push_back({path.string(), read_text_file(path, kLongestCsvLine, kExpectedFiles)});
      texts.back().format = recognize_import(texts.back().text, texts.back().file);
      imported.formats.push_back(texts.back().format);
    }
  }
  const std::map<ImportFormat, const ImportText*> course = course_files(texts);
  std::map<std::pair<int64_t, int64_t>, std::string> measured_in;  // bytes and ranks -> file
  const auto add = [&](const Imported& more, const std::string& file) {
    for (const AllReduceRow& row : more.table) {
      const auto& [first, is_new] = measured_in.emplace(std::pair(row.bytes, row.world_size), file);
      if (is_new) continue;
      throw InputError(fmt::format("{}: {} bytes on {} ranks, as in {}; expected the files of one run, or of one setting", file, row.bytes,
                                   row.world_size, first->second));
    }
    imported.table.insert(imported.table.end(), more.table.begin(), more.table.end());
    imported.notes.insert(imported.notes.end(), more.notes.begin(), more.notes.end());
  };
  if (!course.empty()) {
    const ImportText &sizes = *course.at(ImportFormat::kCmsc828gSizes), &times = *course.at(ImportFormat::kCmsc828gTimes);
    if (!traces.empty()) fail(at_line(sizes.file, 1), fmt::format("{} beside a trace; expected one profile", name_of(sizes.format)));
    const Imported of_course = parse_cmsc828g_profile(sizes.text, sizes.file, times.text, times.file);
    imported.profile = of_course.profile;
    imported.model = of_course.model;
    add(of_course, sizes.file);
  }
  ReadTrace traced;
  if (!traces.empty()) {
    traced = read_traces(traces, options.sizes);
    imported.profile = traced.profile;
    imported.traced = traced.run;
  }
  for (const ImportText& text : texts) {
    const Format& format = find_format(text.format);
    if (!format.read) continue;
    if (!options.where.empty() && text.format != ImportFormat::kAllReduceCsv) {
      fail(at_line(text.file, 1), fmt::format("{}; --where takes rows of all-reduce times in CSV", format.name));
    }
    add(format.read(text.text, text.file, options), text.file);
  }
  if (!inspected.empty()) add(read_nccl_inspector(inspected), inspected[0].string());
  // What was made to measure all-reduces says more than a run.
  if (imported.traced && imported.table.empty()) {
    imported.table = traced.table;
    if (!traced.why_no_table.empty()) imported.traced->findings.push_back(traced.why_no_table);
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
    ImportOptions options{.collective = "all_reduce", .in_place = true};
    if (!cluster.where.empty()) options.where.emplace_back(cluster.where);
    Imported imported = import_files({data_folder / cluster.file}, options);
    return {.title = std::string(cluster.title), .gpu = std::string(cluster.gpu), .table = std::move(imported.table), .world_size = ranks};
  }
  throw InputError(fmt::format("unknown cluster '{}'; expected one of {}, or one with its number of ranks behind it, such as aws-p4de-16",
                               name, fmt::join(kClusters | std::views::transform(&Cluster::name), ", ")));
}

}  // namespace firkin
