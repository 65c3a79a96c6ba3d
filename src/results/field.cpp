#include "results/field.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <limits>

#include "firkin/base/csv.h"
#include "firkin/base/units.h"
#include "results/numbers.h"

namespace firkin {
namespace {

using nlohmann::json;

template <class... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};

std::string text_of_number(double value, Unit unit, Medium medium) {
  switch (unit) {
    case Unit::kSeconds:
    case Unit::kDifference:
      return medium == Medium::kPage ? display_seconds(value) : format_seconds(value);
    case Unit::kBytes:
      return format_bytes(static_cast<int64_t>(value));
    case Unit::kMib:
    case Unit::kBytesAsMib:
      return display_cap(value);
    case Unit::kShare:
      return medium == Medium::kPage ? display_percent(value) : fmt::format("{:.1f} %", 100 * value);
    case Unit::kChange:
      return medium == Medium::kPage ? display_percent(value, true) : fmt::format("{:+.1f} %", 100 * value);
    case Unit::kRatio:
      return fmt::format("{:.3f}", value);
    case Unit::kCount:
      return grouped(static_cast<int64_t>(std::llround(value)), medium);
    case Unit::kText:
    case Unit::kPlain:
      break;
  }
  return fmt::format("{:.4g}", value);
}

constexpr double kMostMib = 8796093022208;  // 8 EiB

bool accepts(Unit unit, double value) {
  if (unit == Unit::kBytesAsMib) return value >= 0 && value <= kMostMib;
  const bool positive = unit == Unit::kBytes || unit == Unit::kMib || unit == Unit::kSeconds || unit == Unit::kRatio;
  return std::isfinite(value) && (!positive || value > 0);
}

// Unbounded intervals (too few samples) have a null end: nothing to show.
Value interval_from(const JsonFields& parent, const char* key) {
  const auto fields = parent.maybe_object(key);
  if (!fields) return {};
  const auto end = [&](const char* name) {
    if (!fields->whole().contains(name)) fields->number(name);
    return fields->maybe_number(name);
  };
  const auto low = end("low"), high = end("high");
  if (!low || !high) return {};
  if (*low > *high) fields->fail("low", fmt::format("{} is above high, {}", *low, *high), "low <= high");
  return Interval{*low, *high};
}

// The bytes of a size that was read in MiB.
Value bytes_from(const JsonFields& fields, const char* key, const Value& like) {
  const auto checked = [&](double size_mib) {
    if (!accepts(Unit::kBytesAsMib, size_mib)) fields.fail(key, fmt::format("{}", size_mib), "a size in MiB");
    return size_mib * static_cast<double>(kMiB);
  };
  if (std::holds_alternative<std::vector<double>>(like)) {
    std::vector<double> sizes = fields.maybe_numbers(key);
    for (double& size : sizes) size = checked(size);
    return sizes;
  }
  const auto size_mib = fields.maybe_number(key);
  if (!size_mib) return {};
  const double bytes = checked(*size_mib);
  if (std::holds_alternative<double>(like)) return bytes;
  return *size_mib == kMostMib ? std::numeric_limits<int64_t>::max() : static_cast<int64_t>(std::llround(bytes));
}

}  // namespace

Value mib_of(const Value& bytes) {
  if (const auto* whole = std::get_if<int64_t>(&bytes)) return mib(*whole);
  if (const auto* size = std::get_if<double>(&bytes)) return mib(*size);
  if (const auto* list = std::get_if<std::vector<double>>(&bytes)) {
    std::vector<double> sizes;
    for (const double size : *list) sizes.push_back(mib(size));
    return sizes;
  }
  return bytes;
}

json json_of(const Value& value) {
  return std::visit(Overloaded{[](std::monostate) { return json(); },
                               [](const Interval& interval) {
                                 // JSON has no infinity: the end of an unbounded interval is null.
                                 const auto end = [](double x) { return std::isfinite(x) ? json(x) : json(); };
                                 return json{{"low", end(interval.low)}, {"high", end(interval.high)}};
                               },
                               [](const auto& plain) { return json(plain); }},
                    value);
}

std::string text_of(const Value& value, Unit unit, Medium medium) {
  const auto number = [unit, medium](double x) { return text_of_number(x, unit, medium); };
  return std::visit(Overloaded{[medium](std::monostate) -> std::string { return medium == Medium::kPage ? "–" : "-"; },
                               [](bool yes) -> std::string { return yes ? "yes" : "no"; },
                               [&number](int64_t count) { return number(static_cast<double>(count)); },
                               [&number](double x) { return number(x); }, [](const std::string& text) { return text; },
                               [&number, medium](const Interval& interval) {
                                 if (!std::isfinite(interval.high)) return std::string("too few samples");
                                 return number(interval.low) + (medium == Medium::kPage ? " to " : " - ") + number(interval.high);
                               },
                               [&number](const auto& list) {
                                 std::vector<std::string> texts;
                                 for (const auto& x : list) {
                                   if constexpr (std::is_arithmetic_v<std::remove_cvref_t<decltype(x)>>) {
                                     texts.push_back(number(static_cast<double>(x)));
                                   } else {
                                     texts.push_back(x);
                                   }
                                 }
                                 return fmt::format("{}", fmt::join(texts, ", "));
                               }},
                    value);
}

void append_csv_names(std::string key, bool is_interval, std::vector<std::string>& names) {
  if (!is_interval) return names.push_back(std::move(key));
  constexpr std::string_view kMark = "ci";
  for (const char* end : {"low", "high"}) names.push_back(std::string(key).replace(key.rfind(kMark), kMark.size(), end));
}

void append_csv(const Value& value, bool is_interval, std::vector<std::string>& line) {
  if (const auto* interval = std::get_if<Interval>(&value)) {
    line.push_back(fmt::format("{}", interval->low));
    line.push_back(std::isfinite(interval->high) ? fmt::format("{}", interval->high) : "");
  } else if (std::holds_alternative<std::monostate>(value)) {
    line.insert(line.end(), is_interval ? 2 : 1, "");
  } else if (const auto* text = std::get_if<std::string>(&value)) {
    line.push_back(csv_field(*text));
  } else {
    line.push_back(json_of(value).dump());
  }
}

const char* expected_of(const Value& like, Unit unit) {
  if (std::holds_alternative<std::string>(like)) return "a string";
  if (std::holds_alternative<int64_t>(like)) return "an integer";
  if (std::holds_alternative<bool>(like)) return "true or false";
  if (std::holds_alternative<double>(like)) return accepts(unit, 0) ? "a number" : "a positive number";
  return "an array";
}

Value value_from(const JsonFields& fields, const char* key, const Value& like, Unit unit) {
  if (unit == Unit::kBytesAsMib) return bytes_from(fields, key, like);
  const auto value = [](auto optional) { return optional ? Value(std::move(*optional)) : Value(); };
  const auto read = Overloaded{
      [&](const Interval&) { return interval_from(fields, key); },
      [&](bool) { return value(fields.maybe_boolean(key)); },
      [&](int64_t) {
        const auto number = fields.maybe_integer(key);
        if (number && !accepts(unit, static_cast<double>(*number)))
          fields.fail(key, fmt::format("{}", *number), "a positive number of bytes");
        return value(number);
      },
      [&](double) { return value(accepts(unit, 0) ? fields.maybe_number(key) : fields.maybe_positive(key)); },
      [&](const std::string&) { return value(fields.maybe_text(key)); },
      [&](const std::vector<std::string>&) { return Value(fields.maybe_texts(key)); },
      [&](const std::vector<int64_t>&) { return Value(fields.maybe_integers(key)); },
      [&](const std::vector<double>&) { return Value(accepts(unit, 0) ? fields.maybe_numbers(key) : fields.maybe_positives(key)); },
      [](std::monostate) { return Value(); }};
  return std::visit(read, like);
}

}  // namespace firkin
