"""The stages' command line, as far as bench uses it, and how a peer ends: one line for an error, and an exit code.

The command line is checked before any framework is imported: a mistake is answered at once.
"""

import argparse
import importlib.metadata
import math
import os
import signal
import sys
from dataclasses import dataclass

DONE, TRAINING_FAILED, USAGE = 0, 1, 2  # the stages' codes, see common/base/exit_codes.hpp
DEFAULT_BATCH_PER_RANK = 32


class PeerError(Exception):
    """str() is one line: what is wrong, its value, what was expected."""

    code = TRAINING_FAILED


class UsageError(PeerError):
    """The user's mistake, in the command line or the environment."""

    code = USAGE


@dataclass(frozen=True)
class Variant:
    """One way to set the framework up, among which bench lets the user choose."""

    name: str
    description: str
    min_processes: int = 1
    max_processes: int | None = None  # None: any number
    devices: tuple[str, ...] = ("cpu", "cuda")

    def admits(self, processes):
        return self.min_processes <= processes <= (self.max_processes or processes)


def guarded(program, body):
    """Runs `body`; an error is one line on stderr. @return the exit code"""
    try:
        body()
        sys.stdout.flush()
    except Exception as error:
        # The first line of a text of several says what went wrong: LibTorch's others are its own call stack.
        line = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
        text = line if isinstance(error, PeerError) else f"{type(error).__name__}: {line}"
        print(f"{program}: error: {text}", file=sys.stderr, flush=True)
        return error.code if isinstance(error, PeerError) else TRAINING_FAILED
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return DONE


def _integer(name, lowest, highest=2**63 - 1):
    def parse(text):
        # Not int(text) alone: it takes blanks, underscores and other scripts' digits too.
        if not (text.isascii() and text.isdigit() and lowest <= int(text) <= highest):
            raise UsageError(f'{name}: got "{text}", expected an integer from {lowest} to {highest}')
        return int(text)

    return parse


def _rate(text):
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise UsageError(f'--lr: got "{text}", expected a number > 0')
    return value


def _widths(text):
    widths = text.split(",")
    if len(widths) < 2 or not all(width.isascii() and width.isdigit() and int(width) > 0 for width in widths):
        raise UsageError(f'--layers: got "{text}", expected at least 2 widths >= 1, e.g. 64,128,10')
    return [int(width) for width in widths]


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        raise UsageError(f"{message}, expected what --help lists")


def _make_parser(program, variants):
    parser = _Parser(prog=program, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
                     description="Trains the stages' model on synthetic data as a peer of the C++ stages.",
                     epilog="variants:\n" + "".join(f"  {v.name:<10}{v.description}\n" for v in variants)
                     + "\nExit codes: 0 done, 1 training failed, 2 usage or environment.")
    add = parser.add_argument
    add("total_epochs", type=_integer("total_epochs", 1), help="passes over the data")
    add("save_every", type=_integer("save_every", 1), help="as the stages; no snapshot is written")
    add("--variant", choices=[v.name for v in variants], help="default: the first that admits --nprocs")
    add("--nprocs", type=_integer("--nprocs", 1, 1024), default=1, dest="processes", metavar="N",
        help="devices, each with its part of a batch (default 1)")
    add("--threads", type=_integer("--threads", 1, 4096), default=1, metavar="N", help="CPU threads of each (default 1)")
    add("--global-batch", type=_integer("--global-batch", 1), metavar="SAMPLES",
        help=f"samples per step over all (default {DEFAULT_BATCH_PER_RANK} each)")
    add("--dataset-size", type=_integer("--dataset-size", 1), default=2048, metavar="SAMPLES", help="default 2048")
    add("--layers", type=_widths, default=[20, 1], metavar="WIDTHS", help="all widths (default 20,1)")
    add("--lr", type=_rate, default=0.1, dest="learning_rate", metavar="RATE", help="of SGD (default 0.1)")
    add("--seed", type=_integer("--seed", 0, 2**64 - 1), default=42, metavar="N",
        help="of weights, data and order (default 42)")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="what computes (default cpu)")
    add("--backend", choices=("auto", "gloo", "nccl"), default="auto",
        help="between processes: nccl on CUDA devices, else gloo; the other one is refused")
    add("--snapshot", metavar="FILE", help="as the stages; no snapshot is written")
    add("--resume", choices=("never", "restart"), help="as the stages; there is nothing to resume from")
    add("--metrics", metavar="FILE", help="one JSON line per rank and step, then the summary")
    add("--quiet", action="store_true", help="no line per epoch")
    return parser


def _with_dashes(argument):
    """--global_batch=8 is --global-batch=8."""
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value if argument.startswith("--") else argument


def parse(program, variants, arguments):
    """@return what --help lists, by name (`processes` are --nprocs, `learning_rate` is --lr), and `program`,
    `batch_per_rank` and the Variant in `variant`
    @throws UsageError"""
    options = _make_parser(program, variants).parse_args([_with_dashes(argument) for argument in arguments])
    options.program = program
    name, processes = options.variant, options.processes
    variant = options.variant = next((v for v in variants if (v.name == name if name else v.admits(processes))), None)
    if variant is None or not variant.admits(processes):
        expected = ", ".join(v.name for v in variants if v.admits(processes)) or "another number"
        raise UsageError(f"--nprocs {processes} with --variant {name}: expected {expected}")
    if options.device not in variant.devices:
        raise UsageError(f"--variant {variant.name} with --device {options.device}: "
                         f"expected --device {' or '.join(variant.devices)}")
    options.backend = options.backend.replace("auto", "nccl" if options.device == "cuda" else "gloo")
    if (options.backend == "nccl") != (options.device == "cuda"):
        raise UsageError(f"--backend {options.backend} with --device {options.device}: expected auto")
    options.global_batch = options.global_batch or DEFAULT_BATCH_PER_RANK * processes
    options.batch_per_rank, rest = divmod(options.global_batch, processes)
    if rest != 0:
        raise UsageError(f"--global-batch: got {options.global_batch}, expected a multiple of {processes}, the processes")
    return options


def run_peer(program, packages, variants, run):
    """What NAME.py does: run(options), if the command line is right and `packages` are installed. `options.software` has
    their versions. @return the exit code"""
    # Last, or NAME.py would be found in the place of the package of that name.
    sys.path.append(sys.path.pop(0))

    def checked():
        options = parse(program, variants, sys.argv[1:])
        options.software = {"python": sys.version.split()[0]}
        for package in packages:
            try:
                options.software[package] = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                raise UsageError(f"{sys.executable} has no {package}, expected the interpreter that "
                                 f"bench/peers/install.sh {program} prints") from None
        # Read when torch and numpy are imported.
        os.environ["OMP_NUM_THREADS"] = str(options.threads)
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # errors are exceptions too, and make one line then
        run(options)

    return guarded(program, checked)
