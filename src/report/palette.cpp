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

// change_of: of a role, which string becomes which.
template <class ChangeOf>
nlohmann::json with_strings_replaced(nlohmann::json spec, const ChangeOf& change_of) {
  if (spec.is_structured()) {
    for (auto& child : spec) child = with_strings_replaced(std::move(child), change_of);
  } else if (spec.is_string()) {
    for (const Role& role : kRoles) {
      const auto [from, to] = change_of(role);
      if (spec == from) return to;
    }
  }
  return spec;
}

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
  return with_strings_replaced(std::move(spec),
                               [](const Role& role) { return std::pair(chart_colour(role.name), std::string(role.light)); });
}

nlohmann::json with_page_colours(nlohmann::json spec) {
  return with_strings_replaced(std::move(spec),
                               [](const Role& role) { return std::pair(std::string(role.light), chart_colour(role.name)); });
}

}  // namespace firkin
