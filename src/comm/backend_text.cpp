#include "backend_text.h"

#include <algorithm>
#include <cctype>

namespace firkin {
namespace {

// "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] " at the start; an address in brackets, "[::1]:1234", is none.
std::string_view without_source_place(std::string_view text) {
  const size_t end = text.find("] ");
  if (!text.starts_with('[') || end == std::string_view::npos) return text;
  const std::string_view place = text.substr(1, end - 1);
  const size_t colon = place.rfind(':');
  if (colon == std::string_view::npos || place.find('/') == std::string_view::npos) return text;
  const std::string_view line = place.substr(colon + 1);
  const bool numbered = !line.empty() && std::all_of(line.begin(), line.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
  return numbered ? text.substr(end + 2) : text;
}

}  // namespace

std::string shorten_backend_text(std::string_view text) {
  text = without_source_place(text.substr(0, text.find('\n')));
  for (const std::string_view advice : {"This may indicate", "This is typically caused"}) text = text.substr(0, text.find(advice));
  const size_t last = text.find_last_not_of(". ");
  return std::string(text.substr(0, last + 1));  // npos + 1 is 0: nothing is left of dots alone
}

}  // namespace firkin
