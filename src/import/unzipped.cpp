#include "unzipped.h"

#include <fmt/format.h>
#include <zlib.h>

#include <cerrno>
#include <cstring>

#include "firkin/base/error.h"

namespace firkin {

UnzippedFile::UnzippedFile(const std::filesystem::path& path) : path_(path), piece_(size_t{1} << 18) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) throw InputError(fmt::format("{}: cannot be read: it is a folder", path.string()));
  gzFile file = gzopen(path.c_str(), "rb");  // reads a file that is not zipped as it is
  if (!file) throw InputError(fmt::format("{}: cannot be read: {}", path.string(), std::strerror(errno)));
  file_ = std::shared_ptr<void>(file, [](void* open) { gzclose(static_cast<gzFile>(open)); });
}

std::string_view UnzippedFile::next() {
  gzFile file = static_cast<gzFile>(file_.get());
  const int count = gzread(file, piece_.data(), static_cast<unsigned>(piece_.size()));
  int error = Z_OK;
  const char* message = gzerror(file, &error);
  if (error == Z_BUF_ERROR) throw InputError(fmt::format("{}: the zipped file is cut off; expected all of it", path_.string()));
  if (count < 0) throw InputError(fmt::format("{}: cannot be read: {}", path_.string(), error == Z_ERRNO ? std::strerror(errno) : message));
  return {piece_.data(), static_cast<size_t>(count)};
}

std::string unzipped_beginning(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return "";
  try {
    return std::string(UnzippedFile(path).next());
  } catch (const InputError&) {
    return "";
  }
}

}  // namespace firkin
