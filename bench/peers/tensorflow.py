#!/usr/bin/env python3
"""Trains the stages' model with TensorFlow's MirroredStrategy, as a peer of the C++ stages.

usage: tensorflow.py <total_epochs> <save_every> [--nprocs N] [--variant NAME] [options, see --help]
The contract between a peer and bench is bench/peers/README.md.
"""

import sys

from ddp_peers.command_line import Variant, run_peer

VARIANTS = [
    Variant("single", "one device, the step one tf.function", 1, 1, devices=("cpu",)),
    Variant("mirrored", "MirroredStrategy in one process, a logical device for each replica", 2, None, devices=("cpu",)),
]

if __name__ == "__main__":
    sys.exit(run_peer("tensorflow", VARIANTS))
