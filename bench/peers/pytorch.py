#!/usr/bin/env python3
"""Trains the stages' model with Python's own DistributedDataParallel, as a peer of the C++ stages.

usage: pytorch.py <total_epochs> <save_every> [--nprocs N] [--variant NAME] [options, see --help]
The contract between a peer and bench is bench/peers/README.md.
"""

import sys

from ddp_peers.command_line import Variant, run_peer

VARIANTS = [
    Variant("single", "one process as a tutorial writes it: DataLoader, SGD", 1, 1),
    Variant("single_fused", "one process, fused SGD, a batch gathered by one index_select", 1, 1),
    Variant("cuda_graph", "one process, the whole step one CUDA Graph", 1, 1, devices=("cuda",)),
    Variant("default", "DistributedDataParallel and DataLoader as the tutorial writes them", 1, None),
    Variant("tutorial", "the Trainer of PyTorch's DDP tutorial series", 1, None),
    Variant("tuned", "gradient_as_bucket_view, static_graph, fused SGD, a batch gathered by one index_select", 1, None),
    Variant("tuned_pinned", "as tuned, and every rank has a core of its own", 1, None, pinned=True),
    Variant("compiled", "as tuned without static_graph, and the wrapped model compiled by torch.compile", 1, None),
]

if __name__ == "__main__":
    sys.exit(run_peer("pytorch", VARIANTS))
