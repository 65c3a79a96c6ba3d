#include "benchmark_rows.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "firkin/base/error.h"
#include "firkin/base/units.h"

namespace firkin {
namespace {

// The element type to take: the one asked for, float32, or the only one. Throws InputError if there are others.
std::string choose_type(const std::vector<BenchmarkRow>& rows, const std::string& asked) {
  if (!asked.empty() || rows.empty()) return asked;
  std::vector<std::string> types;
  for (const BenchmarkRow& row : rows) {
    if (std::ranges::find(types, row.type) == types.end()) types.push_back(row.type);
  }
  if (types.size() == 1) return types[0];
  for (const char* float32 : {"float", "float32", "MPI_FLOAT"}) {
    if (std::ranges::find(types, float32) != types.end()) return float32;
  }
  fail(rows[0].where, fmt::format("rows of the element types {}; expected one, or --dtype with one of them", fmt::join(types, ", ")));
}

}  // namespace

std::string at_line(const std::string& file, int64_t line) {
  return fmt::format("{}:{}", file, line);
}

void fail(const std::string& where, const std::string& message) {
  throw InputError(where + ": " + message);
}

void BenchmarkRows::skip(const std::string& what, const std::string& where) {
  auto known = std::ranges::find(skipped, what, &SkippedRows::what);
  if (known == skipped.end()) known = skipped.insert(known, {what, 0, where});
  ++known->count;
}

Imported import_rows(BenchmarkRows found, const ImportOptions& options, const std::string& expected, const std::string& file) {
  const std::string type = choose_type(found.rows, options.dtype);
  Imported imported;
  std::set<std::pair<int64_t, int64_t>> measured;
  for (const BenchmarkRow& row : found.rows) {
    const int64_t world_size = row.world_size > 0 ? row.world_size : options.world_size;
    if (row.bytes == 0) {
      found.skip("rows of 0 bytes", row.where);
    } else if (!row.operation.empty() && row.operation != "sum") {
      found.skip(fmt::format("rows of the operation '{}', which is not sum", row.operation), row.where);
    } else if (row.type != type) {
      found.skip(fmt::format("rows of the element type '{}', which is not {}", row.type, type), row.where);
    } else if (world_size < 1) {
      fail(row.where, "the number of ranks is not stated; expected --world, at least 2");
    } else if (row.bytes < 0) {
      fail(row.where, fmt::format("the size is {}; expected at least 0", row.bytes));
    } else if (const char* wanted = expected_of_measured(row.seconds)) {
      fail(row.where, fmt::format("the time is {} s; expected {}", row.seconds, wanted));
    } else if (!measured.emplace(row.bytes, world_size).second) {
      fail(row.where, fmt::format("{} bytes on {} ranks twice; expected one run, or one setting, a file", row.bytes, world_size));
    } else {
      imported.table.push_back(
          {.bytes = row.bytes, .world_size = world_size, .median_s = row.seconds, .mean_s = row.seconds, .stdev_s = row.stdev_s});
    }
  }
  if (imported.table.empty() && found.skipped.empty()) fail(at_line(file, 1), "no measurements; expected " + expected);
  if (imported.table.empty()) fail(found.skipped[0].first, fmt::format("only {}; expected {}", found.skipped[0].what, expected));
  for (const auto& [what, count, first] : found.skipped) imported.notes.push_back(fmt::format("{}: skipped {} {}", first, count, what));
  return imported;
}

bool names_all_reduce(std::string_view name) {
  std::string letters;
  for (const char c : name) {
    if (c != '_' && c != '-' && c != ' ') letters += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return letters == "allreduce";
}

void require_collective(const ImportOptions& options, const std::string& where) {
  if (options.collective.empty()) fail(where, "which collective was timed is not stated; expected --collective all_reduce if it is that");
}

std::string undecorated(std::string_view text) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF", kNoBreakSpace = "\xC2\xA0", kEscape = "\x1b[";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  std::string result;
  result.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const std::string_view rest = text.substr(i);
    if (rest.starts_with(kEscape)) {
      i += kEscape.size();
      while (i < text.size() && text[i] >= 0x20 && text[i] < 0x40) ++i;  // parameters, then one letter
      i += i < text.size() && text[i] != '\n' ? 1 : 0;
    } else if (rest.starts_with(kNoBreakSpace)) {
      result += ' ';
      i += kNoBreakSpace.size();
    } else {
      result += text[i] == '\r' ? ' ' : text[i];
      ++i;
    }
  }
  return result;
}

void for_each_line(std::string_view text, const std::function<void(int64_t number, std::string_view line)>& take) {
  for (int64_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    take(number, text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

std::vector<std::string_view> words_of(std::string_view line, std::string_view blanks) {
  std::vector<std::string_view> words;
  for (size_t begin = line.find_first_not_of(blanks), end = 0; begin < line.size(); begin = line.find_first_not_of(blanks, end)) {
    end = std::min(line.find_first_of(blanks, begin), line.size());
    words.push_back(line.substr(begin, end - begin));
  }
  return words;
}

std::pair<int64_t, std::string_view> first_line(std::string_view text) {
  std::pair<int64_t, std::string_view> first = {1, ""};
  for_each_line(text, [&](int64_t number, std::string_view line) {
    const std::vector<std::string_view> words = words_of(line);
    if (first.second.empty() && !words.empty() && !words[0].starts_with('#')) first = {number, line};
  });
  return first;
}

}  // namespace firkin
