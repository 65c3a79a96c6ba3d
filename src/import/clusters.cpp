#include "import/clusters.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <ranges>
#include <string_view>

#include "firkin/base/error.h"
#include "import/import.h"

namespace firkin {
namespace {

struct Cluster {
  std::string_view name, title, gpu, file;
  std::string_view where = {};  // the rows to read, as COLUMN=VALUE
};

constexpr std::array kClusters = {
    Cluster{"alps-gh200", "CSCS Alps, 4 GH200 a node, Slingshot-11", "gh200", "allreduce_alps_gh200_4to2048gpu.csv",
            "config=cross_nic-ofi1.9.2"},
    Cluster{"aws-p4de", "AWS p4de.24xlarge, 8 A100 a node, EFA", "a100", "allreduce_aws_p4de_16xA100.csv"},
    Cluster{"azure-nd-a100", "Azure ND A100 v4, 8 A100 a node, InfiniBand", "a100", "allreduce_azure_a100_1to128gpu.csv"},
    Cluster{"cs336-pcie", "PCIe (CS336), A100 assumed", "a100", "gpu_sweeps/allreduce_damek_nccl.csv"},
    Cluster{"h200", "8 H200, NVLink", "h200", "allreduce_8xH200.csv"},
    Cluster{"superbench-a100", "8 A100, NVLink (SuperBench)", "a100", "allreduce_superbench_8xA100_40GB.csv"},
    Cluster{"zaratan", "Zaratan, 4 A100 a node (CMSC 828G)", "a100", "cmsc828g/allreduce-times.csv"},
};

}  // namespace

PublishedTimes read_cluster(const std::string& name, const std::filesystem::path& data_folder) {
  for (const Cluster& cluster : kClusters) {
    if (!name.starts_with(cluster.name)) continue;
    const std::string_view rest = std::string_view(name).substr(cluster.name.size());
    int64_t ranks = 0;
    const auto [end, error] = std::from_chars(rest.data() + std::min<size_t>(1, rest.size()), rest.data() + rest.size(), ranks);
    if (!rest.empty() && (rest[0] != '-' || error != std::errc() || end != rest.data() + rest.size() || ranks < 2)) continue;
    ImportOptions options{.in_place = true};
    if (!cluster.where.empty()) options.where.emplace_back(cluster.where);
    Imported imported = import_files({data_folder / cluster.file}, options);
    return {.title = std::string(cluster.title), .gpu = std::string(cluster.gpu), .table = std::move(imported.table), .world_size = ranks};
  }
  throw InputError(fmt::format("unknown cluster '{}'; expected one of {}, or one with its number of ranks behind it, such as aws-p4de-16",
                               name, fmt::join(kClusters | std::views::transform(&Cluster::name), ", ")));
}

std::vector<std::string> cluster_names() {
  std::vector<std::string> names;
  for (const Cluster& cluster : kClusters) names.emplace_back(cluster.name);
  return names;
}

}  // namespace firkin
