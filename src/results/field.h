// How a struct is written: one table of fields says their names in results.json, where they lie, and how they are
// shown.
//
//   template <>
//   constexpr auto kFields<CurveRow> = std::tuple(Field("cap_mib", &CurveRow::cap_bytes, Unit::kMib, "cap MiB"),
//                                                 Field("buckets", &CurveRow::buckets));
//   json_of(row);                           // {"cap_mib": 4, "buckets": 7}
//   value_from_json<CurveRow>(document, "")  // the row again, or a complaint that names what is wrong
//   table_of(rows, kFirstTable, "By cap");  // for the terminal
//
// A member is a number, a text, an enumeration with names, an interval, another struct with a table, or a list or an
// optional of these; or JSON that is passed on as it is. An optional may be absent from JSON, and so may JSON that is
// passed on. All others must be there.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "firkin/stats/estimates.h"
#include "results/display.h"

namespace firkin {

// What a number means: decides how it is written for a person, and what is accepted when it is read.
enum class Unit {
  kText,
  kCount,
  kBytes,       // positive
  kSize,        // bytes, perhaps none
  kMib,         // bytes in the struct, MiB for everybody else; positive
  kBytesAsMib,  // the same, at least 0
  kSeconds,     // positive
  kDifference,  // seconds, of either sign
  kShare,       // a fraction, shown in percent
  kChange,      // a fraction of either sign, shown in percent with its sign
  kRatio,       // positive, around 1
  kBandwidth,   // bytes per second, shown in GB/s
  kPlain,       // any number
};

constexpr bool is_in_mib(Unit unit) {
  return unit == Unit::kMib || unit == Unit::kBytesAsMib;
}

// Where a field is shown, and when it is in JSON.
enum FieldPlaces : unsigned {
  kHidden = 0,
  kFirstTable = 1,   // in the terminal
  kSecondTable = 2,  // in the terminal, for rows with more columns than 80 characters hold
  kPage = 4,
  kTables = kFirstTable | kPage,
  kIfAny = 8,     // a list or a number: not written when it is empty or 0, and may be absent
  kDefault = 16,  // may be absent, and is then what the struct has
};

// "cpu quota" for "cpu_quota", "step" for "step_s".
std::string words_of_key(std::string key);

template <class T>
constexpr bool is_optional = false;
template <class T>
constexpr bool is_optional<std::optional<T>> = true;
template <class T>
constexpr bool is_list = false;
template <class T>
constexpr bool is_list<std::vector<T>> = true;
template <class T>
constexpr bool is_interval = std::is_same_v<T, Interval> || std::is_same_v<T, std::optional<Interval>>;

// JSON that is only passed on.
template <class T>
constexpr bool is_raw = std::is_same_v<T, nlohmann::json>;

// The unit of a value if the field names none: a count, a number or a text.
template <class T>
constexpr Unit unit_of() {
  if constexpr (is_optional<T> || is_list<T>) return unit_of<typename T::value_type>();
  if constexpr (std::is_same_v<T, int64_t>) return Unit::kCount;
  return std::is_same_v<T, double> ? Unit::kPlain : Unit::kText;
}

// One field: a data member, or a function of the row, which is written and shown but never read. Without a key, it is
// only shown; a struct's fields then join those of the row. The key "samples.step_s" means "step_s" of an object
// "samples". The default title is the key in words, for an interval "95 % interval".
template <class Row, class T>
struct Field {
  const char* key;  // in JSON
  T Row::*member = nullptr;
  T (*get)(const Row&) = nullptr;
  Unit unit = unit_of<T>();
  const char* title = nullptr;  // the title of a column or a fact
  unsigned shown = kTables;

  // how: any of `unit`, `title` and `shown`.
  template <class... How>
  constexpr Field(const char* name, T Row::*place, How... how) : key(name), member(place) {
    (set(how), ...);
  }
  template <class... How>
  constexpr Field(const char* name, T (*value)(const Row&), How... how) : key(name), get(value) {
    (set(how), ...);
  }
  constexpr void set(Unit meaning) { unit = meaning; }
  constexpr void set(const char* heading) { title = heading; }
  constexpr void set(unsigned places) { shown = places; }

  T value_in(const Row& row) const { return member ? row.*member : get(row); }
  std::string heading() const { return title ? title : is_interval<T> ? "95 % interval" : words_of_key(key); }
};

// The table of a struct: a tuple of Field, which may be those of its base, too.
template <class T>
constexpr auto kFields = nullptr;

// What an enumeration's values are in JSON: a std::array of names, in their order.
template <class T>
constexpr auto kNames = nullptr;

// A view of one JSON object, which must outlive the view. A null, which stands for any number that is not finite, counts
// as absent. Throws InputError: "results: PATH: PROBLEM; expected EXPECTED".
class JsonFields {
 public:
  // `path` as messages name it, "" for the document itself. Throws unless `object` is a JSON object.
  JsonFields(const nlohmann::json& object, std::string path);

  // Null when absent. The key "samples.step_s" means "step_s" in an object "samples".
  const nlohmann::json* find(const std::string& key) const;
  bool has(const std::string& name) const { return find(name) != nullptr; }
  const nlohmann::json& whole() const { return *object_; }
  std::string path_of(const std::string& name) const;

  // The object under `key`, and the objects of the list under it. Throw if they are absent.
  JsonFields object(const std::string& key) const;
  std::vector<JsonFields> objects(const std::string& key) const;

  // Throw if the field has another type. get() also throws if it is absent, except for a list, which is then empty.
  template <class T>
  std::optional<T> maybe(const std::string& name, Unit unit = Unit::kPlain) const;
  template <class T>
  T get(const std::string& name, Unit unit = Unit::kPlain) const;

  // "results: PATH.NAME: PROBLEM; expected EXPECTED"
  [[noreturn]] void fail(const std::string& name, const std::string& problem, const std::string& expected) const;

 private:
  const nlohmann::json* object_;
  std::string path_;
};

namespace field_details {

template <class T>
constexpr bool has_fields =
    std::is_class_v<T> && !is_optional<T> && !is_list<T> && !is_raw<T> && !std::is_same_v<T, Interval> && !std::is_same_v<T, std::string>;

// Whether a value can be a cell of a table.
template <class T>
constexpr bool is_shown = !has_fields<T>;
template <class T>
constexpr bool is_shown<std::optional<T>> = is_shown<T>;
template <class T>
constexpr bool is_shown<std::vector<T>> = is_shown<T> && !is_list<T>;

template <class T>
bool is_nothing(const T& value) {
  if constexpr (is_list<T>) return value.empty();
  if constexpr (std::is_arithmetic_v<T>) return value == 0;
  return false;
}

template <class Row, class F>
void for_each_field(F f) {
  std::apply([&f](const auto&... field) { (f(field), ...); }, kFields<Row>);
}

nlohmann::json& place_in(nlohmann::json& object, const std::string& key);
nlohmann::json json_of_interval(const Interval& interval);

double read_plain(const nlohmann::json& value, const std::string& path, Unit unit, double);
int64_t read_plain(const nlohmann::json& value, const std::string& path, Unit unit, int64_t);
bool read_plain(const nlohmann::json& value, const std::string& path, Unit unit, bool);
std::string read_plain(const nlohmann::json& value, const std::string& path, Unit unit, const std::string&);
size_t read_index(const nlohmann::json& value, const std::string& path, std::span<const std::string_view> names);
Interval read_interval(const nlohmann::json& value, const std::string& path);
void require_array(const nlohmann::json& value, const std::string& path);
std::string element_path(const std::string& path, size_t i);

// "a positive number", "a string": what a value of the type must be.
std::string expected_number(Unit unit);
template <class T>
std::string expected_of(Unit unit) {
  if constexpr (std::is_same_v<T, std::string> || std::is_enum_v<T>) return "a string";
  if constexpr (std::is_same_v<T, bool>) return "true or false";
  if constexpr (std::is_same_v<T, int64_t>) return is_in_mib(unit) ? expected_number(unit) : "an integer";
  if constexpr (std::is_same_v<T, double>) return expected_number(unit);
  if constexpr (is_list<T>) return "an array of objects";
  return "an object";
}

// The value as text for a person; none for null.
std::optional<std::string> text_of_json(const nlohmann::json& value, Unit unit);

}  // namespace field_details

// Write and read the fields of a row as its table says. A struct that needs more has overloads, which may call these as
// write_object<>() and read_object<>(), and throw by fields.fail().
template <class Row>
void write_object(const Row& row, nlohmann::json& object);
template <class Row>
void read_object(const JsonFields& fields, Row& row);

// The JSON of a struct or of any value that a field can have; null for an optional without a value.
template <class T>
nlohmann::json json_of(const T& value, Unit unit = Unit::kPlain) {
  using namespace field_details;
  if constexpr (has_fields<T>) {
    nlohmann::json object = nlohmann::json::object();
    write_object(value, object);
    return object;
  } else if constexpr (is_optional<T>) {
    return value ? json_of(*value, unit) : nlohmann::json();
  } else if constexpr (is_list<T>) {
    nlohmann::json list = nlohmann::json::array();
    for (const auto& one : value) list.push_back(json_of(one, unit));
    return list;
  } else if constexpr (std::is_same_v<T, Interval>) {
    return json_of_interval(value);
  } else if constexpr (std::is_enum_v<T>) {
    return kNames<T>.at(static_cast<size_t>(value));
  } else {
    if constexpr (std::is_same_v<T, int64_t>) {
      if (is_in_mib(unit)) return short_mib(value);
    }
    return value;
  }
}

// The JSON of a row's field; null if there is nothing to write or to show.
template <class Row, class Owner, class T>
nlohmann::json json_in(const Row& row, const Field<Owner, T>& field) {
  const T value = field.value_in(row);
  if ((field.shown & kIfAny) != 0 && field_details::is_nothing(value)) return {};
  return json_of(value, field.unit);
}

template <class Row>
void write_object(const Row& row, nlohmann::json& object) {
  field_details::for_each_field<Row>([&]<class Owner, class T>(const Field<Owner, T>& field) {
    if (*field.key != '\0') {
      if (nlohmann::json value = json_in(row, field); !value.is_null()) field_details::place_in(object, field.key) = std::move(value);
    } else if constexpr (field_details::has_fields<T>) {
      write_object(field.value_in(row), object);
    }
  });
}

// Reads a struct, or any value that a field can have. `path` as messages name it, "" for the document itself.
template <class T>
T value_from_json(const nlohmann::json& value, const std::string& path, Unit unit = Unit::kPlain);

template <class Row>
void read_object(const JsonFields& fields, Row& row) {
  using namespace field_details;
  for_each_field<Row>([&]<class Owner, class T>(const Field<Owner, T>& field) {
    if (!field.member) return;
    T& member = row.*field.member;
    if (*field.key == '\0') {
      if constexpr (has_fields<T>) read_object(fields, member);
    } else if (const nlohmann::json* value = fields.find(field.key)) {
      member = value_from_json<T>(*value, fields.path_of(field.key), field.unit);
    } else {
      const bool may_be_absent = is_optional<T> || is_raw<T> || (field.shown & (kIfAny | kDefault)) != 0;
      if (!may_be_absent) fields.fail(field.key, "missing", expected_of<T>(field.unit));
    }
  });
}

template <class T>
T value_from_json(const nlohmann::json& value, const std::string& path, Unit unit) {
  using namespace field_details;
  if constexpr (has_fields<T>) {
    T row{};
    read_object(JsonFields(value, path), row);
    return row;
  } else if constexpr (std::is_same_v<T, Interval>) {
    return read_interval(value, path);
  } else if constexpr (is_optional<T>) {
    return value_from_json<typename T::value_type>(value, path, unit);
  } else if constexpr (is_list<T>) {
    T list;
    require_array(value, path);
    for (const nlohmann::json& one : value) {
      list.push_back(value_from_json<typename T::value_type>(one, element_path(path, list.size()), unit));
    }
    return list;
  } else if constexpr (std::is_enum_v<T>) {
    return static_cast<T>(read_index(value, path, kNames<T>));
  } else if constexpr (is_raw<T>) {
    return value;
  } else {
    return read_plain(value, path, unit, T());
  }
}

template <class T>
std::optional<T> JsonFields::maybe(const std::string& name, Unit unit) const {
  const nlohmann::json* value = find(name);
  return value ? std::optional<T>(value_from_json<T>(*value, path_of(name), unit)) : std::nullopt;
}

template <class T>
T JsonFields::get(const std::string& name, Unit unit) const {
  std::optional<T> value = maybe<T>(name, unit);
  if (!value && !is_list<T>) fail(name, "missing", field_details::expected_of<T>(unit));
  return std::move(value).value_or(T());
}

namespace field_details {

template <class Row>
void add_columns(const std::vector<const Row*>& rows, unsigned shown, Table& table) {
  for_each_field<Row>([&]<class Owner, class T>(const Field<Owner, T>& field) {
    if ((field.shown & shown) == 0) return;
    if constexpr (has_fields<T>) {
      if (*field.key != '\0') return;
      std::vector<const T*> joined;
      for (const Row* row : rows) joined.push_back(&(row->*field.member));
      add_columns(joined, shown, table);
    } else if constexpr (is_shown<T>) {
      std::vector<std::optional<std::string>> texts;
      for (const Row* row : rows) texts.push_back(text_of_json(json_in(*row, field), field.unit));
      const auto has_text = [](const auto& text) { return text.has_value(); };
      if (!rows.empty() && std::ranges::none_of(texts, has_text)) return;
      table.columns.push_back({field.heading(), field.unit != Unit::kText});
      for (size_t i = 0; i < rows.size(); ++i) table.rows[i].cells.push_back(texts[i].value_or("–"));
    }
  });
}

}  // namespace field_details

// The rows as a table with the columns shown in one of `shown`, including those of joined structs. Leaves out columns
// without any value.
template <class Row>
Table table_of(const std::vector<Row>& rows, unsigned shown, std::string caption = "") {
  Table table{std::move(caption), {}, std::vector<Table::Row>(rows.size())};
  std::vector<const Row*> places;
  for (const Row& row : rows) places.push_back(&row);
  field_details::add_columns(places, shown, table);
  return table;
}

// A section as names and values for a person: the fields shown on a page that have a value.
template <class Row>
Facts facts_of_fields(const Row& row) {
  Facts facts;
  field_details::for_each_field<Row>([&]<class Owner, class T>(const Field<Owner, T>& field) {
    if constexpr (field_details::is_shown<T>) {
      if ((field.shown & kPage) == 0) return;
      if (const auto text = field_details::text_of_json(json_in(row, field), field.unit)) facts.emplace_back(field.heading(), *text);
    }
  });
  return facts;
}

}  // namespace firkin
