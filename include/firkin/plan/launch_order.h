// The launch order of buckets if the next forward begins before all of them have arrived, chosen from observed steps.
//
// The order is fixed before the step, and equal on every rank. If it assumes ready times that are too early, a late
// bucket holds back others that are ready; if too late, the link carries what forward needs last while what it needs
// first waits. Lateness varies from step to step, so ready times get a slack, chosen by simulating every observed step.
#pragma once

#include <cstdint>
#include <vector>

namespace firkin {

struct ObservedStep {
  std::vector<double> ready_s;  // per bucket: every rank has its gradients; seconds from the first gradient of backward
  double backward_s = 0;
};

struct ObservedTraining {
  std::vector<ObservedStep> steps;  // at least one
  std::vector<double> transfer_s;   // per bucket: seconds its all-reduce occupies the link
  std::vector<double> needed_s;     // per bucket: seconds from the end of backward to its first use, without waits
  double forward_s = 0;             // from the end of backward to the start of the next, without waits
};

struct LaunchOrder {
  std::vector<int64_t> order;  // the buckets' indices
  double slack = 1;            // ready times were multiplied by it to make the order
  double period_s = 0;         // for a step in this order: the mean over the observed steps
};

// One order for each of a range of slacks, ascending: from "what forward needs first, whenever it is ready" to "as they
// become ready". Each is earliest due date among ready buckets (Jackson 1955): whenever the link is free, it takes, of
// the buckets whose median ready time times the slack has passed, the one forward needs first. Throws InputError unless
// there is a step and sizes agree. O(n^2) each.
std::vector<LaunchOrder> launch_orders(const ObservedTraining& training);

// The order of one slack, at least 0. Throws like launch_orders().
LaunchOrder launch_order_with_slack(const ObservedTraining& training, double slack);

// The middle of the contiguous range of launch_orders() whose periods are within half a percent of the best: at an
// edge, a step slightly slower than those observed would cost most.
LaunchOrder robust_launch_order(const ObservedTraining& training);

}  // namespace firkin
