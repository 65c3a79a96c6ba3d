#include "crossed_waits.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "missing_ranks.h"

namespace firkin {
namespace {

constexpr const char* kCrossed = "crossed";
constexpr int kRanksPerLook = 8;

std::string note_key(int rank) {
  return fmt::format("at/{}", rank);
}

bool has_begun(const WaitNote& rank, const WaitPlace& place) {
  if (place.step < 0) return true;  // what is waited for belongs to no step
  const auto found = rank.begun.find(place.wrapper);
  return found != rank.begun.end() && found->second >= place.step;
}

struct PlacedRank {
  int rank = 0;
  const WaitPlace& place;
};

std::string describe_crossed(PlacedRank one, PlacedRank other) {
  const auto& [first, second] = one.rank < other.rank ? std::pair(one, other) : std::pair(other, one);
  return fmt::format(
      "rank {} waits in step {} of {}, rank {} in step {} of {}: every rank must step wrapped modules in the same order (abandon_step() "
      "after "
      "a failed forward)",
      first.rank, first.place.step, first.place.name, second.rank, second.place.step, second.place.name);
}

std::string find_crossed(c10d::Store& store, const LookOptions& options) {
  const int64_t most = std::min<int64_t>(kRanksPerLook, options.size);
  for (int64_t i = 0; i <= most; ++i) {
    const int other = i == most ? 0 : static_cast<int>((options.rank + 1 + options.turn * kRanksPerLook + i) % options.size);
    if (other == options.rank || !store.check({note_key(other)})) continue;
    const auto note = parse_wait_note(store.get_to_str(note_key(other)));
    if (note && are_crossed(*options.note, *note)) return describe_crossed({options.rank, options.note->place}, {other, note->place});
  }
  return "";
}

std::string told_crossed(c10d::Store& store) {
  return store.check({kCrossed}) ? store.get_to_str(kCrossed) : "";
}

Look look(c10d::Store& store, const LookOptions& options) {
  if (options.note && options.turn == 0) store.set(note_key(options.rank), to_text(*options.note));
  if (someone_failed(store)) {
    const std::string told = told_crossed(store);
    if (!told.empty()) set_mark(store, options.rank, told);  // this rank goes too, and is not missing
    return {true, told};
  }
  if (!options.note) return {};
  const std::string crossed = find_crossed(store, options);
  if (crossed.empty()) return {};
  store.set(kCrossed, crossed);  // before the marks, so that whoever sees these finds it
  set_mark(store, options.rank, crossed);
  return {true, crossed};
}

}  // namespace

// "WRAPPER STEP\nNAME\nWRAPPER STEP WRAPPER STEP ..."
std::string to_text(const WaitNote& note) {
  std::string name = note.place.name;
  std::replace(name.begin(), name.end(), '\n', ' ');
  std::string text = fmt::format("{} {}\n{}\n", note.place.wrapper, note.place.step, name);
  for (const auto& [wrapper, step] : note.begun) text += fmt::format("{} {} ", wrapper, step);
  return text;
}

std::optional<WaitNote> parse_wait_note(const std::string& text) {
  std::istringstream in(text);
  WaitNote note;
  if (!(in >> note.place.wrapper >> note.place.step) || in.get() != '\n' || !std::getline(in, note.place.name)) return std::nullopt;
  for (int64_t wrapper = 0, step = 0; in >> wrapper >> step;) note.begun[wrapper] = step;
  return note;
}

bool are_crossed(const WaitNote& one, const WaitNote& other) {
  return one.place.wrapper != other.place.wrapper && !has_begun(one, other.place) && !has_begun(other, one.place);
}

std::string crossed_waits(BoundedStore& store, std::chrono::milliseconds limit) {
  return store.ask(limit, told_crossed).value_or("");
}

Look look_around(BoundedStore& store, std::chrono::milliseconds limit, const LookOptions& options) {
  return store.ask(limit, [options](c10d::Store& asked) { return look(asked, options); }).value_or(Look{});
}

}  // namespace firkin
