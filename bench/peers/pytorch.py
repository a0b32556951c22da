#!/usr/bin/env python3
"""Trains the stages' model with Python's own DistributedDataParallel, as a peer of the C++ stages.

usage: pytorch.py <total_epochs> <save_every> [--nprocs N] [--variant NAME] [options, see --help]
The contract between a peer and bench is bench/peers/README.md.
"""

import os
import sys

from ddp_peers import command_line
from ddp_peers.command_line import Variant
from ddp_peers.errors import UsageError, guarded

PROGRAM = "pytorch"
VARIANTS = [
    Variant("single", "one process as a tutorial writes it: DataLoader, SGD", 1, 1),
    Variant("single_fused", "one process, fused SGD, a batch gathered by one index_select", 1, 1),
    Variant("cuda_graph", "one process, the whole step one CUDA Graph", 1, 1, devices=("cuda",)),
    Variant("default", "DistributedDataParallel and DataLoader as the tutorial writes them", 1, None),
    Variant("tuned", "gradient_as_bucket_view, static_graph, fused SGD, a batch gathered by one index_select", 1, None),
    Variant("tuned_pinned", "as tuned, and every rank has a core of its own", 1, None, pinned=True),
]


def main():
    options = command_line.parse(PROGRAM, VARIANTS, sys.argv[1:])
    if options is None:
        return
    os.environ["OMP_NUM_THREADS"] = str(options.threads)  # read when torch and numpy are imported
    try:
        import pytorch_training
    except ImportError as error:
        raise UsageError(f"{sys.executable} cannot import {error.name}, expected the interpreter that "
                         "bench/peers/install.sh pytorch prints") from None
    pytorch_training.run(options)


if __name__ == "__main__":
    sys.exit(guarded(PROGRAM, main))
