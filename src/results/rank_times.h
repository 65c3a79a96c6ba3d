// How long ranks take for the same work, measured: what stragglers are predicted from.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace firkin {

// Seconds, all ranks and steps together, from either of
//   - a CSV file with one column, `seconds`;
//   - a results.json of `firkin tune` or `firkin bench step`: samples.raw_step_s_by_rank of the setting `none`, which is the work of a step
//     without communication, so that no rank's time holds the waiting for another. A text that starts with { is taken for one.
// Throws InputError, with file and line, for malformed input, a time that is not positive and finite, and a file without any.
std::vector<double> parse_rank_times(std::string_view text, const std::string& file);
std::vector<double> read_rank_times(const std::filesystem::path& path);

}  // namespace firkin
