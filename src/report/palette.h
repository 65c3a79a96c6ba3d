// The charts' colours: roles, and what they are on a light and on a dark page.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace firkin {

// Roles are "ink", "muted", "grid", "surface", "predicted", "measured", "gap", "compute". Blue, orange and green of the same
// order of lightness, which stay apart for colour-blind readers (Okabe and Ito, "Color universal design", 2008).
enum class Scheme { kLight, kDark };

// "var(--chart-measured)" for "measured".
std::string chart_colour(const std::string& role);

// CSS declarations of all roles: "--chart-ink:#1d2733;...".
std::string colour_declarations(Scheme scheme);

// Every "var(--chart-ROLE)" within `spec` becomes the light scheme's colour.
nlohmann::json with_light_colours(nlohmann::json spec);

// The other way round: every colour of the light scheme becomes its "var(--chart-ROLE)".
nlohmann::json with_page_colours(nlohmann::json spec);

}  // namespace firkin
