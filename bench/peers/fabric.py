#!/usr/bin/env python3
"""Trains the stages' model with Lightning Fabric, as a peer of the C++ stages.

usage: fabric.py <total_epochs> <save_every> [--nprocs N] [--variant NAME] [options, see --help]
The contract between a peer and bench is bench/peers/README.md.
"""

import sys

from ddp_peers.command_line import Variant, run_peer

VARIANTS = [
    Variant("single", "one process: Fabric, setup(), backward()", 1, 1),
    Variant("ddp", "DDPStrategy, gradient_as_bucket_view, static_graph, fused SGD, a batch fetched by one gather", 1, None),
]

if __name__ == "__main__":
    sys.exit(run_peer("fabric", VARIANTS))
