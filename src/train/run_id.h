// Which run this process belongs to: what torchrun restarts is one run, however often, and with however many ranks.
#pragma once

#include <optional>
#include <string>

namespace firkin {

// What tells one job of torchrun from another.
struct RunId {
  std::string job;    // --rdzv-id; "none" unless it was given
  std::string agent;  // the torchrun that started this rank; each node has its own
};

// From torchrun's environment; nothing under another launcher, which restarts nobody.
std::optional<RunId> run_id_from_environment();

// How often torchrun has restarted the ranks of this node. It does not count restarts because a node has joined or left.
int restart_count();

// Whether both are the same run. A job with a name of its own is its name. Without one, the agent tells; of two agents on different nodes
// that is not known, and they are taken for one run if ours was restarted.
bool is_same_run(const RunId& stored, const RunId& ours, int restarts);

// For the head of a checkpoint, and back.
std::string text_of(const RunId& run);
RunId run_id_from(const std::string& text);

}  // namespace firkin
