// The variables of launchers, which a test sets for itself.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <regex>
#include <sstream>

#include "../test.h"

namespace firkin {

// A test begins and ends without those of any launcher.
class LauncherEnvironment : public testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }

  // "NAME=VALUE NAME=VALUE ..."
  static void set(const std::string& variables) {
    std::istringstream words(variables);
    for (std::string name, value; std::getline(std::getline(words >> std::ws, name, '='), value, ' ');) {
      setenv(name.c_str(), value.c_str(), 1);
    }
  }

  static void clear() {
    std::vector<std::string> names;
    for (char** variable = environ; *variable != nullptr; ++variable) names.emplace_back(*variable, std::strcspn(*variable, "="));
    const std::regex of_launchers("RANK|WORLD_SIZE|^MASTER|^TORCHELASTIC|^(OMPI|SLURM|PMI|PMIX|MPI|MV2|JSM|FLUX|ALPS|PALS)_");
    for (const std::string& name : names) {
      if (std::regex_search(name, of_launchers)) unsetenv(name.c_str());
    }
  }
};

}  // namespace firkin
