#include "firkin/comm/process_group.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "firkin/base/error.h"
#include "gloo_backend.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace firkin {
namespace {

ProcessGroup make_group(c10::intrusive_ptr<c10d::Store> store, int rank, int size, const std::string& address,
                        const GroupOptions& options) {
  if (options.backend != "gloo") throw InputError(fmt::format("backend {}: expected gloo", options.backend));
  auto prefixed = c10::make_intrusive<c10d::PrefixStore>("firkin", std::move(store));
  auto group = c10::make_intrusive<c10d::ProcessGroup>(prefixed, rank, size);
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO,
                    make_gloo_backend(prefixed, rank, size, address, options.timeout));
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  return {rank, size, prefixed, group, std::nullopt};
}

}  // namespace

ProcessGroup connect(const RankInfo& info, const GroupOptions& options) {
  c10d::TCPStoreOptions store_options;
  store_options.port = static_cast<uint16_t>(info.master_port);
  // A launcher may run the store itself: torchrun's agent does, and so does --ranks.
  const char* hosted = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  store_options.isServer = info.rank == 0 && (hosted == nullptr || std::string(hosted) != "True");
  store_options.timeout = options.timeout;
  store_options.waitWorkers = false;
  try {
    auto store = c10::make_intrusive<c10d::TCPStore>(info.master_address, store_options);
    return make_group(store, info.rank, info.world_size, info.master_address, options);
  } catch (const c10::Error& error) {
    throw RuntimeError(fmt::format("rank {} cannot meet the others at {}:{}: {}", info.rank, info.master_address, info.master_port,
                                   error.what_without_backtrace()));
  }
}

ProcessGroup make_process_group(c10::intrusive_ptr<c10d::Store> store, int rank, int size, const GroupOptions& options) {
  return make_group(std::move(store), rank, size, "127.0.0.1", options);
}

Work start_all_reduce(const ProcessGroup& group, at::Tensor tensor) {
  std::vector<at::Tensor> tensors{std::move(tensor)};
  c10d::AllreduceOptions options;
  if (group.timeout) options.timeout = *group.timeout;
  // The backend itself, not the dispatcher's operator: a few microseconds less for each call.
  return group.c10d->getBackend(tensors[0].device().type())->allreduce(tensors, options);
}

void wait(const Work& work, const std::string& what) {
  try {
    work->wait();
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw RuntimeError(fmt::format("{} failed: {}", what, text.substr(0, text.find('\n'))));
  }
}

void all_reduce(const ProcessGroup& group, at::Tensor tensor) {
  wait(start_all_reduce(group, std::move(tensor)), "all-reduce");
}

void broadcast(const ProcessGroup& group, std::vector<at::Tensor> tensors, int root) {
  c10d::BroadcastOptions options;
  options.rootRank = root;
  for (at::Tensor& tensor : tensors) {
    const auto backend = group.c10d->getBackend(tensor.device().type());
    std::vector<at::Tensor> one{std::move(tensor)};
    wait(backend->broadcast(one, options), "broadcast");
  }
}

void barrier(const ProcessGroup& group) {
  wait(group.c10d->getBackend(c10::DeviceType::CPU)->barrier(), "barrier");
}

std::vector<std::vector<double>> all_gather(const ProcessGroup& group, const std::vector<double>& values) {
  const auto count = static_cast<int64_t>(values.size());
  at::Tensor table = at::zeros({group.size, count}, at::kDouble);
  std::copy(values.begin(), values.end(), table[group.rank].data_ptr<double>());
  all_reduce(group, table);
  std::vector<std::vector<double>> rows;
  for (int rank = 0; rank < group.size; ++rank) {
    const double* row = table[rank].data_ptr<double>();
    rows.emplace_back(row, row + count);
  }
  return rows;
}

}  // namespace firkin
