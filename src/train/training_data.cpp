#include "train/training_data.h"

#include <ATen/ops/empty.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "firkin/base/error.h"
#include "train/formats.h"

namespace firkin {
namespace {

struct MappedFile {
  std::shared_ptr<const std::byte> bytes;
  int64_t size = 0;
};

MappedFile map_file(const std::filesystem::path& path) {
  const auto fail = [&path] { refuse_file(path, fmt::format("cannot be read: {}", std::strerror(errno))); };
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) fail();
  const auto closed = std::shared_ptr<void>(nullptr, [file](void*) { close(file); });
  struct stat status {};
  if (fstat(file, &status) != 0) fail();
  if (S_ISDIR(status.st_mode)) refuse_file(path, "cannot be read: it is a folder");
  if (status.st_size == 0) refuse_file(path, "an empty file; expected text, or a .bin of 16-bit tokens");
  const auto size = static_cast<size_t>(status.st_size);
  void* map = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
  if (map == MAP_FAILED) fail();
  const auto unmap = [size](const std::byte* bytes) { munmap(const_cast<std::byte*>(bytes), size); };
  return {std::shared_ptr<const std::byte>(static_cast<const std::byte*>(map), unmap), status.st_size};
}

}  // namespace

TokenFile::TokenFile(const std::filesystem::path& file) : path_(file) {
  const MappedFile mapped = map_file(file);
  map_ = mapped.bytes;
  tokens_ = mapped.bytes.get();
  size_ = mapped.size;
  if (file.extension() != ".bin") return;
  token_bytes_ = 2;
  const TokenLayout layout = parse_token_layout({reinterpret_cast<const char*>(tokens_), static_cast<size_t>(mapped.size)}, file);
  tokens_ += layout.first;
  size_ = layout.tokens;
}

int64_t TokenFile::token(int64_t place) const {
  if (token_bytes_ == 1) return std::to_integer<int64_t>(tokens_[place]);
  return std::to_integer<int64_t>(tokens_[2 * place]) | std::to_integer<int64_t>(tokens_[2 * place + 1]) << 8;
}

void TokenFile::read(int64_t first, std::span<int64_t> out) const {
  for (size_t i = 0; i < out.size(); ++i) out[i] = token(first + static_cast<int64_t>(i));
}

void TokenFile::check_vocabulary(int64_t vocab_size) const {
  if (vocab_size >= int64_t{1} << (8 * token_bytes_)) return;
  for (int64_t i = 0; i < size_; ++i) {
    if (token(i) < vocab_size) continue;
    refuse_file(path_, fmt::format("token {} at place {}; expected tokens below the model's vocab_size {}", token(i), i, vocab_size));
  }
}

namespace {

constexpr int kFeistelRounds = 6;

// One of `size` numbers, to another: a permutation for each key.
uint64_t shuffled(uint64_t value, uint64_t size, uint64_t key) {
  const int half_bits = std::max(1, (static_cast<int>(std::bit_width(size - 1)) + 1) / 2);
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  do {
    uint64_t left = value >> half_bits;
    uint64_t right = value & mask;
    for (uint64_t round = 0; round < kFeistelRounds; ++round) {
      const uint64_t next = left ^ (mixed(mixed(key + round) ^ right) & mask);
      left = right;
      right = next;
    }
    value = left << half_bits | right;
  } while (value >= size);
  return value;
}

}  // namespace

uint64_t mixed(uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

int64_t windows_per_pass(const SampleOrder& order) {
  if (order.sequence < 1) throw InputError(fmt::format("a sequence of {} tokens; expected at least 1", order.sequence));
  const int64_t windows = (order.tokens - 1) / order.sequence;
  if (windows < 1) {
    throw InputError(fmt::format("{} tokens to train on; expected more than a sequence of {}", order.tokens, order.sequence));
  }
  return windows;
}

int64_t window_start(const SampleOrder& order, int64_t sample) {
  const int64_t windows = windows_per_pass(order);
  const auto pass = static_cast<uint64_t>(sample / windows);
  const uint64_t key = mixed(mixed(order.seed) ^ pass);
  const auto window = static_cast<int64_t>(shuffled(static_cast<uint64_t>(sample % windows), static_cast<uint64_t>(windows), key));
  const int64_t left_over = order.tokens - 1 - windows * order.sequence;
  const auto moved = static_cast<int64_t>(key % static_cast<uint64_t>(left_over + 1));
  return order.first + moved + window * order.sequence;
}

namespace {

// start_of: the first token of row 0, 1, ...
template <typename StartOf>
TokenBatch batch_of(const TrainingData& data, int64_t rows, StartOf start_of) {
  const int64_t width = data.training.sequence + 1;
  const at::Tensor windows = at::empty({rows, width}, at::kLong);
  int64_t* out = windows.mutable_data_ptr<int64_t>();
  for (int64_t row = 0; row < rows; ++row) data.file->read(start_of(row), {out + row * width, static_cast<size_t>(width)});
  return {windows.narrow(1, 0, width - 1), windows.narrow(1, 1, width - 1)};
}

}  // namespace

TrainingData split_data(std::shared_ptr<const TokenFile> file, int64_t sequence, uint64_t seed, double held_share) {
  const int64_t tokens = file->size();
  TrainingData data{.file = std::move(file), .training = {.first = 0, .tokens = tokens, .sequence = sequence, .seed = seed}};
  windows_per_pass(data.training);
  if (held_share <= 0) return data;
  const auto held = static_cast<int64_t>(static_cast<double>(tokens) * held_share);
  data.held_windows = (held - 1) / sequence;
  data.training.tokens = tokens - data.held_windows * sequence - 1;
  data.held_first = data.training.tokens;
  if (data.held_windows < 1 || data.training.tokens <= sequence) {
    throw InputError(fmt::format("{}: {} tokens, of which {} are held for evaluation; expected more than a sequence of {} in both parts",
                                 data.file->path().string(), tokens, held, sequence));
  }
  return data;
}

TokenBatch training_batch(const TrainingData& data, int64_t first, int64_t rows) {
  return batch_of(data, rows, [&](int64_t row) { return window_start(data.training, first + row); });
}

TokenBatch held_batch(const TrainingData& data, int64_t first, int64_t rows) {
  return batch_of(data, rows, [&](int64_t row) { return data.held_first + (first + row) * data.training.sequence; });
}

}  // namespace firkin
