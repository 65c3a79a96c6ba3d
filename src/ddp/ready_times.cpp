#include "ready_times.h"

#include <algorithm>
#include <numeric>

#include "firkin/stats/summary.h"

namespace firkin {

std::vector<double> column_medians(const std::vector<std::vector<double>>& rows) {
  std::vector<double> medians;
  std::vector<double> column(rows.size());
  for (size_t i = 0; i < rows[0].size(); ++i) {
    std::ranges::transform(rows, column.begin(), [i](const auto& row) { return row[i]; });
    medians.push_back(median(column));
  }
  return medians;
}

std::vector<int64_t> order_of_times(const std::vector<double>& times) {
  std::vector<int64_t> order(times.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&times](int64_t i) { return times[static_cast<size_t>(i)]; });
  return order;
}

TensorProfile profile_in_ready_order(const std::vector<NamedTensor>& parameters, const std::vector<double>& ready_s, double backward_s) {
  return profile_in_order(parameters, order_of_times(ready_s), ready_s, backward_s);
}

TensorProfile profile_in_order(const std::vector<NamedTensor>& parameters, const std::vector<int64_t>& order,
                               const std::vector<double>& ready_s, double backward_s) {
  TensorProfile profile;
  double latest = 0;
  for (const int64_t parameter : order) {
    const auto index = static_cast<size_t>(parameter);
    latest = std::max(latest, ready_s[index]);
    profile.names.push_back(parameters[index].name);
    profile.bytes.push_back(static_cast<int64_t>(parameters[index].tensor.nbytes()));
    profile.ready_s.push_back(latest);
  }
  profile.backward_s = std::max(latest, backward_s);
  return profile;
}

}  // namespace firkin
