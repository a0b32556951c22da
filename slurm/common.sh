# shellcheck shell=bash
# slurm/common.sh - what the batch scripts share. They source it with $stage and $root set; "$@" is the program's arguments.
# shellcheck disable=SC2154

say() { printf '%s: %s\n' "$stage" "$*" >&2; }
die() {
    say "error: $*"
    exit 2
}

# Sets job, as scontrol takes it: one task of an array has the number of all of them. Forgets what Slurm said about another job, within
# which this one was submitted: Slurm replaces only what it sets for this one too.
know_job() {
    local facts
    facts=$(scontrol --details --oneliner show job "$SLURM_JOB_ID" 2>/dev/null | sed -n "/^JobId=$SLURM_JOB_ID /p") || true
    # A batch script is in no step; the other's masks of processors would not fit.
    [[ -z ${SLURM_STEP_ID:-} ]] || unset SLURM_STEPID "${!SLURM_STEP_@}" "${!SLURM_CPU_BIND@}" "${!SLURM_MEM_BIND@}"
    if [[ -n $facts ]]; then
        [[ $facts == *" ArrayTaskId="* ]] || unset "${!SLURM_ARRAY_@}"
        [[ $facts != *" Restarts=0 "* ]] || unset SLURM_RESTART_COUNT
        [[ $facts =~ (TRES|Tres[A-Za-z]*|JOB_GRES)=[^\ ]*gpu ]] || unset "${!SLURM_GPU@}" SLURM_{CPUS,MEM,NTASKS}_PER_GPU
    fi
    job=$SLURM_JOB_ID
    [[ -z ${SLURM_ARRAY_TASK_ID:-} ]] || job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
}

# Sets program: the stage's path, if it was built; with DDP_CONTAINER=image the image's own, and Apptainer in front.
need_program() {
    if [[ -n ${DDP_CONTAINER:-} ]]; then
        [[ -e $DDP_CONTAINER ]] || die "DDP_CONTAINER=$DDP_CONTAINER is not there, expected an Apptainer image"
        program=(apptainer exec "$DDP_CONTAINER" "$stage")
        ((gpus == 0)) || program=(apptainer exec --nv "$DDP_CONTAINER" "$stage")
        return
    fi
    program=("$root/build/bin/$stage")
    [[ -x ${program[0]} ]] ||
        die "${program[0]} is not there, expected a build: tools/setup.sh bench, in $root"
}

# GPUs of each node, 0 on a CPU cluster.
gpus_per_node() {
    local list=${SLURM_GPUS_PER_NODE:-${SLURM_GPUS_ON_NODE:-0}} item sum=0
    # --gpus-per-node takes "8", "a100:8" and "a100:4,h100:4".
    for item in ${list//,/ }; do
        [[ ${item##*:} =~ ^[0-9]+$ ]] || die "GPUs per node: got \"$list\", expected numbers as in a100:4,h100:4"
        sum=$((sum + 10#${item##*:}))
    done
    if [[ -n ${SLURM_GPUS:-} && -z ${SLURM_GPUS_PER_NODE:-} && ${SLURM_GPUS##*:} != $((sum * nodes)) ]]; then
        die "--gpus=$SLURM_GPUS: got $sum GPUs on the first of $nodes nodes, expected the same on all; use --gpus-per-node"
    fi
    printf '%s\n' "$sum"
}

# Sets nodes, tasks, and per_node: one task per GPU, without GPUs what --ntasks and --ntasks-per-node say; 0 if uneven. And wanted_cpus, of
# each node, of which it has SLURM_CPUS_ON_NODE.
count_tasks() {
    nodes=${SLURM_JOB_NUM_NODES:-${SLURM_NNODES:-1}}
    gpus=$(gpus_per_node) || exit 2
    if ((gpus > 0)); then
        per_node=$gpus
        tasks=$((nodes * gpus))
    else
        per_node=${SLURM_NTASKS_PER_NODE:-1}
        tasks=${SLURM_NTASKS:-$((nodes * per_node))}
        ((tasks == nodes * per_node)) || per_node=0
    fi
    wanted_cpus=$((per_node * ${SLURM_CPUS_PER_TASK:-1}))
    mapfile -t hosts < <(scontrol show hostnames "${SLURM_JOB_NODELIST:-}" 2>/dev/null)
    if [[ -n ${DDP_DRY_RUN:-} && -n ${SLURM_JOB_NODELIST:-} && ${#hosts[@]} == 0 ]]; then
        hosts=("the first of $SLURM_JOB_NODELIST")  # no Slurm here that could take it apart
        return
    fi
    ((${#hosts[@]} == nodes)) || die "SLURM_JOB_NODELIST=${SLURM_JOB_NODELIST:-}: got ${#hosts[@]} nodes, expected $nodes"
}

has_few_cpus() { ((${SLURM_CPUS_ON_NODE:-0} > 0 && wanted_cpus > SLURM_CPUS_ON_NODE)); }

# Says what was understood.
announce() {
    say "$SLURM_JOB_NODELIST | nodes $nodes | tasks $tasks | GPUs per node $gpus | rank 0 on ${hosts[0]}"
    if has_few_cpus; then
        say "WARNING: $per_node tasks share $SLURM_CPUS_ON_NODE CPUs of each node, expected $wanted_cpus: they will be slow." \
            "The job has CPUs for ${SLURM_NTASKS_PER_NODE:-1} tasks per node; sbatch --cpus-per-gpu=N gives N to each GPU's task"
    fi
}

# Sets step: srun and its options, for `tasks` tasks on `nodes` nodes.
make_step() {
    # One task that fails ends the others. A task that ends early by mistake leaves them a minute.
    step=(srun "--nodes=$nodes" "--ntasks=$tasks" --kill-on-bad-exit=1 --wait=60)
    ((per_node == 0)) || step+=("--ntasks-per-node=$per_node")
    # The job has CPUs for --ntasks-per-node tasks, and GPUs may ask for more tasks than that.
    local asked=${SLURM_CPUS_PER_TASK:-}
    if has_few_cpus; then
        # srun reads the job's number too, and would want as many.
        unset SLURM_CPUS_PER_TASK
        asked=$((SLURM_CPUS_ON_NODE / per_node))
        ((asked > 0)) || step+=(--overcommit)
    fi
    [[ ${asked:-0} == 0 ]] || step+=("--cpus-per-task=$asked")  # since Slurm 22.05 a step does not inherit it
    if [[ -n ${DDP_TASK_LOGS:-} ]]; then
        step+=("--output=$stage-%j-%t.out" --open-mode=append)
    fi
}

# The ranks' store takes nobody who does not know this key. It stays in the environment, where no other user reads it.
make_store_key() {
    [[ -z ${DDP_STORE_KEY:-} ]] || return 0
    DDP_STORE_KEY=$(od -An -N16 -tx1 /dev/urandom)
    export DDP_STORE_KEY=${DDP_STORE_KEY//[[:space:]]/}
    ((${#DDP_STORE_KEY} == 32)) || die "no key of 128 bits came from od and /dev/urandom"
}

# Hands a signal on to the running command; srun passes it to all tasks.
forward() {
    forwarded=1
    [[ -z ${child:-} ]] || kill "-$1" "$child" 2>/dev/null || true
}

# Runs the command, in the background so that signals are handled at once, and returns its exit code.
run_and_forward() {
    local code
    if [[ -n ${DDP_DRY_RUN:-} ]]; then
        printf '%s\n' "${*@Q}"
        return 0
    fi
    make_store_key
    trap 'forward USR1' USR1
    trap 'forward USR2' USR2
    trap 'forward TERM' TERM
    "$@" &
    child=$!
    while :; do
        forwarded=0
        code=0
        wait "$child" || code=$?
        ((forwarded)) || return "$code"  # else it was a signal to this shell that ended the waiting
    done
}

# Has Slurm start the job again, at most so often. The job's comment counts: it stays with the job from start to start, and its owner may
# write it. (SLURM_RESTART_COUNT counts preemptions and lost nodes too.)
requeue() {
    local facts state comment count=0 most=$1
    facts=$(scontrol show job "$job") || true
    state=$(sed -n '/^ *JobState=/{s/^ *JobState=\([A-Z_]*\).*/\1/p;q}' <<<"$facts")
    if [[ $state != RUNNING ]]; then
        say "the job is ${state:-gone}, so it is not started again"  # cancelled, or Slurm itself requeues it
        return
    fi
    comment=$(sed -n '/^ *Comment=/{s/^ *Comment=\(.*[^ ]\) *$/\1/p;q}' <<<"$facts")
    if [[ $comment =~ ^(.*)ddp_requeues=([0-9]{1,9})$ ]]; then
        comment=${BASH_REMATCH[1]} count=$((10#${BASH_REMATCH[2]}))
    elif [[ -n $comment ]]; then
        comment+=" "
    fi
    if ((count < most)) && ! scontrol update "JobId=$job" "Comment=${comment}ddp_requeues=$((count + 1))"; then
        count=${SLURM_RESTART_COUNT:-0}  # there has to be some end
    fi
    if ((count >= most)); then
        say "started again $count times already (DDP_MAX_REQUEUES=$most), so not once more"
    else
        say "asking Slurm to start the job again ($((count + 1)) of at most $most times)"
        scontrol requeue "$job" || say "Slurm refused; submit it again with --resume auto"
    fi
}

# Runs the command to its end. Exit code 85 (stopped with a good snapshot): Slurm is to start the job again, where it goes on from the
# snapshot, because SLURM_RESTART_COUNT is set there. The same if a signal to stop ended tasks that had not even begun.
# 75 (a port was taken, a rank did not come): once more, at once.
run_job() {
    local code attempt usr1 usr2 most=${DDP_MAX_REQUEUES:-3}
    [[ $most =~ ^[0-9]{1,9}$ ]] || die "DDP_MAX_REQUEUES: got \"$most\", expected a number"
    announce
    usr1=$(kill -l USR1)
    usr2=$(kill -l USR2)
    for attempt in 1 2 3; do
        code=0
        run_and_forward "$@" || code=$?
        ((code == 75 && attempt < 3)) || break
        say "exit code 75, trying again ($attempt of 2)"
    done
    if ((code == 85 || code == 128 + usr1 || code == 128 + usr2)); then
        requeue "$((10#$most))"
    fi
    exit "$code"
}

[[ -n ${SLURM_JOB_ID:-} ]] || die "SLURM_JOB_ID is not set, expected a Slurm job: sbatch slurm/$stage.sh"
know_job
# The tasks get all that this script has; srun, bench's too, would take sbatch's --export.
unset SRUN_EXPORT_ENV
# Every task sees all GPUs of its job on its node, and its local rank picks one. (Not by --gpu-bind=none: then Slurm 22.05 leaves
# CUDA_VISIBLE_DEVICES unset, and where a site hides no devices the tasks would use GPUs of other jobs.)
unset SLURM_GPU_BIND SLURM_GPUS_PER_TASK SLURM_NTASKS_PER_GPU SLURM_TRES_PER_TASK SLURM_TRES_BIND
export SLURM_EXPORT_ENV=ALL
if [[ $stage != bench ]]; then
    (($# > 0)) || set -- 50 10
    # The tasks of an array share a folder.
    [[ -z ${SLURM_ARRAY_TASK_ID:-} || " $*" == *" --snapshot"* ]] || set -- "$@" --snapshot "$stage-$SLURM_ARRAY_TASK_ID.safetensors"
fi
