// The period of many plans of one profile, as simulate_pipeline() gives it.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "firkin/plan/pipeline.h"
#include "plan_evaluator.h"

namespace firkin {

// Wall time and the clock of the communication, on which an all-reduce takes what it takes alone, under the two-rate fluid of simulate().
class PipelineClock {
 public:
  explicit PipelineClock(const SimulationOptions& options) : options_(options) {}

  double wall() const { return wall_; }
  double comm() const { return comm_; }

  // Keeps both clocks whenever a rate changes, for wall_at().
  void record() { recording_ = true; }

  // Computes for `work_s`, while all-reduces are in flight until `busy_until` (on the communication's clock).
  void compute(double work_s, double busy_until);

  // Stands still until the communication's clock shows `comm_s`, or for `seconds`.
  void wait_until(double comm_s);
  void stand_still(double seconds) { advance(seconds, comm_ + seconds); }

  // The wall time at which the communication's clock showed `comm_s`, which must have passed.
  double wall_at(double comm_s) const;

 private:
  void advance(double seconds, double comm_s);

  const SimulationOptions& options_;
  double wall_ = 0;
  double comm_ = 0;
  bool recording_ = false;
  std::vector<std::pair<double, double>> history_ = {{0, 0}};  // communication's clock and wall time
};

// Describe a plan's buckets once, then run as many launch orders of it as wanted.
class PipelineRun {
 public:
  PipelineRun(const TensorProfile& profile, const CommCosts& costs, const PipelineOptions& options);

  // They must have passed check_plan.
  void set_buckets(std::span<const Bucket> buckets);

  // A launch order by need: whenever a channel is free, of the buckets that are ready, the one whose tensors the next forward needs first.
  // `patient`: rather waits for one that is needed earlier and will be ready before that has been sent.
  void order_by_need(std::vector<int64_t>& order, bool patient);

  // The period of the buckets in this launch order. With `pipeline`, it is filled as well.
  double period_s(std::span<const int64_t> order, Pipeline* pipeline = nullptr);

  int64_t bytes(const Bucket& bucket) const;

 private:
  struct Piece {  // a bucket
    CallCost cost;
    double host_s = 0;  // the work of backward, with copies, after which it is ready
    size_t unit = 0;
  };
  struct Unit {  // what the optimiser takes in one go: a bucket, or a split tensor
    double needed_s = 0;
    double update_s = 0;
    size_t first_bucket = 0;
    size_t parts = 1;
    size_t parts_left = 0;
    double arrival = 0;  // on the communication's clock
    bool updated = false;
  };

  double launch_all(std::span<const int64_t> order, PipelineClock& clock, Pipeline* pipeline);
  void list_arrivals(std::span<const int64_t> order);
  void run_forward(PipelineClock& clock, double busy_until, Pipeline* pipeline);
  void await(Unit& unit, PipelineClock& clock, double busy_until, Pipeline* pipeline);
  static void update(Unit& unit, PipelineClock& clock, double busy_until, Pipeline* pipeline);

  const TensorProfile& profile_;
  const PipelineOptions& options_;
  CachedCosts costs_;
  std::vector<int64_t> bytes_before_;  // of the tensors before tensor i
  std::vector<double> update_before_;  // as well
  std::vector<double> needed_s_;       // zeros when the profile does not know it
  std::vector<size_t> tensors_by_need_;
  std::vector<Piece> pieces_;
  std::vector<Unit> units_;
  std::vector<size_t> unit_of_tensor_;
  std::vector<size_t> arrivals_;  // units, in the order in which they arrive
  size_t next_arrival_ = 0;
  std::vector<double> channel_free_;
  std::vector<double> comm_end_;  // by launch position
};

}  // namespace firkin
