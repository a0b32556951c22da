#!/usr/bin/env bash
# Stage 04 on one node: srun starts one process per GPU; without GPUs --ntasks-per-node processes.
#
#   sbatch slurm/04_ddp_launcher.sh
#   sbatch --gpus-per-node=8 --cpus-per-gpu=4 slurm/04_ddp_launcher.sh 50 10 --dataset digits
#
#SBATCH --job-name=04_ddp_launcher
#SBATCH --output=04_ddp_launcher-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@90
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=2
set -euo pipefail
stage=04_ddp_launcher

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

count_tasks
need_program
((nodes == 1)) || die "--nodes=$nodes: expected 1; slurm/05_multinode.sh is for several"
make_step
run_job "${step[@]}" "${program[@]}" "$@"
