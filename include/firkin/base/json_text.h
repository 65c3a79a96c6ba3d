// Strict reading of JSON files: errors name the file and what is wrong, and nothing is dropped.
//
//   const std::string text = read_text_file("results.json", kLongestJsonLine, "a results.json");
//   const nlohmann::json results = parse_json(text, "results.json", "the results.json of a subcommand");
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace firkin {

inline constexpr size_t kLongestJsonLine = size_t{32} << 20;  // bytes; a file without line breaks is one line
// Arrays and objects within each other; limited because nlohmann::json's own functions recurse.
inline constexpr size_t kDeepestJson = 64;

// Throws InputError ("FILE: what; expected EXPECTED") if the text is not JSON ("FILE:LINE"), a number does not fit, an
// object repeats a key, or values are nested too deeply. `file` is the name used in errors.
nlohmann::json parse_json(std::string_view text, const std::string& file, const std::string& expected);

// The text of `json`. Bytes that are not UTF-8 (possible in paths and arguments) become U+FFFD; nlohmann::json's dump()
// would throw. indent: spaces per level; -1 puts everything on one line.
std::string dump_json(const nlohmann::json& json, int indent = -1);

}  // namespace firkin
