#!/usr/bin/env bash
# The benchmark on 1, 2, 4, ... nodes of the job, as one report, bench-<jobid>.json. Arguments go to bench.
#   sbatch --nodes=4 --gpus-per-node=8 --cpus-per-gpu=4 slurm/bench.sh --models S,M
#SBATCH --job-name=bench
#SBATCH --output=bench-%j.out
#SBATCH --no-requeue
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
stage=bench

# slurmd runs a copy of this file. Slurm knows where the original is; a copy of yours finds the checkout where sbatch was called.
root=$(scontrol show job "${SLURM_JOB_ID:-none}" 2>/dev/null | sed -n "s|^ *Command=||; T; s|/slurm/$stage\.sh.*||p")
[[ -x $root/slurm/job.sh ]] || root=${SLURM_SUBMIT_DIR:-$PWD}
[[ -x $root/slurm/job.sh ]] || { echo "$stage: error: no checkout in $root, expected sbatch to be called in one" >&2 && exit 2; }
exec "$root/slurm/job.sh" "$root/build/bin/$stage" "$@"
