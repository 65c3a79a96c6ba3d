#!/usr/bin/env bash
# Firkin under Open MPI's mpirun, which only starts the ranks: gradients travel through c10d, not through MPI.
#
#   RANKS_PER_NODE=4 examples/launch/mpirun.sh firkin tune --model small                 on this machine
#   HOSTS=host1,host2 RANKS_PER_NODE=4 examples/launch/mpirun.sh firkin tune             on two
#   DRY_RUN=1 examples/launch/mpirun.sh                                                  only prints the command line
#
# Without arguments: firkin tune. Variables: HOSTS (localhost; the first holds rank 0), RANKS_PER_NODE (2), PORT (29500, of rank 0's store).
set -euo pipefail

ranks_per_node=${RANKS_PER_NODE:-2}
port=${PORT:-29500}
IFS=, read -ra hosts <<<"${HOSTS:-localhost}"
(($#)) || set -- firkin tune

slots=$(printf ",%s:$ranks_per_node" "${hosts[@]}")
# Open MPI would bind a rank to one core, and its threads with it.
command=(mpirun --host "${slots:1}" -np "$((ranks_per_node * ${#hosts[@]}))" --bind-to none
  -x "MASTER_ADDR=${hosts[0]}" -x "MASTER_PORT=$port" "$@")

printf '%q ' "${command[@]}" && echo
[[ ${DRY_RUN:-0} == 1 ]] || exec "${command[@]}"
