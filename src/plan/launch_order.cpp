#include "firkin/plan/launch_order.h"

#include <algorithm>
#include <limits>
#include <tuple>

namespace firkin {

std::vector<int64_t> launch_order_by_need(std::span<const Transfer> transfers) {
  std::vector<int64_t> order;
  std::vector<bool> sent(transfers.size(), false);
  double now_s = -std::numeric_limits<double>::infinity();
  while (order.size() < transfers.size()) {
    double next_ready_s = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < transfers.size(); ++i) {
      if (!sent[i]) next_ready_s = std::min(next_ready_s, transfers[i].ready_s);
    }
    now_s = std::max(now_s, next_ready_s);
    size_t best = transfers.size();
    const auto urgency = [&](size_t i) { return std::tuple(transfers[i].needed, transfers[i].ready_s, i); };
    for (size_t i = 0; i < transfers.size(); ++i) {
      if (sent[i] || transfers[i].ready_s > now_s) continue;
      if (best == transfers.size() || urgency(i) < urgency(best)) best = i;
    }
    sent[best] = true;
    order.push_back(static_cast<int64_t>(best));
    now_s += transfers[best].duration_s;
  }
  return order;
}

}  // namespace firkin
