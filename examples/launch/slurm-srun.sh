#!/usr/bin/env bash
# Firkin under Slurm: srun starts one task per rank, and Firkin reads its rank from srun's variables.
#
#   sbatch --nodes=2 --ntasks-per-node=4 examples/launch/slurm-srun.sh firkin tune --model small
#   examples/launch/slurm-srun.sh firkin bench allreduce                 inside an allocation of salloc
#   DRY_RUN=1 examples/launch/slurm-srun.sh                              in an allocation, only prints the command line
#
# Without arguments: firkin tune. Variables: NODES and RANKS_PER_NODE (default: the allocation's), PORT (of rank 0's store).
#SBATCH --job-name=firkin
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --time=00:30:00
set -euo pipefail

if [[ -z ${SLURM_JOB_NODELIST:-} ]]; then
  echo "$0: no Slurm allocation; expected to be started by sbatch or inside salloc" >&2
  exit 2
fi
nodes=${NODES:-${SLURM_JOB_NUM_NODES:-1}}
ranks_per_node=${RANKS_PER_NODE:-${SLURM_NTASKS_PER_NODE:-2}}
# Two jobs that share a node must not share a port.
port=${PORT:-$((20000 + SLURM_JOB_ID % 10000))}
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
(($#)) || set -- firkin tune

options=("--nodes=$nodes" "--ntasks-per-node=$ranks_per_node" --kill-on-bad-exit=1)
# Since Slurm 22.05 srun no longer takes this from sbatch.
[[ -z ${SLURM_CPUS_PER_TASK:-} ]] || options+=("--cpus-per-task=$SLURM_CPUS_PER_TASK")
command=(env "MASTER_ADDR=${hosts[0]}" "MASTER_PORT=$port" srun "${options[@]}" "$@")

printf '%q ' "${command[@]}" && echo
[[ ${DRY_RUN:-0} == 1 ]] || exec "${command[@]}"
