#include "firkin/plan/tensor_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <optional>
#include <unordered_set>

#include "firkin/base/csv.h"
#include "firkin/base/error.h"
#include "firkin/base/file.h"

namespace firkin {
namespace {

constexpr int64_t kLargestTotal = int64_t{1} << 53;  // bytes; beyond it a double no longer counts single bytes

constexpr double kLongest = 1e9;  // seconds: 31 years

std::optional<std::string> time_fault(const char* what, double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return fmt::format("{} is {}; expected seconds, at least 0", what, seconds);
  if (seconds > kLongest) return fmt::format("{} is {}; expected seconds, at most {}", what, seconds, kLongest);
  return std::nullopt;
}

// What is wrong with tensor i, given the checked tensors before it, or nothing.
std::optional<std::string> fault(const TensorProfile& profile, size_t i, int64_t total_before) {
  if (profile.bytes[i] < 0) return fmt::format("bytes is {}; expected at least 0", profile.bytes[i]);
  if (profile.bytes[i] > kLargestTotal - total_before) return fmt::format("the total exceeds {} bytes", kLargestTotal);
  const double ready = profile.ready_s[i];
  if (auto wrong = time_fault(kTensorReady, ready)) return wrong;
  if (i > 0 && ready < profile.ready_s[i - 1]) {
    return fmt::format("ready_s is {} after {}; expected gradient-ready order", ready, profile.ready_s[i - 1]);
  }
  if (!profile.needed_s.empty()) {
    if (auto wrong = time_fault(kTensorNeeded, profile.needed_s[i])) return wrong;
  }
  return profile.update_s.empty() ? std::nullopt : time_fault(kTensorUpdate, profile.update_s[i]);
}

TensorProfile from_table(const CsvTable& table) {
  if (table.rows() == 0) table.fail_at_end("no tensors; expected lines of name,bytes,ready_s");
  TensorProfile profile;
  const bool needed = table.has(kTensorNeeded), update = table.has(kTensorUpdate);
  std::unordered_set<std::string> seen;
  int64_t total = 0;
  for (size_t row = 0; row < table.rows(); ++row) {
    profile.names.push_back(table.text(row, kTensorName));
    profile.bytes.push_back(table.integer(row, kTensorBytes));
    profile.ready_s.push_back(table.number(row, kTensorReady));
    if (needed) profile.needed_s.push_back(table.empty(row, kTensorNeeded) ? 0 : table.number(row, kTensorNeeded));
    if (update) profile.update_s.push_back(table.number(row, kTensorUpdate));
    if (profile.names.back().empty()) table.fail(row, "the name is empty; expected the tensor's name");
    if (!seen.insert(profile.names.back()).second) table.fail(row, fmt::format("tensor '{}' appears twice", profile.names.back()));
    if (const auto wrong = fault(profile, row, total)) table.fail(row, *wrong);
    total += profile.bytes.back();
  }
  profile.backward_s = profile.ready_s.back();
  if (needed) profile.forward_s = std::ranges::max(profile.needed_s);
  return profile;
}

const CsvColumns& profile_columns() {
  static const CsvColumns kColumns = {.required = {kTensorName, kTensorBytes, kTensorReady}, .optional = {kTensorNeeded, kTensorUpdate}};
  return kColumns;
}

}  // namespace

int64_t TensorProfile::total_bytes() const {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

double TensorProfile::updates_s() const {
  return std::accumulate(update_s.begin(), update_s.end(), 0.0);
}

TensorProfile with_forward(TensorProfile profile, double forward_s) {
  profile.forward_s = forward_s;
  profile.needed_s.clear();
  for (const double ready_s : profile.ready_s) {
    const double share = profile.backward_s > 0 ? ready_s / profile.backward_s : 1;
    profile.needed_s.push_back(forward_s * std::max(0.0, 1 - share));
  }
  return profile;
}

void check_profile(const TensorProfile& profile) {
  const size_t count = profile.names.size();
  if (profile.bytes.size() != count || profile.ready_s.size() != count) {
    throw InputError(fmt::format("the profile has {} names, {} sizes and {} ready times; expected the same number of each", count,
                                 profile.bytes.size(), profile.ready_s.size()));
  }
  const auto check_count = [count](const char* what, size_t times) {
    if (times != 0 && times != count)
      throw InputError(fmt::format("the profile has {} names and {} {}; expected as many", count, times, what));
  };
  check_count(kTensorNeeded, profile.needed_s.size());
  check_count(kTensorUpdate, profile.update_s.size());
  std::unordered_set<std::string> seen;
  int64_t total = 0;
  for (size_t i = 0; i < count; ++i) {
    if (!seen.insert(profile.names[i]).second) throw InputError(fmt::format("tensor '{}' appears twice", profile.names[i]));
    if (const auto wrong = fault(profile, i, total)) throw InputError(fmt::format("tensor '{}': {}", profile.names[i], *wrong));
    total += profile.bytes[i];
  }
  const double last = count == 0 ? 0 : profile.ready_s.back();
  if (!std::isfinite(profile.backward_s) || profile.backward_s < last) {
    throw InputError(fmt::format("backward_s is {}; expected at least the last ready time, {}", profile.backward_s, last));
  }
  const double last_use = profile.needed_s.empty() ? 0 : std::ranges::max(profile.needed_s);
  if (!std::isfinite(profile.forward_s) || profile.forward_s < last_use || profile.forward_s > kLongest) {
    throw InputError(fmt::format("forward_s is {}; expected at least the largest needed_s, {}", profile.forward_s, last_use));
  }
}

std::vector<std::string> problems_of_profile(const TensorProfile& profile) {
  constexpr double kLongBackward = 60;  // seconds
  if (profile.backward_s <= kLongBackward) return {};
  return {fmt::format("backward takes {} seconds by {}: is that column in milliseconds?", profile.backward_s, kTensorReady)};
}

TensorProfile parse_tensors_csv(std::string_view text, const std::string& file) {
  return from_table(parse_csv(text, file, profile_columns()));
}

TensorProfile read_tensors_csv(const std::filesystem::path& path) {
  return from_table(read_csv(path, profile_columns()));
}

std::string tensors_csv(const TensorProfile& profile) {
  check_profile(profile);
  const bool needed = !profile.needed_s.empty(), update = !profile.update_s.empty();
  std::string text = "name,bytes,ready_s";
  if (needed) text += ",needed_s";
  if (update) text += ",update_s";
  text += '\n';
  for (size_t i = 0; i < profile.names.size(); ++i) {
    const auto out = std::back_inserter(text);
    fmt::format_to(out, "{},{},{}", csv_field(profile.names[i]), profile.bytes[i], profile.ready_s[i]);
    if (needed) fmt::format_to(out, ",{}", profile.needed_s[i]);
    if (update) fmt::format_to(out, ",{}", profile.update_s[i]);
    text += '\n';
  }
  return text;
}

void write_tensors_csv(const std::filesystem::path& path, const TensorProfile& profile) {
  write_file_atomically(path, tensors_csv(profile));
}

}  // namespace firkin
