#include "contention.h"

#include <algorithm>
#include <limits>
#include <queue>

namespace firkin {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// Three clocks: wall time; `host`, the work that backward has done; and `comm`, on which an all-reduce takes what it takes alone.
class Fluid {
 public:
  Fluid(double host_total_s, const SimulationOptions& options) : host_total_(host_total_s), options_(options) {}

  double wall() const { return wall_; }
  double host() const { return host_; }
  double comm() const { return comm_; }
  bool computing() const { return host_ < host_total_; }

  // Advances to the host's work `host_target` or the communication's time `comm_target`, whichever comes first; true for the latter.
  // `communicating`: whether an all-reduce is under way.
  bool advance(double host_target, double comm_target, bool communicating) {
    const double host_rate = computing() ? (communicating ? 1 / options_.compute_slowdown : 1) : 0;
    const double comm_rate = computing() ? 1 / options_.comm_slowdown : 1;
    const double to_host = host_rate > 0 ? (host_target - host_) / host_rate : kNever;
    const double to_comm = communicating ? (comm_target - comm_) / comm_rate : kNever;
    const double step = std::min(to_host, to_comm);
    const bool comm_first = to_comm <= to_host;
    wall_ += step;
    // The clock that reaches its target is set to it, so that rounding never leaves an event an instant away.
    host_ = comm_first ? std::min(host_ + step * host_rate, host_target) : host_target;
    comm_ = comm_first ? comm_target : comm_ + step * comm_rate;
    return comm_first;
  }

 private:
  double host_total_;
  const SimulationOptions& options_;
  double wall_ = 0;
  double host_ = 0;
  double comm_ = 0;
};

struct InFlight {
  double comm_end = 0;
  size_t launch = 0;
  bool operator>(const InFlight& other) const { return comm_end > other.comm_end; }
};

}  // namespace

void run_fluid(const std::vector<Launch>& launches, double host_total_s, const SimulationOptions& options, Timeline& timeline) {
  Fluid fluid(host_total_s, options);
  std::vector<double> channel_free(static_cast<size_t>(options.channels), -kNever);          // on the clock of the communication
  std::vector<size_t> channel_last(static_cast<size_t>(options.channels), launches.size());  // the launch that it carried last
  std::vector<size_t> predecessor(launches.size(), launches.size());                         // on the same channel
  std::priority_queue<InFlight, std::vector<InFlight>, std::greater<>> in_flight;
  size_t next = 0;
  bool computing = fluid.computing();
  while (next < launches.size() || !in_flight.empty() || fluid.computing()) {
    const double host_target = next < launches.size() ? launches[next].host_s : host_total_s;
    if (next < launches.size() && fluid.host() >= host_target) {
      const auto channel = static_cast<size_t>(std::min_element(channel_free.begin(), channel_free.end()) - channel_free.begin());
      const Launch& launch = launches[next];
      channel_free[channel] = std::max(fluid.comm() + launch.isolated_s, channel_free[channel] + launch.gap_s);
      predecessor[next] = channel_last[channel];
      channel_last[channel] = next;
      in_flight.push({channel_free[channel], next});
      timeline.buckets[next].channel = static_cast<int64_t>(channel);
      timeline.buckets[next].launch_s = fluid.wall();
      ++next;
      continue;
    }
    const double comm_target = in_flight.empty() ? kNever : in_flight.top().comm_end;
    if (fluid.advance(host_target, comm_target, !in_flight.empty())) {
      timeline.buckets[in_flight.top().launch].end_s = fluid.wall();
      in_flight.pop();
    }
    if (computing && !fluid.computing()) timeline.compute_end_s = fluid.wall();
    computing = fluid.computing();
  }
  for (size_t k = 0; k < launches.size(); ++k) {
    BucketSpan& span = timeline.buckets[k];
    const bool first = predecessor[k] == launches.size();
    span.start_s = first ? span.launch_s : std::max(span.launch_s, timeline.buckets[predecessor[k]].end_s);
  }
}

}  // namespace firkin
