#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "benchmark_rows.h"
#include "firkin/base/csv.h"
#include "firkin/base/error.h"
#include "firkin/base/units.h"

namespace firkin {
namespace {

// Keeps the rows whose `member` is one value: `asked`, else the first of `preferred` that occurs, else the only one.
void keep_one(BenchmarkRows& found, std::string BenchmarkRow::*member, const char* what, const std::string& asked,
              const std::vector<std::string>& preferred, const std::string& expected) {
  std::vector<std::string> values;
  for (const BenchmarkRow& row : found.rows) {
    if (std::ranges::find(values, row.*member) == values.end()) values.push_back(row.*member);
  }
  std::string chosen = asked;
  if (chosen.empty() && values.size() > 1) {
    const auto occurs = [&](const std::string& value) { return std::ranges::find(values, value) != values.end(); };
    const auto best = std::ranges::find_if(preferred, occurs);
    if (best == preferred.end()) {
      fail(found.rows.front().where, fmt::format("rows of the {}s {}; expected {}", what, fmt::join(values, ", "), expected));
    }
    chosen = *best;
  }
  if (chosen.empty()) return;
  const auto is_other = [&](const BenchmarkRow& row) {
    if (row.*member == chosen) return false;
    found.skip(fmt::format("rows of the {} '{}', which is not {}", what, row.*member, chosen), row.where);
    return true;
  };
  std::erase_if(found.rows, is_other);
}

}  // namespace

std::string at_line(const std::string& file, int64_t line) {
  return fmt::format("{}:{}", file, line);
}

void fail(const std::string& where, const std::string& message) {
  throw InputError(where + ": " + message);
}

void BenchmarkRows::skip(const std::string& what, const std::string& where) {
  const auto known = std::ranges::find(skipped, what, &SkippedRows::what);
  if (known == skipped.end()) {
    skipped.push_back({what, 1, where});
  } else {
    ++known->count;
  }
}

Imported import_rows(BenchmarkRows found, const ImportOptions& options, const std::string& expected, const std::string& end) {
  std::erase_if(found.rows, [&](const BenchmarkRow& row) {
    if (row.bytes == 0) found.skip("rows of 0 bytes", row.where);
    return row.bytes == 0;
  });
  keep_one(found, &BenchmarkRow::type, "element type", options.dtype, {"float", "float32", "MPI_FLOAT"},
           "one, or --dtype with one of them");
  keep_one(found, &BenchmarkRow::operation, "operation", "", {"sum"}, "one");
  if (found.rows.empty()) {
    if (found.skipped.empty()) fail(end, "no measurements; expected " + expected);
    const SkippedRows& first = found.skipped.front();
    fail(first.first, fmt::format("only {}; expected {}", first.what, expected));
  }
  Imported imported;
  for (const BenchmarkRow& row : found.rows) {
    const int64_t world_size = row.world_size > 0 ? row.world_size : options.world_size;
    if (world_size < 1) fail(row.where, "the number of ranks is not stated; expected --world, at least 2");
    if (row.bytes < 0) fail(row.where, fmt::format("the size is {}; expected at least 0", row.bytes));
    if (const char* wanted = expected_of_measured(row.seconds)) {
      fail(row.where, fmt::format("the time is {} s; expected {}", row.seconds, wanted));
    }
    imported.table.push_back(
        {.bytes = row.bytes, .world_size = world_size, .median_s = row.seconds, .mean_s = row.seconds, .stdev_s = row.stdev_s});
  }
  for (const SkippedRows& rows : found.skipped) {
    imported.notes.push_back(fmt::format("{}: skipped {} {}", rows.first, rows.count, rows.what));
  }
  return imported;
}

namespace {

// UTF-16 with a byte-order mark, which PowerShell's > writes, as ASCII; what else it holds becomes '?'.
std::string from_utf16(std::string_view text, bool little_endian) {
  constexpr unsigned kMark = 0xFEFF, kNoBreakSpace = 0xA0, kAscii = 0x80;
  std::string result;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    const auto high = static_cast<unsigned char>(text[little_endian ? i + 1 : i]);
    const auto low = static_cast<unsigned char>(text[little_endian ? i : i + 1]);
    const unsigned code = 256u * high + low;
    if (code != kMark) result += code < kAscii ? static_cast<char>(code) : code == kNoBreakSpace ? ' ' : '?';
  }
  return result;
}

// The bytes of a non-ASCII blank at the beginning of `rest` (U+2000 to U+200A, U+202F, no-break, ideographic, ...); 0:
// none. `before`: the character before.
size_t wide_blank(std::string_view rest, char before) {
  const bool after_ascii = static_cast<unsigned char>(before) < 0x80;
  if (rest.starts_with("\xC2\xA0")) return 2;
  if (rest.starts_with("\xE2\x80\xAF") || rest.starts_with("\xE3\x80\x80")) return 3;
  if (rest.starts_with("\xE2\x80") && rest.size() > 2 && static_cast<unsigned char>(rest[2]) <= 0x8A) return 3;
  return after_ascii && rest.starts_with('\xA0') ? 1 : 0;  // ISO 8859-1's
}

}  // namespace

std::string undecorated(std::string_view text) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF", kEscape = "\x1b[";
  std::string converted;
  if (const bool little = text.starts_with("\xFF\xFE"); little || text.starts_with("\xFE\xFF")) {
    converted = from_utf16(text, little);
    text = converted;
  }
  std::string result;
  result.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const std::string_view rest = text.substr(i);
    if (rest.starts_with(kEscape)) {
      i += kEscape.size();
      while (i < text.size() && text[i] >= 0x20 && text[i] < 0x40) ++i;  // parameters, then one letter
      i += i < text.size() && text[i] != '\n' ? 1 : 0;
    } else if (rest.starts_with(kByteOrderMark)) {
      i += kByteOrderMark.size();
    } else if (const size_t bytes = wide_blank(rest, i > 0 ? text[i - 1] : ' '); bytes > 0) {
      result += ' ';
      i += bytes;
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
  for (size_t begin = line.find_first_not_of(blanks); begin != std::string_view::npos; begin = line.find_first_not_of(blanks)) {
    line.remove_prefix(begin);
    const size_t length = std::min(line.find_first_of(blanks), line.size());
    words.push_back(line.substr(0, length));
    line.remove_prefix(length);
  }
  return words;
}

std::string_view untagged(std::string_view word) {
  for (const std::string_view tag : {"<stdout>:", "<stdout>"}) {
    const size_t found = word.find(tag);
    if (found != std::string_view::npos) return word.substr(found + tag.size());
  }
  return word;
}

std::optional<int64_t> tagged_integer(std::string_view word) {
  return parse_number<int64_t>(untagged(word));
}

// ---- osu_allreduce of the OSU micro-benchmarks: "# OSU MPI Allreduce Latency Test v7.3", "# Size  Avg Latency(us) ...", a
// row for each size.

namespace {

// The name of the benchmark in its title, "OSU MPI-CUDA Allreduce Latency Test v7.3": "Allreduce", "Non-blocking
// Allreduce"; "Latency" alone for one between two ranks. Empty: the line is no title.
std::string title_in(const std::vector<std::string_view>& words) {
  const auto begin = std::ranges::find(words, "OSU");
  const auto end = std::find(begin, words.end(), "Test");
  if (end == words.end() || end - begin < 3) return "";
  std::string name;
  for (auto word = begin + 2; word != end; ++word) {
    if (*word != "Latency" || word == begin + 2) fmt::format_to(std::back_inserter(name), "{}{}", name.empty() ? "" : " ", *word);
  }
  return name;
}

// How many columns the header line names, from "Size" on; 0: the line is no header.
size_t columns_in_header(const std::vector<std::string_view>& words) {
  const auto size = std::ranges::find(words, "Size");
  const auto is_column = [](std::string_view word) {
    return word == "Size" || word == "Iterations" || word == "Validation" || word.ends_with(')');
  };
  const auto columns = static_cast<size_t>(std::count_if(size, words.end(), is_column));
  return columns > 1 ? columns : 0;
}

}  // namespace

bool belongs_to_osu(const std::vector<std::string_view>& words) {
  return !title_in(words).empty();
}

Imported parse_osu(std::string_view text, const std::string& file, const ImportOptions& options) {
  constexpr double kMicrosecond = 1e-6;
  const std::string clean = undecorated(text);
  BenchmarkRows rows;
  std::string benchmark, type;
  size_t columns = 0;
  int64_t last_line = 1;
  for_each_line(clean, [&](int64_t number, std::string_view line) {
    last_line = number;
    const std::vector<std::string_view> words = words_of(line);
    const auto datatype = std::ranges::find(words, "Datatype:");
    if (const std::string title = title_in(words); !title.empty()) {
      benchmark = title;
      type.clear();
      columns = 0;
    } else if (datatype != words.end() && datatype + 1 != words.end()) {
      type = datatype[1].substr(0, datatype[1].find('.'));
    } else if (const size_t named = columns_in_header(words); named > 0) {
      columns = named;
    } else if (columns > 0 && words.size() >= columns) {
      const size_t begin = words.size() - columns;
      const auto bytes = tagged_integer(words[begin]);
      const auto time_us = parse_number<double>(words[begin + 1]);
      if (!bytes || !time_us) return;
      if (benchmark != "Allreduce") return rows.skip("rows of OSU's " + benchmark, at_line(file, number));
      if (words.back() == "Fail") return rows.skip("rows whose validation failed", at_line(file, number));
      rows.rows.push_back({.where = at_line(file, number), .bytes = *bytes, .seconds = *time_us * kMicrosecond, .type = type});
    }
  });
  return import_rows(std::move(rows), options, "the results of osu_allreduce", at_line(file, last_line));
}

}  // namespace firkin
