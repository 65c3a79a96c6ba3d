#include "train/checkpoint_file.h"

#include <ATen/core/Dict.h>
#include <ATen/core/ivalue.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <fstream>
#include <functional>
#include <string_view>

#include "base/checksum.h"
#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "firkin/base/json_text.h"
#include "results/training.h"

#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/serialization/export.h>
#include <torch/csrc/jit/serialization/pickle.h>

namespace firkin {
namespace {

constexpr int kFormat = 1;
constexpr const char* kFormatKey = "firkin_checkpoint";
constexpr const char* kStepKey = "step";
constexpr const char* kAboutKey = "about";

// The end of a zip archive (PKWARE's APPNOTE, 4.3.16): a record of 22 bytes, whose last two are the length of the comment behind it.
constexpr std::string_view kEndOfArchive = "PK\5\6";
constexpr size_t kEndRecord = 22;
constexpr size_t kMostComment = 0xffff;
constexpr size_t kChecksumText = 8;  // in hexadecimal

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
    const size_t length = comment.size() + kChecksumText;
    if (length > kMostComment)
      throw RuntimeError(fmt::format("a checkpoint's head of {} bytes; expected at most {}", length, kMostComment));
    pass_on(std::string{static_cast<char>(length & 0xff), static_cast<char>(length >> 8)});
    pass_on(comment);
    write_(fmt::format("{:08x}", checksum_));
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

std::string comment_of(const CheckpointHead& head) {
  nlohmann::json comment = {{kFormatKey, kFormat}, {kStepKey, head.step}, {kAboutKey, head.about}};
  if (head.held_loss) comment[kHeldLossKey] = *head.held_loss;
  return dump_json(comment) + "\n";
}

[[noreturn]] void refuse_checkpoint(const std::filesystem::path& file, const std::string& why) {
  throw InputError(fmt::format("{}: {}", file.string(), why));
}

// The comment of a whole archive; the last bytes of the file are enough.
std::string_view comment_in(std::string_view text, bool is_archive, const std::filesystem::path& file) {
  for (size_t at = text.size() < kEndRecord ? std::string_view::npos : text.rfind(kEndOfArchive); at != std::string_view::npos;
       at = at == 0 ? std::string_view::npos : text.rfind(kEndOfArchive, at - 1)) {
    if (at + kEndRecord > text.size()) continue;
    const auto byte = [&](size_t place) { return static_cast<size_t>(static_cast<unsigned char>(text[at + place])); };
    const size_t length = byte(20) | byte(21) << 8;
    if (at + kEndRecord + length != text.size() || length <= kChecksumText) continue;
    return text.substr(at + kEndRecord);
  }
  refuse_checkpoint(file, is_archive ? "cut short, or no checkpoint of firkin train" : "no checkpoint of firkin train");
}

CheckpointHead parse_head(std::string_view comment, const std::filesystem::path& file) {
  const auto json = nlohmann::json::parse(comment.substr(0, comment.size() - kChecksumText), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains(kFormatKey) || !json[kFormatKey].is_number_integer())
    refuse_checkpoint(file, "no checkpoint of firkin train");
  if (json[kFormatKey] != kFormat) {
    refuse_checkpoint(file, fmt::format("format {}; this version of Firkin reads format {}", json[kFormatKey].dump(), kFormat));
  }
  try {
    CheckpointHead head{.step = json.at(kStepKey).get<int64_t>(), .held_loss = {}, .about = json.at(kAboutKey)};
    if (json.contains(kHeldLossKey)) head.held_loss = json[kHeldLossKey].get<double>();
    return head;
  } catch (const nlohmann::json::exception&) {
    refuse_checkpoint(file, "damaged: its head is incomplete");
  }
}

void check_sum(std::string_view content, const std::filesystem::path& file) {
  const std::string_view stated = content.substr(content.size() - kChecksumText);
  const std::string found = fmt::format("{:08x}", crc32(content.substr(0, content.size() - kChecksumText)));
  if (found != stated) refuse_checkpoint(file, fmt::format("damaged: its checksum is {}, not {} as it says", found, stated));
}

// The last `most` bytes, or all.
std::string read_end_of_file(const std::filesystem::path& file, size_t most) {
  std::ifstream in(file, std::ios::binary | std::ios::ate);
  if (!in) refuse_checkpoint(file, fmt::format("cannot be read: {}", std::strerror(errno)));
  const auto size = static_cast<size_t>(std::max<std::streamoff>(0, in.tellg()));
  std::string end(std::min(size, most), '\0');
  in.seekg(static_cast<std::streamoff>(size - end.size()));
  in.read(end.data(), static_cast<std::streamsize>(end.size()));
  return end;
}

bool is_zip(std::string_view content) {
  return content.starts_with("PK\3\4");
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
  const std::string content = read_file(file);
  const std::string_view comment = comment_in(content, is_zip(content), file);
  Checkpoint checkpoint{.head = parse_head(comment, file)};
  check_sum(content, file);
  try {
    const auto tensors = torch::jit::pickle_load({content.begin(), content.end()}).toGenericDict();
    for (const auto& entry : tensors) checkpoint.tensors.emplace_back(entry.key().toStringRef(), entry.value().toTensor());
  } catch (const std::exception& error) {
    const std::string_view message = error.what();
    refuse_checkpoint(file, fmt::format("its tensors cannot be read: {}", message.substr(0, message.find('\n'))));
  }
  return checkpoint;
}

CheckpointHead read_checkpoint_head(const std::filesystem::path& file) {
  const std::string end = read_end_of_file(file, kMostComment + kEndRecord);
  return parse_head(comment_in(end, /*is_archive=*/true, file), file);
}

}  // namespace firkin
