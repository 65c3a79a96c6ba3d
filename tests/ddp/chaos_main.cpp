// ddp_chaos: random programs by the thousand.
//
//   build/tests/ddp_chaos --sequences 2000
//   build/tests/ddp_chaos --sequences 1 --seed 17
#include <fmt/format.h>
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <chrono>
#include <cstdio>
#include <limits>

#include "chaos.h"
#include "firkin/base/progress.h"

namespace firkin {
namespace {

struct ChaosFlags {
  int sequences = 2000;
  uint64_t first_seed = 0;
  double seconds = std::numeric_limits<double>::infinity();
  double timeout_s = 60;
};

int run_sequences(const ChaosFlags& flags, const char* program) {
  using Clock = std::chrono::steady_clock;
  const auto started = Clock::now();
  const auto elapsed_s = [&] { return std::chrono::duration<double>(Clock::now() - started).count(); };
  const auto timeout = std::chrono::milliseconds(static_cast<int64_t>(1000 * flags.timeout_s));
  int done = 0;
  int failures = 0;
  {
    Progress progress("chaos", flags.sequences, true);
    for (; done < flags.sequences && elapsed_s() < flags.seconds; ++done) {
      const uint64_t seed = flags.first_seed + static_cast<uint64_t>(done);
      if (const auto wrong = run_chaos_sequence(seed, timeout)) {
        ++failures;
        fmt::print("{}\n    again: {} --sequences 1 --seed {}\n", *wrong, program, seed);
        std::fflush(stdout);
      }
      progress.advance(fmt::format("seed {}, {} failures", seed, failures));
    }
  }
  fmt::print("{} sequences, {} failures, {:.0f} s\n", done, failures, elapsed_s());
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace firkin

int main(int argc, char** argv) {
  firkin::ChaosFlags flags;
  CLI::App app("Random data-parallel programs: after every step all ranks are equal, or all ranks have the same failure.");
  app.add_option("--sequences", flags.sequences, "how many")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--seed", flags.first_seed, "of the first; the others count on")->capture_default_str();
  app.add_option("--seconds", flags.seconds, "start no sequence after these")->check(CLI::PositiveNumber);
  app.add_option("--timeout", flags.timeout_s, "seconds of a collective")->check(CLI::PositiveNumber)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const int exit_code = firkin::run_sequences(flags, argv[0]);
  std::fflush(stdout);
  std::_Exit(exit_code);  // threads that hang may still use what static destructors would take away
}
