#include "firkin/base/json_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <vector>

#include "firkin/base/error.h"

namespace firkin {

using Json = nlohmann::json;

Json parse_json(std::string_view text, const std::string& file, const std::string& expected) {
  const auto fail = [&](const std::string& place, const std::string& what) {
    throw InputError(fmt::format("{}: {}; expected {}", place, what, expected));
  };
  std::vector<std::set<std::string>> open;  // the keys so far of each value around the current one
  const auto check = [&](int, Json::parse_event_t event, Json& parsed) {
    using Event = Json::parse_event_t;
    if (event == Event::object_start || event == Event::array_start) {
      open.emplace_back();
      if (open.size() > kDeepestJson) fail(file, fmt::format("more than {} values within each other", kDeepestJson));
    } else if (event == Event::object_end || event == Event::array_end) {
      open.pop_back();
    } else if (event == Event::key && !open.back().insert(parsed.get<std::string>()).second) {
      fail(file, fmt::format("key '{}' appears twice", parsed.get<std::string>()));
    }
    return true;
  };
  try {
    return Json::parse(text, check);
  } catch (const Json::parse_error& error) {
    // The last character that the parser has read may belong to the next token.
    const size_t before = std::min(std::max<size_t>(error.byte, 1) - 1, text.size());
    fail(fmt::format("{}:{}", file, 1 + std::ranges::count(text.substr(0, before), '\n')), "not JSON");
  } catch (const Json::out_of_range&) {
    fail(file, "a number is too large");
  }
  return {};
}

std::string dump_json(const Json& json, int indent) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace firkin
