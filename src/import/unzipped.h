// A file piece by piece, unzipped if gzip made it.
//
//   UnzippedFile file("trace.json.gz");
//   for (std::string_view piece = file.next(); !piece.empty(); piece = file.next()) ...
//
// zlib is loaded when the first file is opened, so that a build needs none of its headers, and only zipped files need its
// library.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace firkin {

class UnzippedFile {
 public:
  // Throws InputError if the file cannot be read.
  explicit UnzippedFile(const std::filesystem::path& path);

  // Empty at the end; valid until the next call. Throws InputError if the file cannot be read on, or its zip is cut off
  // or damaged; std::runtime_error if it is zipped and the system has no zlib.
  std::string_view next();

 private:
  std::filesystem::path path_;
  std::shared_ptr<void> file_;
  std::vector<char> piece_;
};

// The first piece of a file, by which its format is recognised. Empty for a pipe, which can be read only once, and for
// a file that is missing or may not be read. Throws as UnzippedFile::next(), so for a zip that is cut off in this piece.
std::string unzipped_beginning(const std::filesystem::path& path);

// Whether gzip made a file that begins so.
bool is_zipped(std::string_view beginning);

}  // namespace firkin
