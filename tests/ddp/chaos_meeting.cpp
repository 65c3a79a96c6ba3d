#include "chaos_meeting.h"

#include <ATen/ops/zeros_like.h>
#include <fmt/ranges.h>

#include <cstring>

namespace firkin {
namespace {

using Clock = std::chrono::steady_clock;
using Wrong = std::optional<std::string>;

bool have_same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  const at::Tensor left = a.contiguous();
  const at::Tensor right = b.contiguous();
  return left.sizes() == right.sizes() && left.scalar_type() == right.scalar_type() &&
         (left.nbytes() == 0 || std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0);
}

Wrong find_different(const std::vector<ChaosReport>& reports, std::vector<at::Tensor> ChaosReport::*tensors, const char* what) {
  const auto& first = reports[0].*tensors;
  for (size_t rank = 1; rank < reports.size(); ++rank) {
    const auto& other = reports[rank].*tensors;
    if (other.size() != first.size()) return fmt::format("ranks 0 and {} have different numbers of {}s", rank, what);
    for (size_t i = 0; i < first.size(); ++i) {
      if (!have_same_bits(first[i], other[i])) return fmt::format("{} {} differs between ranks 0 and {}", what, i, rank);
    }
  }
  return std::nullopt;
}

std::string describe(const std::optional<StepFailure>& failure) {
  if (!failure) return "no failure";
  return fmt::format("rank {} failed in step {} ({})", failure->rank, failure->step, failure->reason);
}

Wrong find_different_fates(const std::vector<ChaosReport>& reports) {
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    const ChaosReport& report = reports[rank];
    if (report.where != reports[0].where) return fmt::format("rank {} is after {}, rank 0 after this", rank, report.where);
    if (report.error.empty() != reports[0].error.empty()) {
      return fmt::format("rank 0: '{}', but rank {}: '{}' (empty: all is well)", reports[0].error, rank, report.error);
    }
    if (report.last_failure != reports[0].last_failure) {
      return fmt::format("rank 0 heard: {}; rank {}: {}", describe(reports[0].last_failure), rank, describe(report.last_failure));
    }
  }
  return std::nullopt;
}

Wrong check_failure(const ChaosReport& report) {
  if (report.expected == ChaosOutcome::kSucceeds) return fmt::format("failed for no reason: {}", report.error);
  if (!report.last_failure) return fmt::format("failed ({}), but last_failure() says nothing", report.error);
  if (report.last_failure == report.failure_before) return fmt::format("failed ({}), but last_failure() is an earlier one", report.error);
  if (report.last_failure->reason.empty()) return "failed without a reason";
  const auto rank = static_cast<size_t>(report.last_failure->rank);
  if (rank < report.reasons.size() && report.last_failure->reason.find(report.reasons[rank]) == std::string::npos) {
    return fmt::format("{}; expected '{}' in it", describe(report.last_failure), report.reasons[rank]);
  }
  if (!report.culprits.empty() && !std::ranges::count(report.culprits, report.last_failure->rank)) {
    return fmt::format("{}; expected one of ranks {}", describe(report.last_failure), fmt::join(report.culprits, ", "));
  }
  return std::nullopt;
}

Wrong check_no_gradient(const std::vector<ChaosReport>& reports) {
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    const auto& gradients = reports[rank].gradients;
    const auto defined = std::ranges::find_if(gradients, [](const at::Tensor& gradient) { return gradient.defined(); });
    if (defined != gradients.end()) return fmt::format("rank {} still has gradient {}", rank, defined - gradients.begin());
  }
  return std::nullopt;
}

// Gradient i against the mean over the ranks that had a batch; undefined tensors count as zeros.
Wrong check_mean(const std::vector<ChaosReport>& reports, size_t i) {
  const ChaosReport* with_data = nullptr;
  at::Tensor sum;
  at::Tensor magnitude;
  int ranks = 0;
  for (const ChaosReport& report : reports) {
    if (report.alone.empty()) continue;
    with_data = &report;
    ++ranks;
    if (!report.alone[i].defined()) continue;
    const at::Tensor part = report.alone[i].to(at::kDouble);
    sum = sum.defined() ? sum + part : part;
    magnitude = magnitude.defined() ? magnitude + part.abs() : part.abs();
  }
  const at::Tensor& actual = reports[0].gradients[i];
  if (with_data == nullptr) return "no rank had a batch";
  const at::Tensor& before = with_data->before[i];
  if (!sum.defined() && !before.defined() && !actual.defined()) return std::nullopt;
  if (!actual.defined()) return fmt::format("gradient {} is none; expected a mean", i);
  if (!sum.defined()) sum = magnitude = at::zeros_like(actual, at::kDouble);
  at::Tensor expected = sum / ranks;
  at::Tensor scale = magnitude / ranks;
  if (before.defined()) {
    expected = expected + before.to(at::kDouble);
    scale = scale + before.to(at::kDouble).abs();
  }
  const at::Tensor error = (actual.to(at::kDouble) - expected).abs();
  if (error.numel() == 0 || (error <= reports[0].tolerance * scale + 1e-5).all().item<bool>()) return std::nullopt;
  return fmt::format("gradient {} is not the mean: off by {:.3g} among values up to {:.3g}", i, error.max().item<double>(),
                     scale.max().item<double>());
}

Wrong check_success(const std::vector<ChaosReport>& reports) {
  const ChaosReport& report = reports[0];
  if (report.expected == ChaosOutcome::kFails) return "no rank has an error; expected a failure";
  if (report.last_failure) return fmt::format("no rank has an error, but {}", describe(report.last_failure));
  if (const Wrong wrong = find_different(reports, &ChaosReport::gradients, "gradient")) return wrong;
  if (const Wrong wrong = find_different(reports, &ChaosReport::buffers, "buffer")) return wrong;
  if (!report.knows_mean) return std::nullopt;
  for (size_t i = 0; i < report.gradients.size(); ++i) {
    if (const Wrong wrong = check_mean(reports, i)) return wrong;
  }
  return std::nullopt;
}

// An AuditError, the same on every rank.
Wrong check_audit(const std::vector<ChaosReport>& reports) {
  for (size_t rank = 1; rank < reports.size(); ++rank) {
    if (reports[rank].error != reports[0].error) {
      return fmt::format("rank 0: '{}', but rank {}: '{}'", reports[0].error, rank, reports[rank].error);
    }
  }
  return check_no_gradient(reports);
}

Wrong find_wrong(const std::vector<ChaosReport>& reports) {
  if (const Wrong wrong = find_different_fates(reports)) return wrong;
  if (const Wrong wrong = find_different(reports, &ChaosReport::parameters, "parameter")) return wrong;
  if (reports[0].after_group) return std::nullopt;
  if (reports[0].after_join) return check_no_gradient(reports);
  if (reports[0].expected == ChaosOutcome::kDrifts && !reports[0].error.empty()) return check_audit(reports);
  if (reports[0].error.empty()) return check_success(reports);
  if (const Wrong wrong = check_failure(reports[0])) return wrong;
  return check_no_gradient(reports);
}

// The first thing that is wrong. One report per rank.
Wrong find_disagreement(const std::vector<std::optional<ChaosReport>>& reports) {
  std::vector<ChaosReport> present;
  for (const auto& report : reports) present.push_back(report.value());
  try {
    if (const Wrong wrong = find_wrong(present)) return fmt::format("{}: {}", present[0].where, *wrong);
  } catch (const std::exception& error) {
    return fmt::format("{}: cannot compare: {}", present[0].where, error.what());
  }
  return std::nullopt;
}

}  // namespace

ChaosMeeting::ChaosMeeting(int ranks, std::chrono::milliseconds limit)
    : ranks_(ranks), limit_(limit), reports_(static_cast<size_t>(ranks)), last_sign_of_life_(Clock::now()) {}

void ChaosMeeting::meet(int rank, ChaosReport report) {
  std::unique_lock lock(mutex_);
  if (!failures_.empty()) throw ChaosStop();
  const std::string where = report.where;
  last_sign_of_life_ = Clock::now();
  reports_[static_cast<size_t>(rank)] = std::move(report);
  if (++present_ == ranks_) {
    if (const auto wrong = find_disagreement(reports_)) fail_locked(*wrong);
    reports_.assign(reports_.size(), std::nullopt);
    present_ = 0;
    ++meetings_;
    changed_.notify_all();
  } else {
    const int64_t meeting = meetings_;
    const auto is_over = [&] { return meetings_ > meeting || !failures_.empty(); };
    if (!changed_.wait_for(lock, limit_, is_over)) {
      fail_locked(fmt::format("rank {} waited in vain for the others after {}; {} of {} came", rank, where, present_, ranks_));
    }
  }
  if (!failures_.empty()) throw ChaosStop();
}

void ChaosMeeting::fail(const std::string& what) {
  const std::lock_guard lock(mutex_);
  fail_locked(what);
}

void ChaosMeeting::fail_locked(const std::string& what) {
  failures_ += (failures_.empty() ? "" : "\n    then ") + what;
  changed_.notify_all();
}

void ChaosMeeting::leave() {
  const std::lock_guard lock(mutex_);
  ++left_;
  last_sign_of_life_ = Clock::now();
  changed_.notify_all();
}

bool ChaosMeeting::wait_until_all_left() {
  std::unique_lock lock(mutex_);
  const auto all_left = [this] { return left_ == ranks_; };
  while (!all_left()) {
    const auto deadline = last_sign_of_life_ + 2 * limit_;
    if (changed_.wait_until(lock, deadline, all_left)) break;
    if (Clock::now() < last_sign_of_life_ + 2 * limit_) continue;  // somebody showed up meanwhile
    fail_locked(fmt::format("{} of {} ranks hang, {} of them in a meeting", ranks_ - left_, ranks_, present_));
    return false;
  }
  return true;
}

std::string ChaosMeeting::failures() const {
  const std::lock_guard lock(mutex_);
  return failures_;
}

}  // namespace firkin
