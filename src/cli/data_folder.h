// Where the files lie that Firkin ships: the text that it trains on, published measurements.
//
//   data_folder() / "text" / "cooperage.txt"
#pragma once

#include <filesystem>

namespace firkin::cli {

// $FIRKIN_DATA; or share/firkin of the folder into which the running program was installed, wherever that was moved; or data/ of the source
// tree (not installed). Throws InputError when $FIRKIN_DATA is no folder, RuntimeError when there is none of the others.
std::filesystem::path data_folder();

// The text of those: what is trained on where nothing else is named.
std::filesystem::path shipped_text();

}  // namespace firkin::cli
