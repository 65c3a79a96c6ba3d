#include "bench/rank_machines.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <string>
#include <vector>

#include "comm/across_ranks.h"
#include "comm/backends.h"
#include "firkin/base/json_text.h"
#include "firkin/base/machine.h"
#include "results/field.h"
#include "results/run.h"

#include <torch/headeronly/version.h>

namespace firkin {

void add_ranks(const ProcessGroup& group, Environment& environment) {
  environment.libtorch = TORCH_VERSION;
  environment.backend = group.backend;
  environment.device = c10::DeviceTypeName(group.device.type(), /*lower_case=*/true);
  if (group.device.is_cuda()) {
    environment.gpu = gpus_in_words();
    environment.nccl = nccl_version();
    // "highest": float32 is multiplied as float32; "high", "medium": as TF32, or less.
    const bool is_exact = at::globalContext().float32MatmulPrecision() == at::Float32MatmulPrecision::HIGHEST;
    environment.float32_matmul = is_exact ? "float32" : "TF32 or less";
  }
  environment.world_size = group.size;
  environment.threads_per_rank = at::get_num_threads();
  if (!group.link.empty()) environment.link = group.link;
  std::vector<Host> of_ranks;
  for (const std::string& text : gather_texts(group, dump_json(json_of(this_host())))) {
    of_ranks.push_back(value_from_json<Host>(nlohmann::json::parse(text), ""));
  }
  environment.hosts = by_host(of_ranks);
  environment.cpu = environment.hosts[0].cpu;
  environment.cores = environment.hosts[0].cores;
  environment.os = environment.hosts[0].os;
}

}  // namespace firkin
