#include "audit.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "agreement.h"
#include "comm/across_ranks.h"
#include "step_setup.h"

namespace firkin {
namespace {

constexpr uint64_t kPrime = 0x9e3779b97f4a7c15;
constexpr const char* kSteppedLocally =
    "{} changed under gradients that this rank had accumulated under no_sync() and not synchronised, and ranks {}: if the optimiser "
    "stepped it, expected a synchronising backward before every step of the optimiser";

// The tensor's hash, computed on its device and left there. Every element is mixed with its position, and the results
// are summed modulo 2^64, so that the order in which a device adds does not matter.
at::Tensor checksum_on_device(const at::Tensor& tensor) {
  constexpr int64_t kMost = int64_t{1} << 24;  // elements at a time, of 8 bytes
  constexpr auto kFactor = static_cast<int64_t>(kPrime);
  constexpr std::array kWords = {at::kByte, at::kShort, at::kInt, at::kLong};
  at::Tensor words = tensor.detach().contiguous();
  if (words.element_size() > 8) words = at::view_as_real(words);
  words = words.view(-1).view(kWords[static_cast<size_t>(std::countr_zero(static_cast<uint64_t>(words.element_size())))]);
  at::Tensor sum = at::zeros({}, words.options().dtype(at::kLong));
  for (int64_t begin = 0; begin < words.numel(); begin += kMost) {
    const int64_t end = std::min(begin + kMost, words.numel());
    at::Tensor mixed = at::arange(begin + 1, end + 1, sum.options()).mul_(kFactor);
    mixed.bitwise_xor_(words.narrow(0, begin, end - begin).to(at::kLong)).mul_(kFactor);
    sum += mixed.bitwise_xor_(mixed.bitwise_right_shift(29)).mul_(kFactor).sum();
  }
  return sum;
}

}  // namespace

// One chain of multiplications would be slower than memory. Four independent ones are not.
uint64_t hash_of(std::string_view bytes) {
  std::array<uint64_t, 4> lanes = {1, 2, 3, 4};
  size_t at = 0;
  for (; at + sizeof lanes <= bytes.size(); at += sizeof lanes) {
    std::array<uint64_t, 4> words;
    std::memcpy(words.data(), bytes.data() + at, sizeof words);
    for (size_t i = 0; i < lanes.size(); ++i) lanes[i] = (lanes[i] ^ words[i]) * kPrime;
  }
  for (; at < bytes.size(); ++at) lanes[0] = (lanes[0] ^ static_cast<uint8_t>(bytes[at])) * kPrime;
  uint64_t hash = bytes.size();
  for (const uint64_t lane : lanes) hash = (hash ^ (lane >> 29) ^ lane) * kPrime;
  return hash;
}

std::vector<uint64_t> checksums_of(const std::vector<NamedTensor>& tensors) {
  const at::NoGradGuard no_grad;
  std::vector<uint64_t> result(tensors.size(), 0);
  struct OnDevice {
    std::vector<size_t> places;
    std::vector<at::Tensor> sums;
  };
  std::map<c10::DeviceIndex, OnDevice> devices;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i].tensor;
    if (!tensor.defined() || tensor.numel() == 0 || tensor.is_meta()) continue;
    if (tensor.is_cpu()) {
      const at::Tensor dense = tensor.detach().contiguous();
      result[i] = hash_of({static_cast<const char*>(dense.const_data_ptr()), dense.nbytes()});
      continue;
    }
    devices[tensor.device().index()].places.push_back(i);
    devices[tensor.device().index()].sums.push_back(checksum_on_device(tensor));
  }
  for (const auto& [index, device] : devices) {
    const at::Tensor sums = at::stack(device.sums).cpu();
    for (size_t i = 0; i < device.places.size(); ++i) result[device.places[i]] = static_cast<uint64_t>(sums.const_data_ptr<int64_t>()[i]);
  }
  return result;
}

Trace trace_of(const at::Tensor& tensor) {
  if (!tensor.is_cpu() || !tensor.is_non_overlapping_and_dense()) return {static_cast<uint64_t>(tensor._version())};
  Trace trace{};
  const auto* bytes = static_cast<const uint8_t*>(tensor.const_data_ptr());
  const size_t length = std::min(tensor.nbytes(), sizeof(uint64_t));
  for (size_t i = 0; length > 0 && i < trace.size(); ++i)
    std::memcpy(&trace[i], bytes + (tensor.nbytes() - length) * i / (trace.size() - 1), length);
  return trace;
}

std::vector<std::optional<int>> differing_ranks(const ProcessGroup& group, const std::vector<NamedTensor>& tensors) {
  const auto ranks = gather_rows(group, checksums_of(tensors));
  std::vector<std::optional<int>> result(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto other = std::ranges::find_if(ranks, [&](const auto& rank) { return rank[i] != ranks[0][i]; });
    if (other != ranks.end()) result[i] = static_cast<int>(other - ranks.begin());
  }
  return result;
}

void Audit::renew() {
  parameters_ = parameters_in(*setup_.module);
  buffers_.clear();
  end_step();
}

bool Audit::is_due(int64_t step) const {
  const int64_t every = setup_.options.audit_every;
  return (every > 0 && step % every == 0) || (suspect_ && step >= compare_at_);
}

void Audit::record_trace(size_t parameter) {
  if (!local_traces_.contains(parameter)) local_traces_.emplace(parameter, trace_of(setup_.parameters[parameter].tensor));
}

std::string Audit::suspicion(const char* ranks) const {
  for (const auto& [parameter, trace] : local_traces_) {
    const NamedTensor& which = setup_.parameters[parameter];
    if (trace_of(which.tensor) != trace) return fmt::format(kSteppedLocally, which.name, ranks);
  }
  return "";
}

bool Audit::begin_step() {
  const std::string found = suspicion("differ");
  if (!found.empty()) suspicion_ = found;
  local_traces_.clear();
  return !found.empty();
}

std::string Audit::difference(const StepAgreement& agreement, int64_t step) {
  // explain() may find nothing: a rank had other values at the first gradient and has restored them.
  std::string found = agreement.are_checksums_equal() ? "" : explain(step);
  const bool compares_again = !found.empty() && were_equal_when_stepped();
  if (!found.empty() && !compares_again) {
    const std::optional<int> suspect = std::exchange(suspect_, {});
    if (suspect) found += fmt::format("; on rank {} {}", *suspect, text_of_rank(setup_.control, suspicion_, *suspect));
    return found;
  }
  if (is_due(step)) {
    constexpr int64_t kMostPatience = 100;  // in steps
    if (suspect_) patience_ = std::min(2 * patience_, kMostPatience);
    suspect_.reset();
    compare_at_ = step;
    if (compares_again) {
      suspect_ = 0;
      suspicion_ = fmt::format("parameters had differed from other ranks' in the backward of step {}", step);
      compare_at_ += patience_;
    } else {
      equal_at_ = step;
    }
  }
  buffers_.clear();
  return "";
}

// Whether all ranks had the same checksum when their optimisers had stepped. See Note [Comparing again]. Collective.
bool Audit::were_equal_when_stepped() const {
  const auto ranks = gather_rows<uint64_t>(setup_.control, {stepped_checksum_.value_or(0)});
  return ranks[0][0] != 0 && std::ranges::all_of(ranks, [&](const auto& rank) { return rank == ranks[0]; });
}

void Audit::plan_comparison(const StepAgreement& agreement, int64_t step) {
  const int suspect = agreement.first_that_suspects();
  if (suspect == setup_.group.size || suspect_) return;
  suspect_ = suspect;
  compare_at_ = std::max(compare_at_ + patience_, step + 1);
}

void Audit::end_step() {
  local_traces_.clear();
  checksum_.reset();
  stepped_checksum_.reset();
}

void Audit::record_buffers(const std::vector<NamedTensor>& untouched) {
  buffers_.clear();
  const std::vector<uint64_t> checksums = checksums_of(untouched);
  for (size_t i = 0; i < untouched.size(); ++i) {
    at::Tensor number;
    if (untouched[i].tensor.defined()) number = at::scalar_tensor(static_cast<int64_t>(checksums[i]), at::kLong);
    buffers_.push_back({"buffer " + untouched[i].name, std::move(number)});
  }
}

// Forgets the buffers that some rank's forward has written to between the last step and this audit. Collective.
void Audit::forget_buffers_that_moved() {
  const auto count = static_cast<double>(buffers_.size());
  if (const auto counts = max_over_ranks(setup_.control, {count, -count}); counts[0] != -counts[1]) buffers_.clear();
  if (buffers_.empty()) return;
  std::vector<double> moved;
  for (const NamedTensor& buffer : buffers_) moved.push_back(buffer.tensor.defined() ? 0 : 1);
  moved = max_over_ranks(setup_.control, moved);
  for (size_t i = 0; i < moved.size(); ++i) {
    if (moved[i] != 0) buffers_[i].tensor.reset();
  }
}

std::string Audit::compare(int64_t step, const std::vector<NamedTensor>& untouched_buffers) {
  record_buffers(untouched_buffers);
  forget_buffers_that_moved();
  const auto ranks = gather_rows<uint64_t>(setup_.control, {checksum_of_all()});
  if (std::ranges::any_of(ranks, [&](const auto& rank) { return rank != ranks[0]; })) return explain(step);
  equal_at_ = step;
  return "";
}

std::vector<NamedTensor> Audit::tensors() const {
  std::vector<NamedTensor> all = parameters_;
  all.insert(all.end(), buffers_.begin(), buffers_.end());
  for (const auto& [owner, tensors] : other_tensors_) {
    for (NamedTensor& tensor : tensors()) all.push_back(std::move(tensor));
  }
  return all;
}

uint64_t Audit::checksum_of_all() const {
  uint64_t checksum = 0;
  for (const uint64_t of_tensor : checksums_of(tensors())) checksum = (checksum ^ of_tensor) * kPrime;
  return checksum;
}

// Finds the first tensor that differs now, in the same text on every rank; empty if none does. Collective.
std::string Audit::explain(int64_t step) const {
  const std::string since = equal_at_ ? fmt::format("all were equal at the audit before step {}", *equal_at_) : "this is the first audit";
  const std::vector<NamedTensor> all = tensors();
  const auto counts = all_gather(setup_.control, {static_cast<double>(all.size())});
  const auto fewer = std::ranges::find_if(counts, [&](const auto& count) { return count != counts[0]; });
  if (fewer != counts.end()) {
    return fmt::format("audit before step {}: rank 0 keeps {} tensors of parameters and optimiser state, rank {} keeps {}; {}", step,
                       counts[0][0], fewer - counts.begin(), (*fewer)[0], since);
  }
  const std::vector<std::optional<int>> ranks = differing_ranks(setup_.control, all);
  for (size_t i = 0; i < all.size(); ++i) {
    if (!ranks[i]) continue;
    return fmt::format("audit before step {}: {} differs between rank 0 and rank {}; {}", step, all[i].name, *ranks[i], since);
  }
  return "";
}

}  // namespace firkin
