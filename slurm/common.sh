# shellcheck shell=bash
# slurm/common.sh - what the batch scripts share. They source it with $stage and $root set; "$@" is the program's arguments.
# shellcheck disable=SC2154

[[ $stage == bench ]] || (($# > 0)) || set -- 50 10

say() { printf '%s: %s\n' "$stage" "$*" >&2; }
die() {
    say "error: $*"
    exit 2
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

# Sets nodes, tasks, and per_node: one task per GPU, without GPUs what --ntasks and --ntasks-per-node say; 0 if uneven.
count_tasks() {
    [[ -n ${SLURM_JOB_ID:-} ]] || die "SLURM_JOB_ID is not set, expected a Slurm job: sbatch slurm/$stage.sh"
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
    mapfile -t hosts < <(scontrol show hostnames "${SLURM_JOB_NODELIST:-}" 2>/dev/null)
    if [[ -n ${DDP_DRY_RUN:-} && -n ${SLURM_JOB_NODELIST:-} && ${#hosts[@]} == 0 ]]; then
        hosts=("the first of $SLURM_JOB_NODELIST")  # no Slurm here that could take it apart
        return
    fi
    ((${#hosts[@]} == nodes)) || die "SLURM_JOB_NODELIST=${SLURM_JOB_NODELIST:-}: got ${#hosts[@]} nodes, expected $nodes"
}

# Says what was understood.
announce() {
    say "$SLURM_JOB_NODELIST | nodes $nodes | tasks $tasks | GPUs per node $gpus | rank 0 on ${hosts[0]}"
}

# Sets step: srun and its options, for `tasks` tasks on `nodes` nodes.
make_step() {
    # One task that fails ends the others. A task that ends early by mistake leaves them a minute.
    step=(srun "--nodes=$nodes" "--ntasks=$tasks" --kill-on-bad-exit=1 --wait=60)
    ((per_node == 0)) || step+=("--ntasks-per-node=$per_node")
    # The job has CPUs for --ntasks-per-node tasks, and GPUs may ask for more tasks than that.
    local asked=${SLURM_CPUS_PER_TASK:-} have=${SLURM_CPUS_ON_NODE:-}
    if ((per_node > 0 && have > 0 && per_node * ${asked:-1} > have)); then
        say "$per_node tasks share $have CPUs of each node; sbatch --cpus-per-gpu=N gives them more"
        # srun reads the job's number too, and would want as many.
        unset SLURM_CPUS_PER_TASK SLURM_TRES_PER_TASK
        asked=$((have / per_node))
        ((asked > 0)) || step+=(--overcommit)
    fi
    [[ ${asked:-0} == 0 ]] || step+=("--cpus-per-task=$asked")  # since Slurm 22.05 a step does not inherit it
    # Every task sees all GPUs of its node, and its local rank picks one.
    ((gpus == 0)) || step+=(--gpu-bind=none)
    if [[ -n ${DDP_TASK_LOGS:-} ]]; then
        step+=("--output=$stage-%j-%t.out" --open-mode=append)
    fi
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

# Runs the command to its end. Exit code 85 (stopped with a good snapshot): Slurm is to start the job again, where it goes on from the
# snapshot, because SLURM_RESTART_COUNT is set there. The same if a signal to stop ended tasks that had not even begun.
# 75 (a port was taken, a rank did not come): once more, at once.
run_job() {
    local code attempt state usr1 usr2 restarts=${SLURM_RESTART_COUNT:-0} most=${DDP_MAX_REQUEUES:-3}
    [[ $most =~ ^[0-9]{1,9}$ ]] || die "DDP_MAX_REQUEUES: got \"$most\", expected a number"
    most=$((10#$most))
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
        state=$(scontrol --oneliner show job "$SLURM_JOB_ID" | sed -n 's/.* JobState=\([A-Z_]*\).*/\1/p') || true
        if [[ $state != RUNNING ]]; then
            say "the job is ${state:-gone}, so it is not started again"  # cancelled, or Slurm itself requeues it
        elif ((restarts >= most)); then
            say "started again $restarts times already (DDP_MAX_REQUEUES=$most), so not once more"
        else
            say "asking Slurm to start the job again ($((restarts + 1)) of at most $most times)"
            scontrol requeue "$SLURM_JOB_ID" || say "Slurm refused; submit it again with --resume auto"
        fi
    fi
    exit "$code"
}
