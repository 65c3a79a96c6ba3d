#include "unzipped.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "firkin/base/error.h"

namespace firkin {

namespace {

// zlib.h's values of these names, part of its stable binary interface as the functions are.
constexpr int kZErrno = -1;     // Z_ERRNO: errno says what
constexpr int kZBufError = -5;  // Z_BUF_ERROR: the file ends within a zipped stream

// How files are read: gzopen(), gzread(), gzerror() and gzclose() of zlib, which read a file that is not zipped as it is.
struct FileFunctions {
  void* (*open)(const char* path, const char* mode);
  int (*read)(void* file, void* piece, unsigned size);
  const char* (*error)(void* file, int* code);
  int (*close)(void* file);
  bool unzip = true;
};

FileFunctions without_zlib() {
  return {.open = [](const char* path, const char* mode) -> void* { return std::fopen(path, mode); },
          .read =
              [](void* file, void* piece, unsigned size) {
                const size_t count = std::fread(piece, 1, size, static_cast<std::FILE*>(file));
                return count == 0 && std::ferror(static_cast<std::FILE*>(file)) ? -1 : static_cast<int>(count);
              },
          .error =
              [](void* file, int* code) {
                *code = std::ferror(static_cast<std::FILE*>(file)) ? kZErrno : 0;
                return "";
              },
          .close = [](void* file) { return std::fclose(static_cast<std::FILE*>(file)); },
          .unzip = false};
}

FileFunctions load_zlib() {
  void* zlib = dlopen("libz.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!zlib) return without_zlib();
  const auto find = [zlib]<typename Function>(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(zlib, name));
    return function != nullptr;
  };
  FileFunctions found{};
  const bool all = find(found.open, "gzopen") && find(found.read, "gzread") && find(found.error, "gzerror") && find(found.close, "gzclose");
  return all ? found : without_zlib();
}

const FileFunctions& functions() {
  static const FileFunctions loaded = load_zlib();
  return loaded;
}

}  // namespace

UnzippedFile::UnzippedFile(const std::filesystem::path& path) : path_(path), piece_(size_t{1} << 18) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) throw InputError(fmt::format("{}: cannot be read: it is a folder", path.string()));
  void* file = functions().open(path.c_str(), "rb");
  if (!file) throw InputError(fmt::format("{}: cannot be read: {}", path.string(), std::strerror(errno)));
  file_ = std::shared_ptr<void>(file, functions().close);
}

std::string_view UnzippedFile::next() {
  const int count = functions().read(file_.get(), piece_.data(), static_cast<unsigned>(piece_.size()));
  int error = 0;
  const char* message = functions().error(file_.get(), &error);
  if (error == kZBufError) throw InputError(fmt::format("{}: the zipped file is cut off; expected all of it", path_.string()));
  if (count < 0) throw InputError(fmt::format("{}: cannot be read: {}", path_.string(), error == kZErrno ? std::strerror(errno) : message));
  const std::string_view piece(piece_.data(), static_cast<size_t>(count));
  if (!functions().unzip && is_zipped(piece)) {
    throw std::runtime_error(fmt::format("{}: zipped, and this system has no zlib (libz.so.1): unzip it first", path_.string()));
  }
  return piece;
}

bool is_zipped(std::string_view beginning) {
  return beginning.starts_with("\x1f\x8b");
}

std::string unzipped_beginning(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored) || access(path.c_str(), R_OK) != 0) return "";
  return std::string(UnzippedFile(path).next());
}

}  // namespace firkin
