#include "nccl_inspector.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>

#include "benchmark_rows.h"
#include "firkin/base/error.h"
#include "firkin/base/json_text.h"
#include "firkin/base/units.h"
#include "unzipped.h"

namespace firkin {
namespace {

// One call of one communicator, from the files read so far.
struct InspectedCall {
  int64_t bytes = 0;
  std::set<int64_t> ranks = {};
  double least_s = 0;
};

class InspectorReader {
 public:
  void add_line(std::string_view line, const std::string& file, int64_t number) {
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) return;
    where_ = at_line(file, number);
    first_ = first_.empty() ? where_ : first_;
    const nlohmann::json record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!record.is_object()) fail(where_, "no whole line of JSON; expected what NCCL's Inspector writes");
    const auto performance = record.find("coll_perf");
    if (performance == record.end()) return void(++others_);  // a send or a receive
    const nlohmann::json& header = part(record, "header");
    if (text(*performance, "coll") != "AllReduce") return void(++others_);
    // The host's times hold what the host did beside the call.
    if (performance->value("coll_timing_source", nlohmann::json()).is_string() &&
        !text(*performance, "coll_timing_source").starts_with("kernel")) {
      return void(++host_times_);
    }
    const int64_t world_size = whole(header, "n_ranks", 1), bytes = whole(*performance, "coll_msg_size_bytes", 1);
    const double seconds = positive(*performance, "coll_exec_time_us") * 1e-6;
    InspectedCall& call = calls_[{text(header, "id"), whole(*performance, "coll_sn", 0), world_size}];
    const bool is_new = call.ranks.empty();
    if (!is_new && call.bytes != bytes)
      fail(where_, fmt::format("{} bytes, on another rank {}; expected ranks of one run", bytes, call.bytes));
    if (!call.ranks.insert(whole(header, "rank", 0)).second)
      fail(where_, "a call that this rank has made already; expected each file once");
    call.bytes = bytes;
    call.least_s = is_new ? seconds : std::min(call.least_s, seconds);
  }

  Imported finish(const std::string& file) const {
    Imported imported;
    std::map<std::pair<int64_t, int64_t>, std::vector<double>> times;  // by ranks and bytes
    int64_t incomplete = 0, most_ranks = 0, world = 0;
    for (const auto& [key, call] : calls_) {
      const int64_t world_size = std::get<2>(key);
      world = std::max(world, world_size);
      most_ranks = std::max(most_ranks, std::ssize(call.ranks));
      if (world_size < 2 || std::ssize(call.ranks) != world_size) {
        ++incomplete;
        continue;
      }
      times[{world_size, call.bytes}].push_back(call.least_s);
    }
    for (const auto& [key, seconds] : times) imported.table.push_back(row_of_samples(key.second, key.first, seconds, {}));
    const std::string place = first_.empty() ? at_line(file, 1) : first_;
    if (imported.table.empty() && incomplete > 0) {
      fail(place, fmt::format("calls of at most {} of {} ranks, which last as long as these wait; expected the files of all ranks",
                              most_ranks, world));
    }
    if (imported.table.empty()) fail(place, "no all-reduce that a GPU timed; expected what NCCL's Inspector writes about training");
    const auto append_note = [&](int64_t count, const char* what) {
      if (count > 0) imported.notes.push_back(fmt::format("skipped {} {}", count, what));
    };
    append_note(others_, "lines of other operations than all-reduces");
    append_note(host_times_, "all-reduces that the host timed");
    append_note(incomplete, "all-reduces that the files of some rank lack");
    return imported;
  }

 private:
  const nlohmann::json& part(const nlohmann::json& object, const char* key) const {
    const auto found = object.is_object() ? object.find(key) : object.end();
    if (found == object.end()) fail(where_, fmt::format("no '{}'; expected what NCCL's Inspector writes", key));
    return *found;
  }
  std::string text(const nlohmann::json& object, const char* key) const {
    const nlohmann::json& value = part(object, key);
    if (value.is_string()) return value.get<std::string>();
    return dump_json(value);  // an id may be a number
  }
  int64_t whole(const nlohmann::json& object, const char* key, int64_t least) const {
    const nlohmann::json& value = part(object, key);
    if (value.is_number_integer() && value >= least && value <= (int64_t{1} << 53)) return value.get<int64_t>();
    fail(where_, fmt::format("{} is {}; expected a whole number, at least {}", key, dump_json(value), least));
  }
  double positive(const nlohmann::json& object, const char* key) const {
    const nlohmann::json& value = part(object, key);
    if (value.is_number() && !expected_of_measured(1e-6 * value.get<double>())) return value.get<double>();
    fail(where_, fmt::format("{} is {}; expected microseconds, more than 0", key, dump_json(value)));
  }

  std::map<std::tuple<std::string, int64_t, int64_t>, InspectedCall> calls_;  // by communicator, number and ranks
  int64_t others_ = 0, host_times_ = 0;
  std::string where_, first_;  // of the current line, and of the first
};

}  // namespace

bool is_inspector_text(std::string_view beginning) {
  const std::string_view line = beginning.substr(0, beginning.find('\n'));
  const auto holds = [&](std::string_view word) { return line.find(word) != std::string_view::npos; };
  return line.starts_with('{') && holds("\"header\"") && (holds("\"coll_perf\"") || holds("\"p2p_perf\""));
}

Imported read_nccl_inspector(const std::vector<std::filesystem::path>& files) {
  constexpr size_t kLongestLine = size_t{1} << 20;
  InspectorReader reader;
  for (const std::filesystem::path& path : files) {
    UnzippedFile file(path);
    std::string line;
    int64_t number = 1;
    for (std::string_view piece = file.next(); !piece.empty(); piece = file.next()) {
      for (size_t end = 0; (end = piece.find('\n')) != std::string_view::npos; piece.remove_prefix(end + 1)) {
        line += piece.substr(0, end);
        reader.add_line(line, path.string(), number++);
        line.clear();
      }
      line += piece;
      if (line.size() > kLongestLine)
        fail(at_line(path.string(), number), fmt::format("the line is longer than {} bytes; expected JSON", kLongestLine));
    }
    reader.add_line(line, path.string(), number);
  }
  return reader.finish(files.empty() ? "" : files.front().string());
}

Imported parse_nccl_inspector(std::string_view text, const std::string& file) {
  InspectorReader reader;
  for_each_line(text, [&](int64_t number, std::string_view line) { reader.add_line(line, file, number); });
  return reader.finish(file);
}

}  // namespace firkin
