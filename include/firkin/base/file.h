// Whole files: reads one, or replaces one so that readers see the old content or the new, never a part.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace firkin {

// The whole content. Throws InputError ("FILE: cannot be read: REASON").
std::string read_file(const std::filesystem::path& path);

// The whole content of a text file with short lines; reading stops at the first line of more than `longest_line` bytes.
// Throws InputError: "FILE: cannot be read: REASON; expected EXPECTED", or "FILE:LINE: the line is longer than ...;
// expected EXPECTED".
std::string read_text_file(const std::filesystem::path& path, size_t longest_line, const std::string& expected);

// Writes to a temporary file in the same folder, syncs it, and renames it over `path`, creating missing parent folders.
// Throws RuntimeError on failure; `path` is then unchanged and the temporary file is gone.
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

// Opens /dev/null as standard input, output or error where a program was started without it (a daemon), so that no file
// or connection that is opened later takes its number and receives what is printed. Call it first in main().
void occupy_standard_descriptors();

}  // namespace firkin
