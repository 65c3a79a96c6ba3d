#include "results/json_fields.h"

#include <fmt/format.h>

#include <cmath>

namespace firkin {
namespace {

using nlohmann::json;

std::string described(const json& value) {
  constexpr size_t kLongest = 40;
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

bool is_int64(const json& value) {
  return value.is_number_integer() && (!value.is_number_unsigned() || value.get<uint64_t>() <= INT64_MAX);
}

}  // namespace

JsonFields::JsonFields(const json& object, std::string path) : object_(&object), path_(std::move(path)) {
  if (object.is_object()) return;
  throw FieldError(path_, fmt::format("results: {}{}{}; expected an object", path_, path_.empty() ? "" : ": ", described(object)));
}

const json* JsonFields::find(const std::string& name) const {
  const auto found = object_->find(name);
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

std::string JsonFields::path_of(const std::string& name) const {
  return path_.empty() ? name : path_ + "." + name;
}

void JsonFields::fail(const std::string& name, const std::string& problem, const std::string& expected) const {
  throw FieldError(path_of(name), fmt::format("results: {}: {}; expected {}", path_of(name), problem, expected));
}

std::optional<double> JsonFields::maybe_number(const std::string& name) const {
  const json* value = find(name);
  if (!value) return std::nullopt;
  if (!value->is_number() || !std::isfinite(value->get<double>())) fail(name, described(*value), "a number");
  return value->get<double>();
}

std::optional<double> JsonFields::maybe_positive(const std::string& name) const {
  const json* value = find(name);
  if (!value) return std::nullopt;
  if (!value->is_number() || !std::isfinite(value->get<double>()) || value->get<double>() <= 0) {
    fail(name, described(*value), "a positive number");
  }
  return value->get<double>();
}

std::optional<int64_t> JsonFields::maybe_integer(const std::string& name) const {
  const json* value = find(name);
  if (!value) return std::nullopt;
  if (!is_int64(*value)) fail(name, described(*value), "an integer of at most 64 bits");
  return value->get<int64_t>();
}

std::optional<std::string> JsonFields::maybe_text(const std::string& name) const {
  const json* value = find(name);
  if (!value) return std::nullopt;
  if (!value->is_string()) fail(name, described(*value), "a string");
  return value->get<std::string>();
}

std::optional<bool> JsonFields::maybe_boolean(const std::string& name) const {
  const json* value = find(name);
  if (!value) return std::nullopt;
  if (!value->is_boolean()) fail(name, described(*value), "true or false");
  return value->get<bool>();
}

std::optional<JsonFields> JsonFields::maybe_object(const std::string& name) const {
  const json* value = find(name);
  if (!value) return std::nullopt;
  return JsonFields(*value, path_of(name));
}

const json& JsonFields::array(const std::string& name) const {
  static const json kEmpty = json::array();
  const json* value = find(name);
  if (!value) return kEmpty;
  if (!value->is_array()) fail(name, described(*value), "an array");
  return *value;
}

std::vector<JsonFields> JsonFields::maybe_objects(const std::string& name) const {
  std::vector<JsonFields> list;
  for (const json& value : array(name)) list.emplace_back(value, fmt::format("{}[{}]", path_of(name), list.size()));
  return list;
}

template <class T, class Accepts>
std::vector<T> JsonFields::list(const std::string& name, Accepts accepts, const char* expected) const {
  std::vector<T> values;
  for (const json& value : array(name)) {
    if (!accepts(value)) fail(fmt::format("{}[{}]", name, values.size()), described(value), expected);
    values.push_back(value.is_null() ? T(HUGE_VAL) : value.get<T>());
  }
  return values;
}

std::vector<double> JsonFields::maybe_positives(const std::string& name) const {
  return list<double>(
      name, [](const json& value) { return value.is_number() && value.get<double>() > 0; }, "a positive number");
}

std::vector<double> JsonFields::maybe_numbers(const std::string& name) const {
  return list<double>(
      name, [](const json& value) { return value.is_number() || value.is_null(); }, "a number");
}

std::vector<int64_t> JsonFields::maybe_integers(const std::string& name) const {
  return list<int64_t>(name, is_int64, "an integer of at most 64 bits");
}

std::vector<std::vector<double>> JsonFields::maybe_series(const std::string& name) const {
  std::vector<std::vector<double>> series;
  for (const json& values : array(name)) {
    const std::string place = fmt::format("{}[{}]", name, series.size());
    const json row = {{place, values}};
    series.push_back(JsonFields(row, path_).maybe_numbers(place));
  }
  return series;
}

std::vector<std::vector<std::vector<double>>> JsonFields::nested_series(const std::string& name) const {
  std::vector<std::vector<std::vector<double>>> nested;
  for (const json& series : array(name)) {
    const std::string place = fmt::format("{}[{}]", name, nested.size());
    const json row = {{place, series}};
    nested.push_back(JsonFields(row, path_).maybe_series(place));
  }
  return nested;
}

std::vector<std::string> JsonFields::maybe_texts(const std::string& name) const {
  std::vector<std::string> texts;
  for (const json& value : array(name)) {
    if (!value.is_string()) fail(fmt::format("{}[{}]", name, texts.size()), described(value), "a string");
    texts.push_back(value.get<std::string>());
  }
  return texts;
}

double JsonFields::number(const std::string& name) const {
  if (!has(name)) fail(name, "missing", "a number");
  return *maybe_number(name);
}

double JsonFields::positive(const std::string& name) const {
  if (!has(name)) fail(name, "missing", "a positive number");
  return *maybe_positive(name);
}

int64_t JsonFields::integer(const std::string& name) const {
  if (!has(name)) fail(name, "missing", "an integer");
  return *maybe_integer(name);
}

std::string JsonFields::text(const std::string& name) const {
  if (!has(name)) fail(name, "missing", "a string");
  return *maybe_text(name);
}

JsonFields JsonFields::object(const std::string& name) const {
  if (!has(name)) fail(name, "missing", "an object");
  return *maybe_object(name);
}

std::vector<JsonFields> JsonFields::objects(const std::string& name) const {
  if (!has(name)) fail(name, "missing", "an array of objects");
  return maybe_objects(name);
}

}  // namespace firkin
