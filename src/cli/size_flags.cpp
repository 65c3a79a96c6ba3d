#include "size_flags.h"

#include <fmt/format.h>

#include "bench/allreduce_bench.h"
#include "firkin/base/error.h"
#include "firkin/base/units.h"

namespace firkin::cli {

void add_size_flags(CLI::App& app, SizeFlags& flags) {
  app.add_option("-b,--begin", flags.begin, "smallest size, bytes; 1K, 1M, 1G: powers of 1024")->capture_default_str();
  app.add_option("-e,--end", flags.end, "largest size")->capture_default_str();
  app.add_option("-f,--factor", flags.factor, "from one size to the next")->capture_default_str();
}

std::vector<int64_t> checked_sizes(const SizeFlags& flags) {
  const int64_t begin = parse_bytes(flags.begin, "--begin");
  const int64_t end = parse_bytes(flags.end, "--end");
  if (begin % kFloatBytes != 0) throw InputError(fmt::format("--begin {}: expected a multiple of {} bytes", flags.begin, kFloatBytes));
  if (begin > end) throw InputError(fmt::format("--begin {}: expected at most --end {}", flags.begin, flags.end));
  if (flags.factor < 2) throw InputError(fmt::format("--factor {}: expected a whole number, at least 2", flags.factor));
  return sizes_between(begin, end, flags.factor);
}

}  // namespace firkin::cli
