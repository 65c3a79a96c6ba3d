// When each gradient of a model becomes ready in the backward pass: the left input of the performance model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace firkin {

// Tensors in gradient-ready order. The three vectors have one entry per tensor; ready_s does not decrease.
struct TensorProfile {
  std::vector<std::string> names;
  std::vector<int64_t> bytes;   // of the gradient
  std::vector<double> ready_s;  // seconds from the start of backward
  double backward_s = 0;        // end of the backward pass without communication; at least the last ready_s
};

// The columns of tensors.csv, and the fields of a tensor in results.json.
inline constexpr const char* kTensorName = "name";
inline constexpr const char* kTensorBytes = "bytes";
inline constexpr const char* kTensorReady = "ready_s";

// Throws InputError unless the vectors agree in length, names are distinct, and times are finite, not negative, and do not decrease.
void check_profile(const TensorProfile& profile);

// tensors.csv: `name,bytes,ready_s` in gradient-ready order. backward_s becomes the last ready time.
// Throws InputError with file and line for every malformed input; nothing is dropped.
TensorProfile parse_tensors_csv(std::string_view text, const std::string& file);  // `file`: the name that errors carry
TensorProfile read_tensors_csv(const std::filesystem::path& path);
std::string tensors_csv(const TensorProfile& profile);  // the content of such a file; throws as check_profile
void write_tensors_csv(const std::filesystem::path& path, const TensorProfile& profile);

}  // namespace firkin
