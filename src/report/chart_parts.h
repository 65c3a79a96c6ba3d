// What all charts share: the frame of a Vega-Lite specification, axes, keys, and labels that keep clear of each other.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace firkin {

inline constexpr int kLabelSize = 12;       // pixels, text inside charts
inline constexpr int kSmallLabelSize = 11;  // pixels, axis labels

// A specification without layers: schema, container width, `height` pixels, fonts and colours. Marks beside the plot make it narrower.
// key_columns: entries of the key in one row.
nlohmann::json chart_frame(int height, int key_columns);

// Vega-Lite's "data" holding `rows` (an array of objects).
nlohmann::json inline_data(nlohmann::json rows);

// One entry of a chart's key.
struct KeyEntry {
  std::string name;
  std::string shape;   // a Vega symbol; "stroke" is a short line
  std::string stroke;  // roles of palette.h
  std::string fill;
};

// Encodings "shape", "stroke" and "fill" of the field "kind", whose merged key above the plot lists `entries`.
nlohmann::json key_encoding(const std::vector<KeyEntry>& entries);

// The y channel of a chart whose rows are the values of `field`, in the order of `names`. padding: of a row, how much lies between rows.
nlohmann::json named_rows(const std::string& field, const std::vector<std::string>& names, double padding);

// Powers of two from at or above `low` to at or below `high`, in steps that give at most `most` of them.
std::vector<double> power_of_two_ticks(double low, double high, size_t most);

// Powers of ten within [low, high], and their doubles and quintuples when that is a range of less than two decades.
std::vector<double> log_ticks(double low, double high);

// Vega expressions for axis labels: 4096 -> "4 KiB", 0.0002 -> "200 µs".
std::string bytes_label_expression();
std::string seconds_label_expression();

// Positions for labels, at least `gap` apart and in the order of `wanted`: pushed up from where they collide, and down from `high`.
std::vector<double> spread_apart(const std::vector<double>& wanted, double gap, double low, double high);

}  // namespace firkin
