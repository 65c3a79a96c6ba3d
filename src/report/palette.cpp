#include "palette.h"

#include <fmt/format.h>

#include <array>

namespace firkin {
namespace {

struct Role {
  const char* name;
  const char* light;
  const char* dark;
};

constexpr std::array kRoles = {
    Role{"ink", "#1d2733", "#e6ebf1"},     Role{"muted", "#5b6775", "#a3b0bf"},     Role{"grid", "#e3e8ee", "#2b3643"},
    Role{"surface", "#ffffff", "#161d26"}, Role{"predicted", "#0b6bb5", "#62b3f4"}, Role{"measured", "#c8500a", "#ff9a52"},
    Role{"gap", "#0a7f5f", "#3ecf9f"},     Role{"compute", "#9fb3c8", "#51657b"},
};

}  // namespace

std::string chart_colour(const std::string& role) {
  return "var(--chart-" + role + ")";
}

std::string colour_declarations(Scheme scheme) {
  std::string css;
  for (const Role& role : kRoles) css += fmt::format("--chart-{}:{};", role.name, scheme == Scheme::kLight ? role.light : role.dark);
  return css;
}

nlohmann::json with_light_colours(nlohmann::json spec) {
  if (spec.is_structured()) {
    for (auto& child : spec) child = with_light_colours(std::move(child));
  } else if (spec.is_string()) {
    for (const Role& role : kRoles) {
      if (spec == chart_colour(role.name)) return role.light;
    }
  }
  return spec;
}

}  // namespace firkin
