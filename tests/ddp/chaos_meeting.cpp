// What is wrong with what ranks report after a step: they differ, or the step came to another end than the plan says.
#include "chaos_meeting.h"

#include <ATen/ops/zeros_like.h>
#include <fmt/ranges.h>

#include <cstring>

namespace firkin {
namespace {

using Wrong = std::optional<std::string>;

bool have_same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  const at::Tensor left = a.contiguous(), right = b.contiguous();
  return left.sizes() == right.sizes() && left.scalar_type() == right.scalar_type() &&
         (left.nbytes() == 0 || std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0);
}

Wrong find_different(const std::vector<ChaosReport>& reports, Tensors ChaosReport::*tensors, const char* what) {
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
  at::Tensor sum, magnitude;
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
  at::Tensor expected = sum / ranks, scale = magnitude / ranks;
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
  if (reports[0].after_join) return check_no_gradient(reports);
  if (reports[0].expected == ChaosOutcome::kDrifts && !reports[0].error.empty()) return check_audit(reports);
  if (reports[0].error.empty()) return check_success(reports);
  const Wrong wrong = check_failure(reports[0]);
  return wrong ? wrong : check_no_gradient(reports);
}

}  // namespace

Wrong find_disagreement(const std::vector<ChaosReport>& reports) {
  try {
    if (const Wrong wrong = find_wrong(reports)) return fmt::format("{}: {}", reports[0].where, *wrong);
  } catch (const std::exception& error) {
    return fmt::format("{}: cannot compare: {}", reports[0].where, error.what());
  }
  return std::nullopt;
}

}  // namespace firkin
