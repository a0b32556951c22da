#!/usr/bin/env bash
# Stage 04 on a node: srun starts a process per GPU; without GPUs --ntasks-per-node processes.
#   sbatch slurm/04_ddp_launcher.sh
#   sbatch --gpus-per-node=8 --cpus-per-gpu=4 slurm/04_ddp_launcher.sh 50 10 --dataset digits
#SBATCH --job-name=04_ddp_launcher
#SBATCH --output=04_ddp_launcher-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@90
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=2
stage=04_ddp_launcher
(($# > 0)) || set -- 50 10

# slurmd runs a copy of this file. Slurm knows where the original is; a copy of yours finds the checkout where sbatch was called.
root=$(scontrol show job "${SLURM_JOB_ID:-none}" 2>/dev/null | sed -n "s|^ *Command=||; T; s|/slurm/$stage\.sh.*||p")
[[ -x $root/slurm/job.sh ]] || root=${SLURM_SUBMIT_DIR:-$PWD}
[[ -x $root/slurm/job.sh ]] || { echo "$stage: error: no checkout in $root, expected sbatch to be called in one" >&2 && exit 2; }
exec "$root/slurm/job.sh" "$root/build/bin/$stage" "$@"
