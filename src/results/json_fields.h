// Fields of a JSON object, with complaints that name the whole path: "results: curve[2].measured_s: missing; expected a positive number".
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "firkin/base/error.h"

namespace firkin {

// What JsonFields throws: "results: PATH: is PROBLEM; expected EXPECTED". Who has the text can look up the line of the path.
class FieldError : public InputError {
 public:
  FieldError(const std::string& field_path, const std::string& message) : InputError(message), path_(field_path) {}
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A view of one object. Null counts as absent everywhere (a number that is not finite becomes null in JSON).
// `maybe_` functions return nothing for an absent field; the others throw FieldError. Both throw for a field of the wrong type.
class JsonFields {
 public:
  // `path` as in a complaint, "" for the document itself. Throws FieldError unless `object` is one. The view refers to `object`.
  JsonFields(const nlohmann::json& object, std::string path);

  bool has(const std::string& name) const { return find(name) != nullptr; }

  double number(const std::string& name) const;  // finite
  double positive(const std::string& name) const;
  int64_t integer(const std::string& name) const;
  std::string text(const std::string& name) const;
  JsonFields object(const std::string& name) const;
  std::vector<JsonFields> objects(const std::string& name) const;  // an array of objects

  std::optional<double> maybe_number(const std::string& name) const;
  std::optional<double> maybe_positive(const std::string& name) const;
  std::optional<int64_t> maybe_integer(const std::string& name) const;
  std::optional<std::string> maybe_text(const std::string& name) const;
  std::optional<bool> maybe_boolean(const std::string& name) const;
  std::optional<JsonFields> maybe_object(const std::string& name) const;
  std::vector<JsonFields> maybe_objects(const std::string& name) const;  // empty when absent
  std::vector<double> maybe_positives(const std::string& name) const;    // an array of positive numbers
  std::vector<double> maybe_numbers(const std::string& name) const;      // of finite numbers; null within becomes infinite
  std::vector<int64_t> maybe_integers(const std::string& name) const;
  std::vector<std::vector<double>> maybe_series(const std::string& name) const;                // an array of arrays of numbers
  std::vector<std::vector<std::vector<double>>> nested_series(const std::string& name) const;  // arrays of these
  std::vector<std::string> maybe_texts(const std::string& name) const;

  const nlohmann::json& whole() const { return *object_; }

  // "results: PATH.NAME: is PROBLEM; expected EXPECTED"
  [[noreturn]] void fail(const std::string& name, const std::string& problem, const std::string& expected) const;

 private:
  const nlohmann::json* find(const std::string& name) const;
  template <class T, class Accepts>
  std::vector<T> list(const std::string& name, Accepts accepts, const char* expected) const;
  const nlohmann::json& array(const std::string& name) const;
  std::string path_of(const std::string& name) const;

  const nlohmann::json* object_;
  std::string path_;
};

}  // namespace firkin
