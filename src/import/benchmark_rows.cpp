#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <initializer_list>
#include <iterator>
#include <set>
#include <span>

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
  auto known = std::ranges::find(skipped, what, &SkippedRows::what);
  if (known == skipped.end()) known = skipped.insert(known, {what, 0, where});
  ++known->count;
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
  std::set<int64_t> sizes;  // of rows that do not state the number of ranks
  std::set<std::string> doubts;
  for (BenchmarkRow& row : found.rows) {
    const int64_t world_size = row.world_size > 0 ? row.world_size : options.world_size;
    if (world_size < 1) fail(row.where, "the number of ranks is not stated; expected --world, at least 2");
    if (row.bytes < 0) fail(row.where, fmt::format("the size is {}; expected at least 0", row.bytes));
    if (const char* wanted = expected_of_measured(row.seconds)) {
      fail(row.where, fmt::format("the time is {} s; expected {}", row.seconds, wanted));
    }
    if (row.world_size == 0 && !sizes.insert(row.bytes).second) {
      row.doubt = fmt::format("a size for the second time, taken to be of {} ranks again (--world)", world_size);
    }
    if (!row.doubt.empty() && doubts.insert(row.doubt).second) imported.notes.push_back(row.where + ": " + row.doubt);
    imported.table.push_back(
        {.bytes = row.bytes, .world_size = world_size, .median_s = row.seconds, .mean_s = row.seconds, .stdev_s = row.stdev_s});
  }
  for (const auto& [what, count, first] : found.skipped) imported.notes.push_back(fmt::format("{}: skipped {} {}", first, count, what));
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

std::string collective_in(std::string_view word) {
  constexpr std::array<std::string_view, 12> kCollectives = {"allreduce", "allgather", "broadcast", "bcast",   "reduce",   "reducescatter",
                                                             "alltoall",  "alltoallv", "gather",    "scatter", "sendrecv", "hypercube"};
  const bool is_kernel = word.find("Kernel") != std::string_view::npos;  // ncclDevKernel_ReduceScatter_Sum_f32_RING_LL
  std::string name;
  for (const char c : word) {
    if (std::isalpha(static_cast<unsigned char>(c))) name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  for (const std::string_view end : {"nccl", "rccl", "mpi", "cd", "perf", "intotensor", "tensor", "single", "base"}) {  // cd: c10d
    if (name.starts_with(end)) name.erase(0, end.size());
    if (name.ends_with(end)) name.resize(name.size() - end.size());
  }
  const auto is_named = [&](std::string_view one) {
    return name == one || (is_kernel && one.size() > 7 && name.find(one) != std::string::npos);
  };
  return std::ranges::any_of(kCollectives, is_named) ? name : "";
}

// ---- MPI's benchmarks: a title, a header that names the columns, a row for each size.
//
// OSU: "# OSU MPI Allreduce Latency Test v7.3", "# Datatype: MPI_FLOAT.", "# Size  Avg Latency(us)  Min Latency(us) ...".
// Intel, and oneCCL's: "# Benchmarking Allreduce", "# #processes = 8", "#bytes #repetitions t_min[usec] t_max[usec] ...".

namespace {

constexpr std::string_view kMpiBlanks = " \t:=;";

// The columns that a line names, from the sizes on, of several words each in OSU's; none: the line is no header.
std::vector<std::string_view> mpi_columns_in(const std::vector<std::string_view>& words) {
  const auto size = std::ranges::find_if(words, [](std::string_view word) { return word == "Size" || word == "#bytes"; });
  const auto is_column = [&](std::string_view word) {
    return *size == "#bytes" || word == "Size" || word == "Iterations" || word == "Validation" || word.ends_with(')');
  };
  std::vector<std::string_view> columns;
  std::copy_if(size, words.end(), std::back_inserter(columns), is_column);
  return columns.size() > 1 ? columns : std::vector<std::string_view>();
}

// The word after one of these; empty if there is none.
std::string_view word_after(const std::vector<std::string_view>& words, std::initializer_list<std::string_view> names) {
  const auto found = std::ranges::find_first_of(words, names);
  return words.end() - found < 2 ? "" : found[1];
}

}  // namespace

// OSU's "OSU MPI-CUDA Allreduce Latency Test v7.3" is an Allreduce, "OSU MPI Latency Test" the Latency between two ranks.
std::string mpi_title_in(std::string_view line) {
  const std::vector<std::string_view> words = words_of(line, kMpiBlanks);
  const auto name = std::ranges::find(words, "Benchmarking");
  if (name > words.begin() && name < words.end() && name[-1] == "#") return fmt::format("IMB's {}", fmt::join(name + 1, words.end(), " "));
  const auto begin = std::ranges::find(words, "OSU");
  const auto end = std::find(begin, words.end(), "Test");
  if (end == words.end() || end - begin < 3) return "";
  std::string title = "OSU's";
  for (auto word = begin + 2; word != end; ++word) {
    if (*word != "Latency" || word == begin + 2) fmt::format_to(std::back_inserter(title), " {}", *word);
  }
  return title;
}

bool is_mpi_allreduce(std::string_view title) {
  return title == "OSU's Allreduce" || title == "IMB's Allreduce" || title == "IMB's allreduce";
}

Imported parse_mpi_benchmark(std::string_view text, const std::string& file, const ImportOptions& options) {
  constexpr double kMicrosecond = 1e-6;
  const std::string clean = undecorated(text);
  BenchmarkRows rows;
  BenchmarkRow row;  // with what was said so far
  std::string benchmark;
  int64_t last_line = 1;
  std::vector<std::string_view> columns;
  size_t time = 0;               // the column of the mean
  std::ptrdiff_t tag_words = 0;  // before the header
  const auto is_value = [](std::string_view word) { return word == "Pass" || word == "Fail" || parse_number<double>(word); };
  for_each_line(clean, [&](int64_t number, std::string_view line) {
    last_line = number;
    const std::vector<std::string_view> words = words_of(line, kMpiBlanks);
    if (const std::string title = mpi_title_in(line); !title.empty()) {
      benchmark = title;
      if (title.starts_with("OSU")) row = {};
      row.world_size = 0;
      columns.clear();
    } else if (const auto datatype = word_after(words, {"Datatype", "reductions"}); datatype.starts_with("MPI_")) {
      row.type = datatype.substr(0, datatype.find('.'));
    } else if (words.size() > 1 && (words.end()[-2] == "dtype" || words.end()[-2] == "reduction")) {
      (words.end()[-2] == "dtype" ? row.type : row.operation) = words.back();
    } else if (const auto processes = word_after(words, {"#processes"}); !processes.empty()) {
      row.world_size = parse_number<int64_t>(processes).value_or(0);
    } else if (const auto named = mpi_columns_in(words); !named.empty()) {
      const auto mean = std::ranges::find(named, "t_avg[usec]");
      columns = mean == named.end() && named[0] == "#bytes" ? std::vector<std::string_view>() : named;
      tag_words = std::ranges::find_if(words, [](std::string_view word) { return word.starts_with('#'); }) - words.begin();
      time = mean == named.end() ? 1 : static_cast<size_t>(mean - named.begin());
    }
    // A row may hold more values than the header names, as OSU 7.3 prints with -f.
    const bool may_be_row = tag_words > 0 || (!words.empty() && is_value(words[0]));
    for (size_t count = may_be_row ? columns.size() : 0; count > 0 && count <= words.size(); ++count) {
      const auto values = std::span(words).last(count);
      if (!is_value(values[columns.size() - 1])) break;
      const auto bytes = tagged_integer(values[0]);
      const auto time_us = parse_number<double>(values[time]);
      if (!bytes || !time_us) continue;
      row.where = at_line(file, number);
      row.bytes = *bytes;
      row.seconds = *time_us * kMicrosecond;
      if (!is_mpi_allreduce(benchmark)) return rows.skip("rows of " + benchmark, row.where);
      const bool is_wrong = words.back() == "Fail" || (columns.back() == "defects" && parse_number<double>(words.back()) > 0);
      return is_wrong ? rows.skip("rows whose validation failed", row.where) : rows.rows.push_back(row);
    }
  });
  return import_rows(std::move(rows), options, "the results of osu_allreduce or IMB-MPI1", at_line(file, last_line));
}

}  // namespace firkin
