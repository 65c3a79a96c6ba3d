// osu_allreduce of the OSU micro-benchmarks: "# OSU MPI Allreduce Latency Test v7.3", "# Size  Avg Latency(us) ...", a
// row for each size.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "benchmark_rows.h"

namespace firkin {
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
  for_each_line(clean, file, [&](int64_t number, std::string_view line) {
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
      const auto time_us = number_in(words[begin + 1]);
      if (!bytes || !time_us) return;
      if (benchmark != "Allreduce") return rows.skip("rows of OSU's " + benchmark, at_line(file, number));
      rows.rows.push_back({.where = at_line(file, number), .bytes = *bytes, .seconds = *time_us * kMicrosecond, .type = type});
    }
  });
  return import_rows(std::move(rows), options, "the results of osu_allreduce", at_line(file, last_line));
}

}  // namespace firkin
