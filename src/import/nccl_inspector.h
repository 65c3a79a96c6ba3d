// What NCCL's Inspector writes (NCCL 2.28 and later, RCCL's too): a line of JSON per collective and rank.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "import.h"

namespace firkin {

// Whether a file that begins so is one of these.
bool is_inspector_text(std::string_view beginning);

// The all-reduces in the files of all ranks, given in any order. A call counts with the least time of any rank: see Note
// [The last rank to join] in profiler_trace.h. Leaves out other operations, calls that some rank's file lacks, and times
// that the host took. The notes say what was left out. Throws InputError, with file and line, for a malformed line, and if
// no all-reduce remains.
Imported read_nccl_inspector(const std::vector<std::filesystem::path>& files);

// The same for the text of one file. `file`: the name used in errors.
Imported parse_nccl_inspector(std::string_view text, const std::string& file);

}  // namespace firkin
