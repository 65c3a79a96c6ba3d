#include "across_ranks.h"

#include <ATen/ops/empty.h>

namespace firkin {

std::vector<double> max_over_ranks(const ProcessGroup& group, const std::vector<double>& values) {
  const std::vector<std::vector<double>> ranks = all_gather(group, values);
  std::vector<double> slowest = ranks[0];
  for (const std::vector<double>& rank : ranks) {
    for (size_t i = 0; i < rank.size(); ++i) slowest[i] = std::max(slowest[i], rank[i]);
  }
  return slowest;
}

double sum_over_ranks(const ProcessGroup& group, double value) {
  double sum = 0;
  for (const std::vector<double>& rank : all_gather(group, {value})) sum += rank[0];
  return sum;
}

double of_rank_0(const ProcessGroup& group, double value) {
  return all_gather(group, {value})[0][0];
}

namespace {

// The root's text, which has `length` bytes, on every rank.
std::string broadcast_text(const ProcessGroup& group, const std::string& text, double length, int root) {
  if (length == 0) return "";
  at::Tensor bytes = at::empty({static_cast<int64_t>(length)}, at::kByte);
  if (group.rank == root) std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  broadcast(group, {bytes}, root);
  return {static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes()};
}

}  // namespace

std::string text_of_rank(const ProcessGroup& group, const std::string& text, int root) {
  const auto lengths = all_gather(group, {static_cast<double>(text.size())});
  return broadcast_text(group, text, lengths[static_cast<size_t>(root)][0], root);
}

std::vector<std::string> gather_texts(const ProcessGroup& group, const std::string& text) {
  const auto lengths = all_gather(group, {static_cast<double>(text.size())});
  std::vector<std::string> texts;
  for (int rank = 0; rank < group.size; ++rank) {
    texts.push_back(broadcast_text(group, text, lengths[static_cast<size_t>(rank)][0], rank));
  }
  return texts;
}

}  // namespace firkin
