// Whether every rank of a group has a GPU of its own, as NCCL needs it: each claims its GPU in the group's store before it arrives.
#pragma once

#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace firkin {

// Before the rank arrives. gpu: what tells the GPU from all others; name: for people, "cuda:0".
void claim_gpu(c10d::Store& store, const std::string& gpu, const std::string& name);

// Once all ranks have arrived: why NCCL cannot be used by all of them; empty when it can. All ranks that ask get the same answer.
std::string why_not_nccl(c10d::Store& store, int size);

}  // namespace firkin
