#!/usr/bin/env bash
# Firkin under torchrun, on one node or on several without a job scheduler: start the same line on every node.
#
#   RANKS_PER_NODE=4 examples/launch/torchrun.sh firkin tune --model small               one node
#   NODES=2 HEAD=host1 RANKS_PER_NODE=4 examples/launch/torchrun.sh firkin tune          on host1 and on host2
#   DRY_RUN=1 examples/launch/torchrun.sh                                                only prints the command line
#
# Without arguments: firkin tune. Variables: NODES (1), RANKS_PER_NODE (2), HEAD (a node that all can reach; 127.0.0.1 for one node),
# PORT (29400, on HEAD).
set -euo pipefail

nodes=${NODES:-1}
ranks_per_node=${RANKS_PER_NODE:-2}
port=${PORT:-29400}
if ((nodes > 1)) && [[ -z ${HEAD:-} ]]; then
  echo "$0: NODES=$nodes without HEAD; expected the name of a node that all can reach" >&2
  exit 2
fi
head=${HEAD:-127.0.0.1}
(($#)) || set -- firkin tune

torchrun=(torchrun "--nnodes=$nodes" "--nproc-per-node=$ranks_per_node" --max-restarts=0
  --rdzv-id=firkin --rdzv-backend=c10d "--rdzv-endpoint=$head:$port")
# A node that is alone needs no name that others can resolve.
((nodes > 1)) || torchrun+=(--local-addr=127.0.0.1)
command=("${torchrun[@]}" --no-python "$@")

printf '%q ' "${command[@]}" && echo
[[ ${DRY_RUN:-0} == 1 ]] || exec "${command[@]}"
