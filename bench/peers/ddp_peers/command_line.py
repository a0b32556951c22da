"""The stages' command line, as far as bench uses it, and --variant.

A command line is parsed before any framework is imported: a mistake is answered at once.
"""

import argparse
import functools
import importlib
import json
import os
import sys
from dataclasses import dataclass

from . import processes
from .errors import UsageError, guarded

DEFAULT_BATCH_PER_RANK = 32
MAX_PROCESSES = 1024
MAX_TIMEOUT_S = 30 * 86400


@dataclass(frozen=True)
class Variant:
    """One way to set the framework up, among which bench lets the user choose."""

    name: str
    description: str
    min_processes: int
    max_processes: int | None  # None: any number
    devices: tuple[str, ...] = ("cpu", "cuda")
    pinned: bool = False  # every rank has a core of its own

    def line(self):
        """Its line of --list-variants."""
        return json.dumps({"variant": self.name, "description": self.description,
                           "min_processes": self.min_processes, "max_processes": self.max_processes,
                           "devices": list(self.devices)})

    def admits(self, processes):
        return self.min_processes <= processes <= (self.max_processes or processes)


def _checked(name, expected, convert):
    """What argparse takes as a type, refusing on one line. @param convert returns None, or fails, for what is wrong"""
    def parse(text):
        try:
            value = convert(text)
        except ValueError:
            value = None
        if value is None:
            raise UsageError(f'{name}: got "{text}", expected {expected}')
        return value

    return parse


def _is_whole(text, lowest, highest=2**63 - 1):
    # Not int(text) alone: it takes blanks, underscores and other scripts' digits too.
    return text.isascii() and text.isdigit() and lowest <= int(text) <= highest


def _integer(name, lowest, highest=2**63 - 1):
    expected = f"an integer from {lowest} to {highest}" if highest < 2**63 - 1 else f"an integer >= {lowest}"
    return _checked(name, expected, lambda text: int(text) if _is_whole(text, lowest, highest) else None)


def _positive(name, highest=sys.float_info.max):
    expected = "a number > 0" + (f" and <= {highest}" if highest < sys.float_info.max else "")
    return _checked(name, expected, lambda text: float(text) if 0 < float(text) <= highest else None)


def _widths(name, fewest):
    def convert(text):
        widths = text.split(",")
        return tuple(map(int, widths)) if len(widths) >= fewest and all(_is_whole(w, 1) for w in widths) else None

    return _checked(name, f"at least {fewest} widths >= 1, e.g. 128,128", convert)


def _choice(name, choices, elsewhere=()):
    def parse(text):
        if text not in choices:
            raise UsageError(f'{name}: got "{text}"{", which only the stages have" if text in elsewhere else ""}, '
                             f"expected {', '.join(choices[:-1])} or {choices[-1]}")
        return text

    return parse


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        raise UsageError(f"{message}, expected what --help lists")


def _make_parser(program, variants):
    parser = _Parser(prog=program, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
                     description="Trains the stages' model as a peer of the C++ stages.",
                     epilog="variants:\n" + "".join(f"  {v.name:<14}{v.description}\n" for v in variants)
                     + "\nDashes and underscores in option names are equal.\n"
                     "Exit codes: 0 done, 1 training failed, 2 usage or environment, 75 port or rendezvous.")

    def add(name, kind, metavar, default, text, **more):
        suffix = f" (default {default})" if default is not None else ""
        parser.add_argument(name, type=kind, metavar=metavar, default=default, help=text + suffix, **more)

    parser.add_argument("total_epochs", type=_integer("total_epochs", 1), help="passes over the data")
    parser.add_argument("save_every", type=_integer("save_every", 1), help="as the stages; no snapshot is written")
    names = [v.name for v in variants]
    add("--variant", _choice("--variant", names), "NAME", None, "the default is the first that admits --nprocs")
    parser.add_argument("--list-variants", action="store_true", help="print one JSON line per variant and exit")
    add("--nprocs", _integer("--nprocs", 1, MAX_PROCESSES), "N", 1, "processes, each with a device of its own",
        dest="processes")
    add("--global-batch", _integer("--global-batch", 1), "SAMPLES", None,
        f"samples per step over all processes (default {DEFAULT_BATCH_PER_RANK} each)")
    add("--dataset", _choice("--dataset", ("synthetic", "digits"), ("fashion-mnist",)), "NAME", "synthetic",
        "what to learn")
    add("--dataset-size", _integer("--dataset-size", 1), "SAMPLES", None, "synthetic only (default 2048)")
    add("--data-dir", str, "FOLDER", None, "where digits.csv.gz is (default the checkout's data/)")
    add("--layers", _widths("--layers", 2), "WIDTHS", None, "all widths, synthetic only (default 20,1)")
    add("--hidden", _widths("--hidden", 1), "WIDTHS", None, "widths of the hidden layers")
    add("--lr", _positive("--lr"), "RATE", 0.1, "learning rate of SGD", dest="learning_rate")
    add("--seed", _integer("--seed", 0, 2**64 - 1), "N", 42, "of weights, data and their order")
    add("--device", _choice("--device", ("auto", "cpu", "cuda")), "KIND", "auto", "what computes")
    add("--backend", _choice("--backend", ("auto", "gloo", "nccl"), ("mpi", "shm")), "NAME", "auto",
        "what carries the collectives")
    add("--threads", _integer("--threads", 1, 4096), "N", 1, "CPU threads of each process")
    add("--timeout", _positive("--timeout", MAX_TIMEOUT_S), "SECONDS", 120, "for the rendezvous and every collective",
        dest="timeout_s")
    add("--metrics", str, "FILE", None, "one JSON line per rank and step, then the summary")
    parser.add_argument("--quiet", action="store_true", help="no line per epoch")
    add("--snapshot", str, "FILE", None, "taken as the stages take it; no snapshot is written")
    add("--resume", _choice("--resume", ("restart", "never"), ("auto",)), "WHEN", "never",
        "taken as the stages take it; there is nothing to resume from")
    return parser


def _normalise(arguments):
    """Underscores in option names become dashes; an option given twice, or empty, is refused."""
    seen = set()
    result = []
    for argument in arguments:
        if argument.startswith("--"):
            name, equals, value = argument.partition("=")
            name = name.replace("_", "-")
            if name in seen:
                raise UsageError(f"{name} was given twice, expected once")
            seen.add(name)
            argument = name + equals + value
        elif not argument:
            raise UsageError("an argument is empty, expected what --help lists")
        result.append(argument)
    return result


def _pick_variant(given, variants, processes):
    variant = next(v for v in variants if (v.name == given if given else v.admits(processes)))
    if not variant.admits(processes):
        most = variant.max_processes
        expected = f"{most}" if most == variant.min_processes else f"at least {variant.min_processes}"
        raise UsageError(f"--variant {variant.name} with --nprocs {processes}: expected {expected}")
    cores = len(os.sched_getaffinity(0))
    if variant.pinned and processes > cores:
        raise UsageError(f"--variant {variant.name} with --nprocs {processes}: expected at most {cores}, "
                         "one for each core that this process may use")
    return variant


def parse(program, variants, arguments):
    """@return what --help lists, by name (`processes` are --nprocs, `learning_rate` is --lr, `timeout_s` --timeout), and
    `program`, `batch_per_rank` and the Variant in `variant`; None if all that was asked for, a list, has been printed
    @throws UsageError"""
    arguments = _normalise(arguments)
    if "--list-variants" in arguments:
        if len(arguments) > 1:
            raise UsageError("--list-variants was given with other arguments, expected it alone")
        for variant in variants:
            print(variant.line())
        return None
    options = _make_parser(program, variants).parse_args(arguments)
    options.program = program
    processes = options.processes
    variant = options.variant = _pick_variant(options.variant, variants, processes)
    options.global_batch = options.global_batch or DEFAULT_BATCH_PER_RANK * processes
    options.batch_per_rank, rest = divmod(options.global_batch, processes)
    if rest != 0:
        raise UsageError(f"--global-batch: got {options.global_batch}, expected a multiple of {processes}, "
                         "the processes")
    if options.dataset != "synthetic":
        for name, value in (("--layers", options.layers), ("--dataset-size", options.dataset_size)):
            if value is not None:
                raise UsageError(f"{name} was given with --dataset {options.dataset}, "
                                 "expected it only with --dataset synthetic")
    options.dataset_size = options.dataset_size or 2048
    if options.layers and options.hidden:
        raise UsageError("--hidden was given with --layers, expected one of them")
    if options.device != "auto" and options.device not in variant.devices:
        raise UsageError(f"--variant {variant.name} with --device {options.device}: "
                         f"expected --device {' or '.join(variant.devices)}")
    if options.device == "cpu" and options.backend == "nccl":
        raise UsageError("--backend nccl with --device cpu: expected --backend gloo")
    return options


def _set_environment(threads):
    """What is read when torch and numpy are imported."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # errors are exceptions too, and make one line then


def run_peer(program, variants):
    """What NAME.py does: NAME_training.run(options). @return the exit code"""
    # Last, or NAME.py would be found in the place of the package of that name.
    sys.path.append(sys.path.pop(0))
    module = f"{program}_training"

    def run(arguments):
        options = parse(program, variants, arguments)
        if options is None:
            return
        _set_environment(options.threads)
        importlib.import_module(module).run(options)

    def guarded_run(arguments):
        return guarded(program, functools.partial(run, arguments))

    arguments = sys.argv[1:]
    if len(arguments) == 2 and arguments[0] == "--serve":
        _set_environment(threads=1)
        modules = [module, "torch._dynamo"]  # which DistributedDataParallel imports only when one is made
        return guarded(program, functools.partial(processes.serve, arguments[1], modules, guarded_run))
    server = os.environ.pop(processes.SERVER, None)
    code = processes.run_at_server(server, arguments) if server else None
    return guarded_run(arguments) if code is None else code
