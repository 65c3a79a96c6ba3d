// All-reduce times that others published (data/), by the name of the cluster.
//
//   const PublishedTimes times = read_cluster("aws-p4de-16", data_folder);
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "firkin/plan/allreduce_table.h"

namespace firkin {

struct PublishedTimes {
  std::string title;       // "AWS p4de.24xlarge, 8 A100 each, EFA"
  std::string gpu;         // one of accelerators()
  AllReduceTable table;    // if both were measured, times of in-place all-reduces, since DDP reduces buckets in place
  int64_t world_size = 0;  // the number at the end of the name; 0 if there is none
};

// `name`: a cluster in data/README.md, alone or with a number of ranks behind it. Throws InputError, which lists the
// names, for any other, and whatever import_files() throws.
PublishedTimes read_cluster(const std::string& name, const std::filesystem::path& data_folder);

// The names, without ranks.
std::vector<std::string> cluster_names();

}  // namespace firkin
