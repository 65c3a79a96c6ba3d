// Flags that say which sizes are measured, named as in nccl-tests.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "command.h"

namespace firkin::cli {

struct SizeFlags {
  std::string begin;
  std::string end;
  int64_t factor = 2;
};

// -b, -e and -f, with the given defaults.
void add_size_flags(CLI::App& app, SizeFlags& flags);

// The sizes in bytes, ascending, multiples of 4. Throws InputError.
std::vector<int64_t> checked_sizes(const SizeFlags& flags);

}  // namespace firkin::cli
