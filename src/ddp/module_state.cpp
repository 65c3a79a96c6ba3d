#include "module_state.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "firkin/base/error.h"
#include "firkin/base/units.h"

namespace firkin {
namespace {

// One line per parameter.
std::vector<std::string> describe(const std::vector<NamedTensor>& parameters) {
  std::vector<std::string> lines;
  for (const auto& [name, tensor] : parameters) {
    lines.push_back(fmt::format("{} [{}] {} strides [{}]", name, fmt::join(tensor.sizes(), ", "), c10::toString(tensor.scalar_type()),
                                fmt::join(tensor.strides(), ", ")));
  }
  return lines;
}

// FNV-1a, 64 bit: http://www.isthe.com/chongo/tech/comp/fnv/
uint64_t hash_of(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

std::vector<std::string> split_lines(const std::vector<uint8_t>& bytes) {
  std::vector<std::string> lines(1);
  for (const uint8_t byte : bytes) {
    if (byte == '\n') {
      lines.emplace_back();
    } else {
      lines.back().push_back(static_cast<char>(byte));
    }
  }
  return lines;
}

std::string first_difference(const std::vector<std::string>& ours, const std::vector<std::string>& theirs, int their_rank) {
  for (size_t i = 0; i < std::max(ours.size(), theirs.size()); ++i) {
    const std::string a = i < ours.size() ? ours[i] : "no such parameter";
    const std::string b = i < theirs.size() ? theirs[i] : "no such parameter";
    if (a != b) return fmt::format("the ranks' modules differ at parameter {}: rank 0 has {}, rank {} has {}", i, a, their_rank, b);
  }
  return fmt::format("the ranks' modules differ between rank 0 and rank {}", their_rank);
}

// Copies the tensors into one, broadcasts it, and copies back.
void broadcast_as_one(const ProcessGroup& group, const std::vector<at::Tensor>& tensors, int root) {
  std::vector<at::Tensor> flat_parts;
  for (const at::Tensor& tensor : tensors) flat_parts.push_back(tensor.detach().reshape({-1}));
  at::Tensor flat = at::cat(flat_parts);
  broadcast(group, {flat}, root);
  int64_t offset = 0;
  for (const at::Tensor& tensor : tensors) {
    tensor.detach().copy_(flat.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
    offset += tensor.numel();
  }
}

}  // namespace

void check_agreement(const ProcessGroup& group, const std::vector<NamedTensor>& parameters) {
  if (group.size == 1) return;
  const std::vector<std::string> lines = describe(parameters);
  const std::string text = fmt::format("{}", fmt::join(lines, "\n"));
  const uint64_t hash = hash_of(text);
  // Two halves, because a double holds 53 bits.
  const auto hashes = all_gather(group, {static_cast<double>(hash >> 32), static_cast<double>(hash & 0xffffffff)});
  for (int rank = 1; rank < group.size; ++rank) {
    if (hashes[static_cast<size_t>(rank)] == hashes[0]) continue;
    const auto key = [](int r) { return fmt::format("parameters/{}", r); };
    if (group.rank == 0 || group.rank == rank) group.store->set(key(group.rank), std::vector<uint8_t>(text.begin(), text.end()));
    throw RuntimeError(first_difference(split_lines(group.store->get(key(0))), split_lines(group.store->get(key(rank))), rank));
  }
}

void broadcast_together(const ProcessGroup& group, const std::vector<at::Tensor>& tensors, int root) {
  if (group.size == 1) return;
  at::NoGradGuard no_grad;
  constexpr size_t kLargestBroadcast = 64 * kMiB;
  std::vector<at::Tensor> sorted = tensors;
  std::ranges::stable_sort(sorted, {}, [](const at::Tensor& t) { return t.scalar_type(); });
  std::vector<at::Tensor> together;
  size_t bytes = 0;
  const auto flush = [&] {
    if (!together.empty()) broadcast_as_one(group, together, root);
    together.clear();
    bytes = 0;
  };
  for (const at::Tensor& tensor : sorted) {
    const bool fits = together.empty() || (tensor.scalar_type() == together[0].scalar_type() && tensor.device() == together[0].device());
    if (!fits || bytes >= kLargestBroadcast) flush();
    together.push_back(tensor);
    bytes += tensor.nbytes();
  }
  flush();
}

}  // namespace firkin
