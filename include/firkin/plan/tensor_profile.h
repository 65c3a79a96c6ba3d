// When each gradient of a model becomes ready in the backward pass, and when the next forward pass uses its parameter:
// one of the performance model's two inputs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace firkin {

// Tensors in gradient-ready order. The vectors have one entry per tensor; ready_s does not decrease. needed_s and
// update_s may be empty: not measured.
struct TensorProfile {
  std::vector<std::string> names;
  std::vector<int64_t> bytes;   // the gradient's size
  std::vector<double> ready_s;  // seconds from the start of backward
  double backward_s = 0;        // end of the backward pass without communication; at least the last ready_s

  // For communication that also overlaps the next forward pass.
  // first use of the parameter, seconds from the start of forward; 0: before forward begins
  std::vector<double> needed_s = {};
  std::vector<double> update_s = {};  // the optimiser's step on the tensor
  double forward_s = 0;               // end of the forward pass without waiting; at least the largest needed_s

  bool knows_forward() const { return !needed_s.empty(); }
  int64_t total_bytes() const;  // over all gradients
  double updates_s() const;     // over all tensors
};

// The columns of tensors.csv, and the fields of a tensor in results.json.
inline constexpr const char* kTensorName = "name";
inline constexpr const char* kTensorBytes = "bytes";
inline constexpr const char* kTensorReady = "ready_s";
inline constexpr const char* kTensorNeeded = "needed_s";
inline constexpr const char* kTensorUpdate = "update_s";

// Adds a forward pass of `forward_s` to a profile without one: parameters are needed in reverse gradient-ready order,
// at times that mirror backward's.
TensorProfile with_forward(TensorProfile profile, double forward_s);

// The profile with all of its computation taking `factor` times as long.
TensorProfile slowed(TensorProfile profile, double factor);

// Throws InputError unless the vectors agree in length, names are distinct, times are finite and not negative, ready_s
// does not decrease, and no time lies behind the end of its pass.
void check_profile(const TensorProfile& profile);

// Times that are probably in a unit other than seconds: one sentence each. Empty for most profiles.
std::vector<std::string> problems_of_profile(const TensorProfile& profile);

// tensors.csv: `name,bytes,ready_s` in gradient-ready order, and if known `needed_s` (an empty field: 0) and
// `update_s`. The file does not hold the ends of the passes: backward_s becomes the last ready time, and forward_s the
// largest needed_s. Throws InputError with file and line for every malformed input; nothing is dropped.
TensorProfile parse_tensors_csv(std::string_view text, const std::string& file);  // `file`: the name used in errors
TensorProfile read_tensors_csv(const std::filesystem::path& path);
std::string tensors_csv(const TensorProfile& profile);  // the content of such a file; throws as check_profile
void write_tensors_csv(const std::filesystem::path& path, const TensorProfile& profile);

}  // namespace firkin
