#include "import.h"

#include <fmt/format.h>

#include <algorithm>

#include "firkin/base/csv.h"
#include "firkin/base/error.h"
#include "firkin/base/file.h"

namespace firkin {
namespace {

constexpr const char* kExpectedFiles =
    "layer sizes, layer times or all-reduce times of CMSC 828G, or what nccl-tests prints or writes with -J";

struct ImportText {
  std::string file, text;
};

// The text of the one file of that format, or null. Throws InputError for two.
const ImportText* only_one(const std::vector<ImportText>& texts, const std::vector<ImportFormat>& formats, ImportFormat wanted) {
  const ImportText* found = nullptr;
  for (size_t i = 0; i < texts.size(); ++i) {
    if (formats[i] != wanted) continue;
    if (found) throw InputError(fmt::format("{}:1: {}, as in {}; expected one such file", texts[i].file, name_of(wanted), found->file));
    found = &texts[i];
  }
  return found;
}

void append(Imported& imported, AllReduceTable table) {
  imported.table.insert(imported.table.end(), table.begin(), table.end());
}

}  // namespace

std::string name_of(ImportFormat format) {
  switch (format) {
    case ImportFormat::kCmsc828gSizes:
      return "layer sizes of CMSC 828G";
    case ImportFormat::kCmsc828gTimes:
      return "layer times of CMSC 828G";
    case ImportFormat::kCmsc828gAllReduce:
      return "all-reduce times of CMSC 828G";
    case ImportFormat::kNcclTests:
      return "output of nccl-tests";
  }
  return "";
}

ImportFormat recognize_import(std::string_view text, const std::string& file) {
  const size_t first = std::min(text.find_first_not_of(" \t\r\n"), text.size());
  const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(first), '\n');
  std::string_view begin = text.substr(first);
  begin = begin.substr(0, std::min(begin.find('\n'), kLongestCsvLine));
  const auto holds = [&](std::string_view words) { return begin.find(words) != std::string_view::npos; };
  if (begin.starts_with('{') || begin.starts_with('#') || holds("NCCL")) return ImportFormat::kNcclTests;
  if (holds("Params")) return ImportFormat::kCmsc828gSizes;
  if (holds("world_size") || holds("backend")) return ImportFormat::kCmsc828gAllReduce;
  if (holds("Name")) return ImportFormat::kCmsc828gTimes;
  throw InputError(fmt::format("{}:{}: unknown format; expected {}", file, begin.empty() ? 1 : line, kExpectedFiles));
}

Imported import_files(const std::vector<std::filesystem::path>& files, const ImportOptions& options) {
  if (files.empty()) throw InputError(fmt::format("no file to import; expected {}", kExpectedFiles));
  std::vector<ImportText> texts;
  std::vector<ImportFormat> formats;
  for (const std::filesystem::path& path : files) {
    texts.push_back({path.string(), read_text_file(path, kLongestCsvLine, kExpectedFiles)});
    formats.push_back(recognize_import(texts.back().text, texts.back().file));
  }
  const ImportText* sizes = only_one(texts, formats, ImportFormat::kCmsc828gSizes);
  const ImportText* times = only_one(texts, formats, ImportFormat::kCmsc828gTimes);
  if (!sizes != !times) {
    const auto& [there, missing] = sizes ? std::pair(sizes, ImportFormat::kCmsc828gTimes) : std::pair(times, ImportFormat::kCmsc828gSizes);
    throw InputError(fmt::format("{}:1: without {}; expected both", there->file, name_of(missing)));
  }
  Imported imported;
  if (sizes) imported = parse_cmsc828g_profile(sizes->text, sizes->file, times->text, times->file, options.model);
  for (size_t i = 0; i < texts.size(); ++i) {
    if (formats[i] == ImportFormat::kCmsc828gAllReduce) append(imported, parse_cmsc828g_allreduce(texts[i].text, texts[i].file));
    if (formats[i] != ImportFormat::kNcclTests) continue;
    Imported of_file = parse_nccl_tests(texts[i].text, texts[i].file, options);
    append(imported, std::move(of_file.table));
    imported.notes.insert(imported.notes.end(), of_file.notes.begin(), of_file.notes.end());
  }
  imported.formats = std::move(formats);
  return imported;
}

}  // namespace firkin
