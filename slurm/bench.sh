#!/usr/bin/env bash
# The benchmark on 1, 2, 4, ... nodes of the job, as one report, bench-<jobid>.json. Arguments go to bench.
#
#   sbatch --nodes=4 --gpus-per-node=8 --cpus-per-gpu=4 slurm/bench.sh --models S,M
#
#SBATCH --job-name=bench
#SBATCH --output=bench-%j.out
#SBATCH --no-requeue
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
set -euo pipefail
stage=bench

# slurmd runs a copy of this file; Slurm knows where the original is.
original=$(scontrol show job "${SLURM_JOB_ID:-none}" 2>/dev/null | sed -n '/^ *Command=/{s///p;q}') || true
for root in "${DDP_ROOT:-}" "${original%/slurm/"$stage".sh*}" "${SLURM_SUBMIT_DIR:-}" "$(dirname -- "${BASH_SOURCE[0]}")/.."; do
    [[ -z $root || ! -r $root/slurm/common.sh ]] || break
done
if [[ ! -r $root/slurm/common.sh ]]; then
    printf '%s\n' "$stage: error: found no checkout, expected sbatch to be called in it, or DDP_ROOT=/path/to/checkout" >&2
    exit 2
fi
root=$(cd -- "$root" && pwd)
# shellcheck source=slurm/common.sh
source "$root/slurm/common.sh"

[[ -z ${DDP_CONTAINER:-} ]] || die "DDP_CONTAINER=$DDP_CONTAINER: bench calls srun itself, expected a build outside of an image"
count_tasks
need_program
((per_node > 0)) || die "--ntasks=$tasks on $nodes nodes: expected the same number on each; use --ntasks-per-node"

announce

# What one node does at 1, 2, 4, ... tasks, then full nodes.
on_one_node=1
for ((size = 2; size < per_node; size *= 2)); do
    on_one_node+=",$size"
done
((per_node == 1)) || on_one_node+=",$per_node"
node_counts=
for ((count = 1; count < nodes; count *= 2)); do
    node_counts+=$count,
done

stages=(--stages 05_multinode)
[[ " $* " != *" --stages"* ]] || stages=()
run_and_forward "${program[@]}" --launchers srun --nodes "$node_counts$nodes" --world-sizes "$on_one_node" "${stages[@]}" \
    --json "$stage-$SLURM_JOB_ID.json" "$@"
