#include "step_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "firkin/base/csv.h"
#include "firkin/base/units.h"
#include "firkin/stats/paired.h"
#include "firkin/stats/summary.h"
#include "results.h"

namespace firkin::cli {
namespace {

// Median over the steps of how much longer the slowest rank took than the fastest, as a share of the slowest's time.
double rank_spread(const std::vector<std::vector<double>>& by_step) {
  std::vector<double> spreads;
  for (const auto& ranks : by_step) {
    const auto [fastest, slowest] = std::ranges::minmax(ranks);
    spreads.push_back((slowest - fastest) / slowest);
  }
  return median(spreads);
}

// The share of the communication that backward hid, in percent (OSU's definition): max(0, 100 (1 - exposed / communication)).
std::optional<double> overlap_percent(const Cell& cell, double exposed_s, double communication_s) {
  if (cell.setting.options.strategy.launch != Launch::kWhenReady || communication_s <= 0) return std::nullopt;
  return std::clamp(100 * (1 - exposed_s / communication_s), 0.0, 100.0);
}

nlohmann::json cell_json(const Cell& cell, const StepBenchResult& result, size_t i, const nlohmann::json& model, int world_size,
                         uint64_t seed) {
  const double none_s = median(result.step_s[0]);
  const double exposed_s = none_s * (paired_ratio(result.step_s[i], result.step_s[0], seed).ratio - 1);
  const double step_s = median(result.step_s[i]);
  const double comm_s = median(result.comm_s[i]);
  const double communication_s = median(result.communication_s[i]);
  nlohmann::json row = {{"strategy", cell.strategy},
                        {"buckets", result.buckets[i]},
                        {"measured_s", step_s},
                        {"measured_ci_s", interval_json(bootstrap_median(result.step_s[i], seed))},
                        {"rank_spread", rank_spread(result.raw_step_s[i])},
                        {"exposed_s", exposed_s},
                        {"comm_s", comm_s},
                        {"comm_share", comm_s / step_s},
                        {"per_tensor_us", exposed_s / model["tensors"].get<double>() * 1e6}};
  if (cell.cap_mib) row["cap_mib"] = *cell.cap_mib;
  if (const auto overlap = overlap_percent(cell, exposed_s, communication_s)) {
    row["overlap_percent"] = *overlap;
    row["communication_s"] = communication_s;
  }
  if (model.contains("batch_size")) {
    row["tokens_per_s"] = world_size * model["batch_size"].get<double>() * model["sequence_length"].get<double>() / step_s;
  }
  return row;
}

// `bucketed` beside `torch` under the same cap.
void add_ratio_to_torch(const std::vector<Cell>& cells, const StepBenchResult& result, size_t i, uint64_t seed, nlohmann::json& row) {
  if (cells[i].strategy != "bucketed") return;
  const auto peer = std::ranges::find_if(cells, [&](const Cell& c) { return c.strategy == "torch" && c.cap_mib == cells[i].cap_mib; });
  if (peer == cells.end()) return;
  const PairedRatio ratio = paired_ratio(result.step_s[i], result.step_s[static_cast<size_t>(peer - cells.begin())], seed);
  row["ratio_to_torch"] = ratio.ratio;
  row["ratio_to_torch_ci"] = interval_json(ratio.interval);
}

std::string number_or_dash(const nlohmann::json& row, const char* key, const char* format) {
  return row.contains(key) ? fmt::format(fmt::runtime(format), row[key].get<double>()) : "-";
}

std::string title_of(const nlohmann::json& model) {
  std::string title = model["name"];
  if (model.contains("batch_size")) {
    title += fmt::format(", batch {}, sequence {}, {}", model["batch_size"].get<int64_t>(), model["sequence_length"].get<int64_t>(),
                         model["dtype"] == "Float" ? "fp32" : "bf16");
  }
  return title + fmt::format(": {} tensors, {} of gradients", model["tensors"].get<int64_t>(), format_bytes(model["gradient_bytes"]));
}

std::string time_table(const nlohmann::json& rows) {
  std::string table = fmt::format("{:<9} {:>6} {:>5} {:>8} {:>17} {:>6} {:>8} {:>7} {:>5}\n", "strategy", "MiB", "bkts", "step",
                                  "95 % interval", "spread", "after bw", "share", "ovlp");
  for (const nlohmann::json& row : rows) {
    const std::string interval =
        fmt::format("{} - {}", format_seconds(row["measured_ci_s"]["low"]), format_seconds(row["measured_ci_s"]["high"]));
    table += fmt::format("{:<9} {:>6} {:>5} {:>8} {:>17} {:>4.1f} % {:>8} {:>5.1f} % {:>5}\n", row["strategy"].get<std::string>(),
                         number_or_dash(row, "cap_mib", "{:g}"), row["buckets"].get<int64_t>(), format_seconds(row["measured_s"]), interval,
                         100 * row["rank_spread"].get<double>(), format_seconds(row["comm_s"]), 100 * row["comm_share"].get<double>(),
                         number_or_dash(row, "overlap_percent", "{:.0f} %"));
  }
  return table;
}

std::string cost_table(const nlohmann::json& rows) {
  std::string table = fmt::format("{:<9} {:>6} {:>9} {:>11} {:>10} {:>9}  {}\n", "strategy", "MiB", "exposed", "per tensor", "memory",
                                  "tokens/s", "x torch");
  for (const nlohmann::json& row : rows) {
    std::string ratio;
    if (row.contains("ratio_to_torch")) {
      ratio = fmt::format("  {:.3f} [{:.3f}, {:.3f}]", row["ratio_to_torch"].get<double>(), row["ratio_to_torch_ci"]["low"].get<double>(),
                          row["ratio_to_torch_ci"]["high"].get<double>());
    }
    table += fmt::format("{:<9} {:>6} {:>9} {:>8.1f} us {:>10} {:>9}{}\n", row["strategy"].get<std::string>(),
                         number_or_dash(row, "cap_mib", "{:g}"), format_seconds(row["exposed_s"]), row["per_tensor_us"].get<double>(),
                         format_bytes(row["peak_memory_bytes"]), number_or_dash(row, "tokens_per_s", "{:.0f}"), ratio);
  }
  return table;
}

// What makes wide intervals narrow; nothing when they are.
std::string advice(const nlohmann::json& rows) {
  constexpr double kWide = 1.25;  // upper over lower end
  const auto is_wide = [](const nlohmann::json& row) {
    return row["measured_ci_s"]["high"].get<double>() > kWide * row["measured_ci_s"]["low"].get<double>();
  };
  const auto wide = std::ranges::count_if(rows, is_wide);
  if (wide == 0) return "";
  return fmt::format(
      "{} of {} intervals are wider than a quarter of the step: more --blocks, or a machine\nwith less else to do, make them narrower.\n",
      wide, rows.size());
}

// The columns that all cells of a configuration share.
std::string csv_head(const nlohmann::json& configuration) {
  const nlohmann::json& model = configuration["model"];
  std::string head = csv_field(model["name"].get<std::string>());
  for (const char* column : {"batch_size", "sequence_length", "dtype", "gradient_bytes"}) {
    const nlohmann::json value = model.value(column, nlohmann::json(""));
    head += fmt::format(",{}", value.is_string() ? value.get<std::string>() : value.dump());
  }
  return fmt::format("{},{}", head, configuration["status"].get<std::string>());
}

}  // namespace

nlohmann::json measured_json(const Configuration& configuration, const std::vector<Cell>& cells, const StepBenchResult& result,
                             const std::vector<StepMemory>& memory, int world_size, uint64_t seed) {
  nlohmann::json rows = nlohmann::json::array();
  for (size_t i = 0; i < cells.size(); ++i) {
    nlohmann::json row = cell_json(cells[i], result, i, configuration.description, world_size, seed);
    row["peak_memory_bytes"] = memory[i].peak_bytes;
    row["memory_between_steps_bytes"] = memory[i].between_steps_bytes;
    add_ratio_to_torch(cells, result, i, seed, row);
    rows.push_back(std::move(row));
  }
  return {{"model", configuration.description},
          {"status", "measured"},
          {"strategies", rows},
          {"samples",
           {{"step_s", result.step_s},
            {"comm_s", result.comm_s},
            {"communication_s", result.communication_s},
            {"raw_step_s_by_rank", result.raw_step_s}}}};
}

std::string configuration_table(const nlohmann::json& configuration) {
  const std::string title = title_of(configuration["model"]);
  if (configuration["status"] != "measured") {
    return fmt::format("{}\nout of memory (skipping this config): {}\n", title, configuration["reason"].get<std::string>());
  }
  const nlohmann::json& rows = configuration["strategies"];
  return fmt::format("{}\n{}\n{}{}", title, time_table(rows), cost_table(rows), advice(rows));
}

std::string steps_csv(const nlohmann::json& configurations) {
  static constexpr std::array kNumbers = {"cap_mib",      "buckets",       "measured_s",        "rank_spread",
                                          "exposed_s",    "comm_s",        "comm_share",        "overlap_percent",
                                          "tokens_per_s", "per_tensor_us", "peak_memory_bytes", "ratio_to_torch"};
  std::string csv = "model,batch_size,sequence_length,dtype,gradient_bytes,status,strategy,low_s,high_s";
  for (const char* column : kNumbers) csv += fmt::format(",{}", column);
  csv += "\n";
  for (const nlohmann::json& configuration : configurations) {
    const std::string head = csv_head(configuration);
    if (configuration["status"] != "measured") csv += head + std::string(3 + kNumbers.size(), ',') + "\n";
    for (const nlohmann::json& row : configuration.value("strategies", nlohmann::json::array())) {
      csv += fmt::format("{},{},{},{}", head, row["strategy"].get<std::string>(), row["measured_ci_s"]["low"].dump(),
                         row["measured_ci_s"]["high"].dump());
      for (const char* column : kNumbers) csv += fmt::format(",{}", row.contains(column) ? row[column].dump() : "");
      csv += "\n";
    }
  }
  return csv;
}

}  // namespace firkin::cli
