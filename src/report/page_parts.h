// Parts that every page has, as HTML. All texts are plain and get escaped.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "answer.h"
#include "report/charts.h"

namespace firkin {

std::string figures_html(const std::vector<KeyFigure>& figures);  // "" when there are none
std::string charts_html(const std::vector<Chart>& charts);

// What report.js draws: [{"id": ..., "spec": ...}, ...]
nlohmann::json charts_island(const std::vector<Chart>& charts);

std::string paragraphs(const std::vector<std::string>& texts);

// The command as one would type it, and when it was; "" without a command.
std::string command_html(const std::vector<std::string>& command_line, const std::string& started);

}  // namespace firkin
