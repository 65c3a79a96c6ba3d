// Whole files: reads one, or replaces one so that readers see the old content or the new, never a part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace firkin {

// The whole content. Throws InputError ("FILE: cannot be read: REASON").
std::string read_file(const std::filesystem::path& path);

// The whole content of a text file with short lines; reading stops at the first line of more than `longest_line` bytes. Throws InputError:
// "FILE: cannot be read: REASON; expected EXPECTED", or "FILE:LINE: the line is longer than ...; expected EXPECTED".
std::string read_text_file(const std::filesystem::path& path, size_t longest_line, const std::string& expected);

// Writes to a temporary file in the same folder, syncs it, and renames it over `path`, creating missing parent folders. Throws RuntimeError
// on failure; `path` is then unchanged and the temporary file is gone.
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

// The same for content in pieces: `content` passes each to the function it is given. Its exceptions propagate, with `path` unchanged.
//
//   write_file_atomically("big", [](const auto& write) { write("first"); write("second"); });
void write_file_atomically(const std::filesystem::path& path,
                           const std::function<void(const std::function<void(std::string_view piece)>& write)>& content);

// Opens /dev/null as standard input, output or error where a program was started without it (a daemon), so that no file or connection
// that is opened later takes its number and receives what is printed. Call it first in main().
void occupy_standard_descriptors();

// CRC-32 (ISO-HDLC: that of zip and Ethernet), to tell a damaged file from a whole one.

// The checksum of some bytes followed by `piece`, where `before` is the checksum of those bytes: crc32("b", crc32("a")) == crc32("ab").
// Eight bytes at a time (Kounavis and Berry 2008, "Novel table lookup-based algorithms for high-performance CRC generation").
uint32_t crc32(std::string_view piece, uint32_t before = 0);

}  // namespace firkin
