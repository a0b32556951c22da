#!/usr/bin/env bash
# Body of every Slurm job here. It runs a command, under srun if the command needs a launcher, and passes signals on to it.
# If the command asks for another start (exit codes 75 and 85), it has Slurm start the job again.
#   sbatch --nodes=2 --ntasks-per-node=2 slurm/job.sh "$PWD/build/bin/05_multinode" 50 10
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@90
set -euo pipefail

name=${1:-job.sh} name=${name##*/}
say() { printf '%s: %s\n' "$name" "$*" >&2 || true; } # on a full disk too
die() { say "error: $*" && exit 2; }

[[ -n ${SLURM_JOB_ID:-} ]] || die "SLURM_JOB_ID is not set, expected a Slurm job: sbatch slurm/$name.sh"
(($#)) || die "got no command, expected sbatch slurm/job.sh COMMAND..."
# bash would run commands that stand in a variable with which it computes.
for variable in SLURM_{JOB_NUM_NODES,NTASKS,NTASKS_PER_NODE,GPUS_ON_NODE,CPUS_ON_NODE,CPUS_PER_TASK,RESTART_COUNT} DDP_MAX_REQUEUES; do
    [[ ${!variable:-0} =~ ^(0|[1-9][0-9]{0,8})$ ]] || die "$variable: got $(printf %q "${!variable}"), expected a number"
done

# If sbatch was called in a job, it has copied the variables of that job.
record=$(scontrol --oneliner show job "$SLURM_JOB_ID" 2>/dev/null | grep "^JobId=$SLURM_JOB_ID ") || record=
[[ $record != *" Restarts="* || $record == *" ArrayTaskId="* ]] || unset "${!SLURM_ARRAY_@}"
[[ $record != *" Restarts=0 "* ]] || unset SLURM_RESTART_COUNT

# A task per GPU; without GPUs, as many as --ntasks and --ntasks-per-node say.
nodes=${SLURM_JOB_NUM_NODES:-1}
gpus=${SLURM_GPUS_ON_NODE:-0}
per_node=${SLURM_NTASKS_PER_NODE:-1}
tasks=${SLURM_NTASKS:-$((nodes * per_node))}
# A task that fails ends the other tasks. If a task ends early, the others have a minute.
step=(srun --kill-on-bad-exit=1 --wait=60)
if ((gpus > 0)); then
    per_node=$gpus tasks=$((nodes * gpus))
    step+=("--ntasks=$tasks" "--ntasks-per-node=$per_node")
fi

powers_to() { # 1, 2, 4, ... and the number itself
    for ((count = 1; count < $1; count *= 2)); do printf '%d,' "$count"; done
    echo "$1"
}
if [[ $name == bench ]]; then # on one node with up to all tasks, and on several nodes
    set -- "$1" --launchers srun --stages 05_multinode --nodes "$(powers_to "$nodes")" --world-sizes "$(powers_to "$per_node")" \
        --json "bench-$SLURM_JOB_ID.json" "${@:2}"
fi
if [[ -n ${DDP_CONTAINER:-} ]]; then
    set -- apptainer exec --nv "$DDP_CONTAINER" "$name" "${@:2}"
elif [[ ! -x $1 ]]; then
    die "$1 is not there, expected a build: tools/setup.sh bench"
fi
say "${SLURM_JOB_NODELIST:-} | nodes $nodes | tasks $tasks | GPUs per node $gpus"

# A batch script is in no step. If sbatch was called in a step, it has copied the step's variables.
[[ -z ${SLURM_STEP_ID:-} ]] || unset SLURM_STEPID "${!SLURM_STEP_@}" "${!SLURM_CPU_BIND@}" "${!SLURM_MEM_BIND@}"
# srun takes these for options, and they may be those of another job, in which sbatch was called. A step without them has all that
# its job has. Every task sees all GPUs of its job on its node, and its local rank picks a GPU. With --gpu-bind=none instead,
# Slurm 22.05 leaves CUDA_VISIBLE_DEVICES unset: on sites that hide no devices, tasks would use GPUs of other jobs.
unset "${!SLURM_MEM_PER_@}" "${!SLURM_TRES_@}" "${!SLURM_GPUS_PER_@}" SLURM_{GPUS,GRES,GPU_BIND,HINT,CONSTRAINT,CORE_SPEC} \
    SLURM_{THREAD_SPEC,THREADS_PER_CORE,NTASKS_PER_CORE,NTASKS_PER_GPU,NTASKS_PER_SOCKET}
# The tasks get the whole environment of this script, even if the site's default is --export=NONE.
unset SRUN_EXPORT_ENV
export SLURM_EXPORT_ENV=ALL

if [[ $name == 0[1-5]_* ]]; then
    [[ $name == 05_* ]] || ((nodes == 1)) || die "--nodes=$nodes: expected 1; slurm/05_multinode.sh is for several"
    # The tasks of an array share a folder.
    [[ -z ${SLURM_ARRAY_TASK_ID:-} || " $*" == *" --snapshot"* ]] ||
        set -- "$@" --snapshot "$name-$SLURM_ARRAY_TASK_ID.safetensors"
fi
# Stages 01 to 03 start their processes themselves, and the benchmark calls srun itself.
if [[ $name == 0[45]_* || $name == bench ]] || ((nodes > 1)); then
    # The job has CPUs for --ntasks-per-node tasks, and there may be more GPUs.
    cpus=${SLURM_CPUS_PER_TASK:-}
    on_node=${SLURM_CPUS_ON_NODE:-0}
    if ((on_node > 0 && per_node * ${cpus:-1} > on_node)); then
        say "WARNING: $per_node tasks share $on_node CPUs of each node and will be slow; sbatch --cpus-per-gpu=N gives N to each GPU's task"
        unset SLURM_CPUS_PER_TASK # srun reads it too
        cpus=$((on_node / per_node))
        ((cpus > 0)) || step+=(--overcommit)
    fi
    ((${cpus:-0} == 0)) || step+=("--cpus-per-task=$cpus") # since Slurm 22.05 a step does not inherit it
    [[ $name == bench ]] || set -- "${step[@]}" "$@"
fi

# shellcheck disable=SC2317 # the traps call it
forward() {
    forwarded=1
    [[ -z ${!:-} ]] || kill "-$1" "$!" 2>/dev/null || true
}
trap 'forward USR1' USR1
trap 'forward USR2' USR2
trap 'forward TERM' TERM
# In the background, so that bash handles signals at once. srun passes them to all tasks.
"$@" &
child=$!
while :; do
    forwarded=0 code=0
    wait "$child" || code=$?
    ((forwarded)) || break # a forwarded signal ends `wait` early
done

case $code in # tools/ddp_submit reads these rows, too
    75) most=3 ;;                         # a port was taken, or a rank did not come
    85) most=${DDP_MAX_REQUEUES:-100} ;;  # stopped with a good snapshot
    *) most=0 ;;
esac
job=$SLURM_JOB_ID
# The last task of an array has the whole array's job id.
[[ -z ${SLURM_ARRAY_TASK_ID:-} ]] || job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
restarts=${SLURM_RESTART_COUNT:-0}
# A cancelled job is not RUNNING any more, and stays cancelled.
if ((restarts < most)) && [[ $(scontrol --oneliner show job "$job") == *" JobState=RUNNING "* ]]; then
    say "exit code $code, asking Slurm to start the job again ($((restarts + 1)) of at most $most times)"
    ! scontrol requeue "$job" || exit "$code"
fi
say "exit code $code"
exit "$code"
