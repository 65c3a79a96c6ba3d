// How long ranks take for the same work, measured: what stragglers are predicted from.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace firkin {

using RankTimes = std::vector<std::vector<double>>;  // [rank][step], seconds; every step on every rank

// From either of
//   - a CSV file with a column `seconds`, and a column `rank` where there are several: a line per rank and step, the steps in order;
//   - a results.json of `firkin tune` or `firkin bench step`: samples.raw_step_s_by_rank of the setting `none`, which is the work of a step
//     without communication, so that no rank's time holds the waiting for another. A text that starts with { is taken for one.
// Throws InputError, with file and line, for malformed input, a time that is not positive and finite, ranks with
// different numbers of steps, and a file without any times.
RankTimes parse_rank_times(std::string_view text, const std::string& file);
RankTimes read_rank_times(const std::filesystem::path& path);

}  // namespace firkin
