#include "firkin/base/json_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <sstream>
#include <vector>

#include "firkin/base/error.h"

namespace firkin {
namespace {

using Json = nlohmann::json;

// Walks through JSON text and calls `on_value()` where each value starts, when its path is known. Errors name file and
// line.
class Scanner : public Json::json_sax_t {
 public:
  Scanner(std::string_view text, std::string file, std::string expected)
      : text_(text), in_(std::string(text)), file_(std::move(file)), expected_(std::move(expected)) {}
  ~Scanner() override = default;

  void scan() { Json::sax_parse(in_, this); }

  bool null() override { return value(); }
  bool boolean(bool) override { return value(); }
  bool number_integer(number_integer_t) override { return value(); }
  bool number_unsigned(number_unsigned_t) override { return value(); }
  bool number_float(number_float_t, const string_t&) override { return value(); }
  bool string(string_t&) override { return value(); }
  bool binary(binary_t&) override { return value(); }
  bool start_object(std::size_t) override { return open(false); }
  bool start_array(std::size_t) override { return open(true); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    Level& level = levels_.back();
    if (!level.keys.insert(name).second) fail(line(), fmt::format("key '{}' appears twice", name));
    level.key = name;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const Json::exception& error) override {
    constexpr int kNumberTooLarge = 406;
    fail(line_after(position), error.id == kNumberTooLarge ? "a number is too large" : "not JSON");
  }

 protected:
  virtual void on_value() {}

  int64_t line() { return line_after(static_cast<size_t>(in_.rdbuf()->pubseekoff(0, std::ios::cur, std::ios::in))); }

  std::string path() const {
    std::string path;
    for (const Level& level : levels_) {
      if (level.array) {
        path += fmt::format("[{}]", level.index);
      } else {
        path += (path.empty() ? "" : ".") + level.key;
      }
    }
    return path;
  }

 private:
  struct Level {
    bool array = false;
    int64_t index = -1;  // the index of the last element read
    std::string key = {};
    std::set<std::string> keys = {};
  };

  [[noreturn]] void fail(int64_t line, const std::string& what) const {
    throw InputError(fmt::format("{}:{}: {}; expected {}", file_, line, what, expected_));
  }

  // After a number, the last character that the parser has read already belongs to the next token.
  int64_t line_after(size_t consumed) const {
    const size_t before = consumed > 0 ? std::min(consumed - 1, text_.size()) : 0;
    return 1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(before), '\n');
  }

  bool value() {
    if (!levels_.empty() && levels_.back().array) ++levels_.back().index;
    on_value();
    return true;
  }

  bool open(bool array) {
    value();
    if (levels_.size() == kDeepestJson) fail(line(), fmt::format("more than {} values within each other", kDeepestJson));
    levels_.push_back({.array = array});
    return true;
  }

  bool close() {
    levels_.pop_back();
    return true;
  }

  std::string_view text_;
  std::istringstream in_;
  std::string file_;
  std::string expected_;
  std::vector<Level> levels_;
};

class LineFinder : public Scanner {
 public:
  LineFinder(std::string_view text, std::string_view wanted) : Scanner(text, "", ""), wanted_(wanted) {}
  int64_t found_line() const { return line_; }

 protected:
  void on_value() override {
    const std::string here = path();
    const bool around = wanted_.starts_with(here) &&
                        (here.empty() || here.size() == wanted_.size() || wanted_[here.size()] == '.' || wanted_[here.size()] == '[');
    if (!around || (length_ && here.size() <= *length_)) return;
    length_ = here.size();
    line_ = line();
  }

 private:
  std::string_view wanted_;
  std::optional<size_t> length_;  // the length of the path to the innermost value found so far
  int64_t line_ = 1;
};

}  // namespace

Json parse_json(std::string_view text, const std::string& file, const std::string& expected) {
  Scanner(text, file, expected).scan();
  return Json::parse(text);
}

int64_t json_line_of(std::string_view text, std::string_view path) {
  LineFinder finder(text, path);
  finder.scan();
  return finder.found_line();
}

std::string dump_json(const Json& json, int indent) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace firkin
