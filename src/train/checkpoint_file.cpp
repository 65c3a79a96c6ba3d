#include "train/checkpoint_file.h"

#include <ATen/core/Dict.h>
#include <ATen/core/ivalue.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <fstream>
#include <functional>
#include <string_view>

#include "base/checksum.h"
#include "firkin/base/error.h"
#include "firkin/base/file.h"

#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/serialization/export.h>
#include <torch/csrc/jit/serialization/import_read.h>
#include <torch/csrc/jit/serialization/pickler.h>

namespace firkin {
namespace {

using Write = std::function<void(std::string_view)>;

// Passes an archive on, less its last two bytes: the length of a comment that it does not have yet.
class ArchiveWithoutComment {
 public:
  explicit ArchiveWithoutComment(const Write& write) : write_(write) {}

  void append(std::string_view piece) {
    if (piece.size() < kLength) {
      kept_ += piece;
      pass_on_kept(kept_.size() - std::min(kept_.size(), kLength));
      return;
    }
    pass_on_kept(kept_.size());
    pass_on(piece.substr(0, piece.size() - kLength));
    kept_ = piece.substr(piece.size() - kLength);
  }

  void finish(const std::string& comment) {
    const size_t length = comment.size() + checksum_text(0).size();
    if (length > kMostComment)
      throw RuntimeError(fmt::format("a checkpoint's head of {} bytes; expected at most {}", length, kMostComment));
    pass_on(std::string{static_cast<char>(length & 0xff), static_cast<char>(length >> 8)});
    pass_on(comment);
    write_(checksum_text(checksum_));
  }

 private:
  static constexpr size_t kLength = 2;

  void pass_on_kept(size_t count) {
    pass_on(std::string_view(kept_).substr(0, count));
    kept_.erase(0, count);
  }
  void pass_on(std::string_view piece) {
    checksum_ = crc32(piece, checksum_);
    write_(piece);
  }

  const Write& write_;
  std::string kept_;
  uint32_t checksum_ = 0;
};

void write_archive(const Checkpoint& checkpoint, ArchiveWithoutComment& out) {
  c10::Dict<std::string, at::Tensor> tensors;
  for (const auto& [name, tensor] : checkpoint.tensors) tensors.insert(name, tensor);
  std::vector<char> pickled;
  const auto append = [&pickled](const char* bytes, size_t size) { pickled.insert(pickled.end(), bytes, bytes + size); };
  // Without TorchScript's tags for types, which torch.load() refuses.
  torch::jit::Pickler pickler(append, nullptr, nullptr, nullptr, nullptr, /*tag_aggregates=*/false);
  pickler.protocol();
  pickler.pushIValue(tensors);
  pickler.stop();
  // The writer's destructor writes as well: an exception must not pass through it.
  std::exception_ptr not_written;
  const auto write = [&](const void* bytes, size_t size) {
    try {
      if (!not_written) out.append({static_cast<const char*>(bytes), size});
    } catch (...) {
      not_written = std::current_exception();
    }
    return size;
  };
  {
    caffe2::serialize::PyTorchStreamWriter writer(write);
    torch::jit::writeArchiveAndTensors("data", pickled.data(), pickled.size(), pickler.tensorData(), writer);
  }
  if (not_written) std::rethrow_exception(not_written);
}

[[noreturn]] void refuse_checkpoint(const std::filesystem::path& file, const std::string& why) {
  throw InputError(fmt::format("{}: {}", file.string(), why));
}

}  // namespace

void write_checkpoint(const std::filesystem::path& file, const Checkpoint& checkpoint) {
  write_file_atomically(file, [&](const Write& write) {
    ArchiveWithoutComment out(write);
    write_archive(checkpoint, out);
    out.finish(comment_of(checkpoint.head));
  });
}

Checkpoint read_checkpoint(const std::filesystem::path& file) {
  Checkpoint checkpoint{.head = read_checkpoint_head(file)};
  std::ifstream content(file, std::ios::binary);
  check_checksum(content, file);
  try {
    caffe2::serialize::PyTorchStreamReader reader(&content);  // takes one tensor at a time from the file
    const auto tensors =
        torch::jit::readArchiveAndTensors("data", "", "", std::nullopt, std::nullopt, std::nullopt, reader).toGenericDict();
    for (const auto& entry : tensors) checkpoint.tensors.emplace_back(entry.key().toStringRef(), entry.value().toTensor());
  } catch (const std::exception& error) {
    const std::string_view message = error.what();
    refuse_checkpoint(file, fmt::format("its tensors cannot be read: {}", message.substr(0, message.find('\n'))));
  }
  return checkpoint;
}

}  // namespace firkin
