#!/usr/bin/env bash
# Stage 03 on a node: the program starts a process per GPU itself; without GPUs --ntasks-per-node processes.
#   sbatch slurm/03_ddp_spawn.sh
#   sbatch --gpus-per-node=8 --cpus-per-gpu=4 slurm/03_ddp_spawn.sh 50 10 --dataset digits
#SBATCH --job-name=03_ddp_spawn
#SBATCH --output=03_ddp_spawn-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@90
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=2
stage=03_ddp_spawn
(($# > 0)) || set -- 50 10
# With GPUs the program counts them itself.
[[ ${SLURM_GPUS_ON_NODE:-0} != 0 || " $* " == *" --nprocs"* ]] || set -- "$@" --nprocs "${SLURM_NTASKS_PER_NODE:-1}"

# slurmd runs a copy of this file. Slurm knows where the original is; a copy of yours finds the checkout where sbatch was called.
root=$(scontrol show job "${SLURM_JOB_ID:-none}" 2>/dev/null | sed -n "s|^ *Command=||; T; s|/slurm/$stage\.sh.*||p")
[[ -x $root/slurm/job.sh ]] || root=${SLURM_SUBMIT_DIR:-$PWD}
[[ -x $root/slurm/job.sh ]] || { echo "$stage: error: no checkout in $root, expected sbatch to be called in one" >&2 && exit 2; }
exec "$root/slurm/job.sh" "$root/build/bin/$stage" "$@"
