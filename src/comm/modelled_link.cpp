#include "firkin/comm/modelled_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <string_view>

#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "firkin/plan/measurements.h"

namespace firkin {
namespace {

constexpr double kPayload = 1448.0 / 1514;  // see all_reduce_time()

std::string format_rate(double bits_per_s) {
  static constexpr std::array kNames = {"bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"};
  size_t unit = 0;
  while (bits_per_s >= 999.5 && unit + 1 < kNames.size()) {
    bits_per_s /= 1000;
    ++unit;
  }
  return fmt::format("{:.4g} {}", bits_per_s, kNames[unit]);
}

ModelledLink link_of_table(const std::string& file, int64_t world) {
  const AllReduceTable table = read_allreduce_csv(file);
  try {
    return {.world = world, .table = comm_costs(table, world), .file = file};
  } catch (const InputError& error) {
    throw InputError(fmt::format("--link {}: {}", file, error.what()));
  }
}

LinkTime time_over(const ModelledLink& link, double steps, double bytes_on_wire) {
  const double wire_s = bytes_on_wire * 8 / (kPayload * link.bits_per_s);
  const double alone_s = wire_s + steps * link.latency_s;
  return {alone_s, std::max(wire_s, alone_s / 2)};
}

ModelledLink parse_whole_link(const std::string& text, int64_t world) {
  if (world < 1) throw InputError(fmt::format("--link {}: timed for {} ranks; expected at least 1", text, world));
  if (text.ends_with(".csv")) return link_of_table(text, world);
  const size_t comma = text.find(',');
  const double rate = parse_in_units(text.substr(0, comma), {{"bit", 1}, {"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}, {"tbit", 1e12}});
  double latency = kDefaultLinkLatency;
  if (comma != std::string::npos) latency = parse_in_units(text.substr(comma + 1), {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}});
  if (!(rate >= 0 && latency >= 0)) {
    throw InputError(fmt::format("--link {}: expected RATE[,LATENCY] such as 1gbit or 200mbit,1ms, or an allreduce.csv", text));
  }
  if (rate < 1e3 || rate > 1e15) throw InputError(fmt::format("--link {}: expected a rate from 1kbit to 1000tbit", text));
  if (latency > 60) throw InputError(fmt::format("--link {}: expected a latency of at most 60s", text));
  return {.world = world, .bits_per_s = rate, .latency_s = latency};
}

constexpr std::string_view kSms = ",sms=";

}  // namespace

ModelledLink parse_link(const std::string& text, int64_t world) {
  const size_t end = text.rfind(kSms);
  ModelledLink link = parse_whole_link(text.substr(0, end), world);
  if (end == std::string::npos) return link;
  link.sms = parse_number<int>(std::string_view(text).substr(end + kSms.size())).value_or(0);
  if (link.sms < 1) throw InputError(fmt::format("--link {}: expected a number of multiprocessors, such as sms=16", text));
  return link;
}

std::string describe(const ModelledLink& link) {
  std::string ranks = fmt::format("{} {}", link.world, link.world == 1 ? "rank" : "ranks");
  if (link.sms > 0) ranks += fmt::format(", {} {}", link.sms, link.sms == 1 ? "SM" : "SMs");
  if (link.table) return fmt::format("{}, {}", link.file, ranks);
  return fmt::format("{}, {}, {}", format_rate(link.bits_per_s), format_seconds(link.latency_s), ranks);
}

LinkTime all_reduce_time(const ModelledLink& link, int64_t bytes) {
  const auto size = static_cast<double>(bytes);
  if (link.table) return {link.table->isolated(size), link.table->gap(size)};
  const auto n = static_cast<double>(link.world);
  return time_over(link, 2 * (n - 1), 2 * (n - 1) / n * size);
}

LinkTime share_time(const ModelledLink& link, int64_t bytes) {
  const LinkTime both = all_reduce_time(link, bytes);
  return {both.alone_s / 2, both.gap_s / 2};
}

LinkTime broadcast_time(const ModelledLink& link, int64_t bytes) {
  if (link.table) return all_reduce_time(link, bytes);
  const double steps = std::bit_width(static_cast<uint64_t>(link.world - 1));
  return time_over(link, steps, steps * static_cast<double>(bytes));
}

double agreement_time(const ModelledLink& link, int64_t bytes) {
  return broadcast_time(link, bytes).alone_s;  // which has as many steps, each of as many bytes
}

}  // namespace firkin
