#!/usr/bin/env bash
# Firkin under Slurm and torchrun: srun starts one torchrun per node, which starts that node's ranks and restarts nothing.
#
#   RANKS_PER_NODE=4 sbatch --nodes=2 examples/launch/slurm-torchrun.sh firkin tune --model small
#   RANKS_PER_NODE=4 examples/launch/slurm-torchrun.sh firkin bench allreduce    inside an allocation of salloc
#   DRY_RUN=1 examples/launch/slurm-torchrun.sh                                  in an allocation, only prints the command line
#
# Without arguments: firkin tune. Variables: NODES (default: the allocation's), RANKS_PER_NODE (2), PORT (where the torchruns meet).
#SBATCH --job-name=firkin
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --time=00:30:00
set -euo pipefail

if [[ -z ${SLURM_JOB_NODELIST:-} ]]; then
  echo "$0: no Slurm allocation; expected to be started by sbatch or inside salloc" >&2
  exit 2
fi
nodes=${NODES:-${SLURM_JOB_NUM_NODES:-1}}
ranks_per_node=${RANKS_PER_NODE:-2}
# Two jobs that share a node must not share a port.
port=${PORT:-$((20000 + SLURM_JOB_ID % 10000))}
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
(($#)) || set -- firkin tune

options=("--nodes=$nodes" --ntasks-per-node=1 --kill-on-bad-exit=1)
# Since Slurm 22.05 srun no longer takes this from sbatch.
[[ -z ${SLURM_CPUS_PER_TASK:-} ]] || options+=("--cpus-per-task=$SLURM_CPUS_PER_TASK")
torchrun=(torchrun "--nnodes=$nodes" "--nproc-per-node=$ranks_per_node" --max-restarts=0
  "--rdzv-id=$SLURM_JOB_ID" --rdzv-backend=c10d "--rdzv-endpoint=${hosts[0]}:$port")
# A node that is alone needs no name that others can resolve.
((nodes > 1)) || torchrun+=(--local-addr=127.0.0.1)
command=(srun "${options[@]}" "${torchrun[@]}" --no-python "$@")

printf '%q ' "${command[@]}" && echo
[[ ${DRY_RUN:-0} == 1 ]] || exec "${command[@]}"
