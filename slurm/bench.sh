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
stage=bench

# Numbers of nodes, and numbers of tasks on a single node.
nodes=${SLURM_JOB_NUM_NODES:-1}
per_node=${SLURM_GPUS_ON_NODE:-${SLURM_NTASKS_PER_NODE:-1}}
node_counts=() world_sizes=(1)
for ((count = 1; count < nodes; count *= 2)); do node_counts+=("$count"); done
for ((count = 2; count < per_node; count *= 2)); do world_sizes+=("$count"); done
((per_node == 1)) || world_sizes+=("$per_node")
node_counts+=("$nodes")
IFS=,
set -- --launchers srun --stages 05_multinode --nodes "${node_counts[*]}" --world-sizes "${world_sizes[*]}" \
    --json "bench-${SLURM_JOB_ID:-none}.json" "$@"

# slurmd runs a copy of this file. Slurm knows where the original is; a copy of yours finds the checkout where sbatch was called.
original=$(scontrol show job "${SLURM_JOB_ID:-none}" 2>/dev/null | sed -n 's/^ *Command=//p')
for root in "${original%%/slurm/"$stage".sh*}" "${SLURM_SUBMIT_DIR:-$PWD}"; do
    [[ ! -x $root/slurm/job.sh ]] || exec "$root/slurm/job.sh" "$root/build/bin/$stage" "$@"
done
echo "$stage: error: no checkout in ${SLURM_SUBMIT_DIR:-$PWD}, expected sbatch to be called in one" >&2
exit 2
