// All-reduce times that others published (data/), by the name of the cluster.
//
//   const PublishedTimes times = read_cluster("aws-p4de-16", data_folder);
#pragma once

#include <filesystem>
#include <string>

#include "firkin/plan/allreduce_table.h"

namespace firkin {

struct PublishedTimes {
  std::string title;       // "AWS p4de.24xlarge, 8 A100 each, EFA"
  std::string gpu;         // one of accelerators()
  AllReduceTable table;    // in place, where both were measured: DDP reduces a bucket in its place
  int64_t world_size = 0;  // that the name ends with; 0: it names none
};

// `name`: of a cluster in data/README.md, alone or with the number of ranks behind it. Throws InputError, which lists the names, for
// another, and as import_files() does.
PublishedTimes read_cluster(const std::string& name, const std::filesystem::path& data_folder);

}  // namespace firkin
