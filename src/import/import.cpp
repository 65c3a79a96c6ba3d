#include "import.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "firkin/base/csv.h"
#include "firkin/base/error.h"
#include "firkin/base/file.h"

namespace firkin {
namespace {

constexpr const char* kExpectedFiles =
    "layer sizes, layer times or all-reduce times of CMSC 828G, or what nccl-tests prints or writes with -J";

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

void append(Imported& imported, AllReduceTable table) {
  imported.table.insert(imported.table.end(), table.begin(), table.end());
}

}  // namespace

std::string name_of(ImportFormat format) {
  constexpr std::array kNames = {"layer sizes of CMSC 828G", "layer times of CMSC 828G", "all-reduce times of CMSC 828G",
                                 "output of nccl-tests"};
  return kNames[static_cast<size_t>(format)];
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
  if (sizes) imported = parse_cmsc828g_profile(sizes->text, sizes->file, times->text, times->file, options.model);
  for (const auto& [file, text, format] : texts) {
    imported.formats.push_back(format);
    if (format == ImportFormat::kCmsc828gAllReduce) append(imported, parse_cmsc828g_allreduce(text, file));
    if (format != ImportFormat::kNcclTests) continue;
    Imported of_file = parse_nccl_tests(text, file, options);
    append(imported, std::move(of_file.table));
    imported.notes.insert(imported.notes.end(), of_file.notes.begin(), of_file.notes.end());
  }
  return imported;
}

}  // namespace firkin
