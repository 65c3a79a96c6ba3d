// The fields of a row or a section: one table says how they are named in results.json, where they lie in the struct, and how they are
// shown.
//
//   constexpr Field<CurveRow> kFields[] = {{"cap_mib", &CurveRow::cap_mib, Unit::kMib, "cap MiB"},
//                                          {"buckets", &CurveRow::buckets, Unit::kCount, "buckets"}};
//   to_json(kFields, row);           // {"cap_mib": 4, "buckets": 7}
//   from_json(kFields, json_fields)  // the row again, or a complaint that names what is wrong
//   table_of(kFields, rows, Medium::kTerminal)
//
// An optional member may be absent from JSON; all others must be there.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "firkin/stats/interval.h"
#include "results/json_fields.h"
#include "results/table.h"

namespace firkin {

// What a number means: decides how it is written for a person, and what is accepted when it is read.
enum class Unit {
  kText,
  kCount,
  kBytes,       // positive
  kMib,         // positive
  kBytesAsMib,  // bytes in the struct, MiB for everybody else; at least 0
  kSeconds,     // positive
  kDifference,  // seconds, of either sign
  kShare,       // a fraction, shown in percent
  kChange,      // a fraction of either sign, shown in percent with its sign
  kRatio,       // positive, around 1
  kPlain,       // any number
};

// Where a field is shown; in JSON it is, unless kNotInJson.
enum Shown : unsigned {
  kHidden = 0,
  kFirstTable = 1,   // in the terminal
  kSecondTable = 2,  // in the terminal, for rows with more columns than 80 characters hold
  kPage = 4,
  kCsv = 8,
  kNotInJson = 16,  // in another unit than JSON's
  kEverywhere = kFirstTable | kPage | kCsv,
};

// A value on its way between a struct, JSON and text; none: absent.
using Value = std::variant<std::monostate, bool, int64_t, double, std::string, Interval, std::vector<double>, std::vector<int64_t>,
                           std::vector<std::string>>;

// A data member, or a function of the row, whose value is written and shown but never read.
template <class Row>
using Member =
    std::variant<bool Row::*, int64_t Row::*, double Row::*, std::string Row::*, std::optional<bool> Row::*, std::optional<int64_t> Row::*,
                 std::optional<double> Row::*, std::optional<std::string> Row::*, std::optional<Interval> Row::*,
                 std::vector<double> Row::*, std::vector<int64_t> Row::*, std::vector<std::string> Row::*, Value (*)(const Row&)>;

template <class Row>
struct Field {
  const char* key;  // in JSON and CSV
  Member<Row> member;
  Unit unit = Unit::kText;
  const char* heading = "";  // of a column; of a fact: its name
  unsigned shown = kEverywhere;
};

nlohmann::json json_of(const Value& value);

// A number, text, interval or list for a person; "-" or "–" for an absent one.
std::string text_of(const Value& value, Unit unit, Medium medium);

// Fields of a CSV file, without units; an interval has two: "measured_ci_s" gives measured_low_s and measured_high_s.
void append_csv_names(std::string key, bool is_interval, std::vector<std::string>& names);
void append_csv(const Value& value, bool is_interval, std::vector<std::string>& line);

// "a positive number", "a string": what a value of the type that `like` has must be.
const char* expected_of(const Value& like, Unit unit);

// The value of `key` if it is there, of the type that `like` has. Throws FieldError when it is of another type, or not what `unit` accepts.
Value value_from(const JsonFields& fields, const char* key, const Value& like, Unit unit);

// Bytes as MiB: of a number, or of each in a list.
Value mib_of(const Value& bytes);

namespace field_details {

template <class T>
struct Unwrapped {
  using type = T;
  static constexpr bool optional = false;
};
template <class T>
struct Unwrapped<std::optional<T>> {
  using type = T;
  static constexpr bool optional = true;
};

template <class Row>
Value get(const Field<Row>& field, const Row& row) {
  const Value value = std::visit(
      [&row](auto member) -> Value {
        if constexpr (std::is_member_object_pointer_v<decltype(member)>) {
          using T = std::remove_cvref_t<decltype(row.*member)>;
          if constexpr (Unwrapped<T>::optional) {
            return (row.*member) ? Value(*(row.*member)) : Value();
          } else {
            return Value(row.*member);
          }
        } else {
          return member(row);
        }
      },
      field.member);
  return field.unit == Unit::kBytesAsMib ? mib_of(value) : value;
}

// Whether a field's values are intervals, which take two columns of a CSV file.
template <class Row>
bool is_interval(const Field<Row>& field) {
  return std::holds_alternative<std::optional<Interval> Row::*>(field.member);
}

template <class Row>
void set(const Field<Row>& field, Row& row, const JsonFields& fields) {
  std::visit(
      [&](auto member) {
        if constexpr (std::is_member_object_pointer_v<decltype(member)>) {
          using T = std::remove_cvref_t<decltype(row.*member)>;
          using Plain = typename Unwrapped<T>::type;
          Value value = value_from(fields, field.key, Value(Plain()), field.unit);
          if (std::holds_alternative<Plain>(value)) {
            row.*member = std::get<Plain>(std::move(value));
          } else if constexpr (!Unwrapped<T>::optional) {
            fields.fail(field.key, "missing", expected_of(Value(Plain()), field.unit));
          }
        }
      },
      field.member);
}

}  // namespace field_details

template <class Row>
nlohmann::json to_json(std::span<const Field<Row>> fields, const std::type_identity_t<Row>& row) {
  nlohmann::json json = nlohmann::json::object();
  for (const Field<Row>& field : fields) {
    const Value value = (field.shown & kNotInJson) != 0 ? Value() : field_details::get(field, row);
    if (!std::holds_alternative<std::monostate>(value)) json[field.key] = json_of(value);
  }
  return json;
}

template <class Row>
nlohmann::json rows_to_json(std::span<const Field<Row>> fields, const std::vector<std::type_identity_t<Row>>& rows) {
  nlohmann::json json = nlohmann::json::array();
  for (const Row& row : rows) json.push_back(to_json(fields, row));
  return json;
}

// Throws FieldError.
template <class Row>
Row from_json(std::span<const Field<Row>> fields, const JsonFields& json) {
  Row row;
  for (const Field<Row>& field : fields) field_details::set(field, row, json);
  return row;
}

template <class Row>
std::vector<Row> rows_from_json(std::span<const Field<Row>> fields, const std::vector<JsonFields>& rows) {
  std::vector<Row> read;
  for (const JsonFields& row : rows) read.push_back(from_json(fields, row));
  return read;
}

// The rows as a table with the columns that are shown in one of `shown`. A column of which no row has a value is left out.
template <class Row>
Table table_of(std::span<const Field<Row>> fields, const std::vector<std::type_identity_t<Row>>& rows, Medium medium, unsigned shown) {
  Table table;
  table.rows.resize(rows.size());
  for (const Field<Row>& field : fields) {
    if ((field.shown & shown) == 0) continue;
    std::vector<Value> values;
    bool any = rows.empty();
    for (const Row& row : rows) {
      values.push_back(field_details::get(field, row));
      any = any || !std::holds_alternative<std::monostate>(values.back());
    }
    if (!any) continue;
    table.columns.push_back({field.heading, field.unit != Unit::kText});
    for (size_t i = 0; i < rows.size(); ++i) table.rows[i].cells.push_back(text_of(values[i], field.unit, medium));
  }
  return table;
}

// With the columns that are shown on a page, or first in the terminal.
template <class Row>
Table table_of(std::span<const Field<Row>> fields, const std::vector<std::type_identity_t<Row>>& rows, Medium medium, const char* caption) {
  Table table = table_of(fields, rows, medium, medium == Medium::kPage ? kPage : kFirstTable);
  table.caption = caption;
  return table;
}

// The columns of a CSV file, and one row's fields; absent values are empty.
template <class Row>
std::vector<std::string> csv_names(std::span<const Field<Row>> fields) {
  std::vector<std::string> names;
  for (const Field<Row>& field : fields) {
    if ((field.shown & kCsv) != 0) append_csv_names(field.key, field_details::is_interval(field), names);
  }
  return names;
}

template <class Row>
std::vector<std::string> csv_line(std::span<const Field<Row>> fields, const std::type_identity_t<Row>& row) {
  std::vector<std::string> line;
  for (const Field<Row>& field : fields) {
    if ((field.shown & kCsv) != 0) append_csv(field_details::get(field, row), field_details::is_interval(field), line);
  }
  return line;
}

// A section as names and values for a person: those fields that are shown on a page and have a value.
template <class Row>
Facts facts_of(std::span<const Field<Row>> fields, const std::type_identity_t<Row>& row) {
  Facts facts;
  for (const Field<Row>& field : fields) {
    const Value value = field_details::get(field, row);
    if ((field.shown & kPage) == 0 || std::holds_alternative<std::monostate>(value)) continue;
    facts.emplace_back(field.heading, text_of(value, field.unit, Medium::kPage));
  }
  return facts;
}

}  // namespace firkin
