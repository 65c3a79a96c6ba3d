// What the tests in C++ share: GoogleTest with its matchers by their short names, what of the standard library most of them use, and errors
// as text.
#pragma once

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "firkin/base/error.h"

namespace firkin {

using namespace testing;

// What `body` throws, if that is an `Error`; empty: it throws nothing. Whatever else it throws goes on.
template <typename Error>
std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

inline std::string error_of(const std::function<void()>& body) {
  return message_of<std::exception>(body);
}

// Compares `text` with the file `kept`, a path in the repository, which is there to be read. With FIRKIN_REWRITE in the
// environment the text replaces the file.
inline void expect_as_kept(const std::string& text, const std::string& kept) {
  if (std::getenv("FIRKIN_REWRITE") != nullptr) std::ofstream(kept) << text;
  std::stringstream before;
  before << std::ifstream(kept).rdbuf();
  EXPECT_EQ(text, before.str()) << "if the new text is right, run this test with FIRKIN_REWRITE=1, and read " << kept;
}

}  // namespace firkin
