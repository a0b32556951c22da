"""The stages' options that bench uses, checked before a framework is imported; errors in one line."""

import argparse
import importlib.metadata
import math
import os
import signal
import sys

DONE, TRAINING_FAILED, USAGE = 0, 1, 2  # the stages' codes, see common/base/exit_codes.hpp
DEFAULT_BATCH_PER_RANK = 32


class PeerError(Exception):
    """str() is one line: what is wrong, its value, what was expected."""

    code = TRAINING_FAILED


class UsageError(PeerError):
    """The user's mistake, in the command line or the environment."""

    code = USAGE


def guarded(program, body):
    """Runs `body`; an error is one line on stderr. @return the exit code"""
    try:
        body()
        sys.stdout.flush()
    except Exception as error:
        # Only the first line: LibTorch's further lines are its call stack.
        line = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
        text = line if isinstance(error, PeerError) else f"{type(error).__name__}: {line}"
        print(f"{program}: error: {text}", file=sys.stderr, flush=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a full disk has not taken must not fail again at exit
        return error.code if isinstance(error, PeerError) else TRAINING_FAILED
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return DONE


def integer(text, least=0, end=2**64):
    if not least <= (value := int(text)) < end:
        raise ValueError
    return value


def positive_integer(text):
    return integer(text, 1, 2**31)


def rate(text):
    value = float(text)
    if not 0 < value < math.inf:
        raise ValueError
    return value


def widths(text):
    values = [positive_integer(width) for width in text.split(",")]
    if len(values) < 2:
        raise ValueError
    return values


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        raise UsageError(f"{message}, expected what --help lists")


def parse(program, variants, has_replicas):
    """@return the options of the command line by name (`learning_rate` for --lr), and `program`, `rank`, `processes` (ranks, or
    replicas in this process) and `batch_per_rank` @throws UsageError"""
    parser = _Parser(prog=program, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
                     description="Trains the stages' model on synthetic data as a peer of the C++ stages.",
                     epilog="variants:\n" + "".join(f"  {name:<10}{text}\n" for name, text in variants.items())
                     + "\nExit codes: 0 done, 1 training failed, 2 usage or environment.")
    add = parser.add_argument
    add("total_epochs", type=positive_integer, help="number of passes over the data")
    add("save_every", type=positive_integer, help="ignored: peers write no snapshots")
    add("--variant", choices=list(variants), default=next(iter(variants)), help="variant, see below (default: the first)")
    if has_replicas:
        add("--nprocs", type=positive_integer, dest="processes", default=1, metavar="N", help="number of replicas in this process (default 1)")
    add("--threads", type=positive_integer, default=1, metavar="N", help="CPU threads per device (default 1)")
    add("--global-batch", type=positive_integer, metavar="SAMPLES",
        help=f"samples per step over all devices (default {DEFAULT_BATCH_PER_RANK} per device)")
    add("--dataset-size", type=positive_integer, default=2048, metavar="SAMPLES", help="number of training samples (default 2048)")
    add("--layers", type=widths, default=[20, 1], metavar="WIDTHS", help="widths of all layers (default 20,1)")
    add("--lr", type=rate, default=0.1, dest="learning_rate", metavar="RATE", help="learning rate of SGD (default 0.1)")
    add("--seed", type=integer, default=42, metavar="N", help="seed of weights, data and order (default 42)")
    add("--device", choices=["cpu"] if has_replicas else ["cpu", "cuda"], default="cpu", help="kind of device (default cpu)")
    add("--backend", choices=("nccl", "gloo", "shm"), help="between processes (default: gloo, and nccl on GPUs)")
    add("--metrics", metavar="FILE", default=os.environ.get("DDP_METRICS"),
        help="file for a JSON line per rank and step, then the summary (default: DDP_METRICS)")
    options = parser.parse_args()
    options.program = program
    options.backend = options.backend or ("nccl" if options.device == "cuda" else "gloo")
    ranks, options.rank = (int(os.environ.get(name, default)) for name, default in (("WORLD_SIZE", 1), ("RANK", 0)))
    if has_replicas and ranks > 1:
        raise UsageError(f"WORLD_SIZE: got {ranks}, expected one process: --nprocs gives the number of replicas in it")
    options.processes = options.processes if has_replicas else ranks
    options.global_batch = options.global_batch or DEFAULT_BATCH_PER_RANK * options.processes
    options.batch_per_rank, rest = divmod(options.global_batch, options.processes)
    if rest != 0:
        raise UsageError(f"--global-batch: got {options.global_batch}, expected a multiple of {options.processes}, the processes")
    return options


def run_peer(program, packages, variants, run, has_replicas=False):
    """main() of NAME.py: run(options), if the command line is right and `packages` are installed.
    @param variants descriptions of the framework's settings, by name @param has_replicas a CPU's, all in one process
    @return the exit code"""
    # Moved to the end, or NAME.py would hide the package of that name.
    sys.path.append(sys.path.pop(0))

    def checked():
        options = parse(program, variants, has_replicas)
        for package in packages:
            try:
                importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                raise UsageError(f"{sys.executable} has no {package}, expected the interpreter that "
                                 f"bench/peers/install.sh {program} prints") from None
        if options.metrics and options.rank == 0:  # emptied before any rank appends to it
            open(options.metrics, "w").close()
        os.environ["OMP_NUM_THREADS"] = str(options.threads)  # read when torch and numpy are imported
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # errors are exceptions too, and make one line then
        run(options)

    return guarded(program, checked)
