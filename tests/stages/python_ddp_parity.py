"""Trains a classifier with Python's DistributedDataParallel and compares the weights with 03_ddp_spawn's.

usage: python_ddp_parity.py BIN_DIR SOURCE_DIR
Exit code 0 if every tensor agrees to 1e-5, else 1.
"""

import subprocess
import sys
import tempfile
from argparse import Namespace

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors.torch import load_file, save_file

BIN_DIR, SOURCE_DIR = sys.argv[1:3]
sys.path.insert(0, f"{SOURCE_DIR}/bench/peers")

from ddp_peers.data import GatherLoader, load_samples  # noqa: E402
from ddp_peers.mlp import Mlp, loss_of  # noqa: E402

EPOCHS, WORLD_SIZE = 5, 2
# An epoch ends with a step of a single sample on one rank.
OPTIONS = Namespace(layers=[64, 128, 128, 10], dataset_size=1441, seed=42, processes=WORLD_SIZE, global_batch=32, batch_per_rank=16,
                    learning_rate=0.1)


def initial_model():
    torch.manual_seed(OPTIONS.seed)
    return Mlp(OPTIONS.layers)


def train(rank, rendezvous, output):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=WORLD_SIZE)
    model = torch.nn.parallel.DistributedDataParallel(initial_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=OPTIONS.learning_rate)
    loader = GatherLoader(load_samples(OPTIONS), OPTIONS, rank, torch.device("cpu"))
    for epoch in range(EPOCHS):
        loader.set_epoch(epoch)
        for inputs, targets, share in loader:
            optimizer.zero_grad()
            loss_of(model(inputs), targets, share).backward()
            optimizer.step()
    if rank == 0:
        save_file(model.module.state_dict(), output)
    dist.destroy_process_group()


def main():
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([f"{BIN_DIR}/03_ddp_spawn", *(
            f"{EPOCHS} {EPOCHS} --layers {','.join(map(str, OPTIONS.layers))} --dataset-size {OPTIONS.dataset_size} --nprocs {WORLD_SIZE} "
            f"--global-batch {OPTIONS.global_batch} --seed {OPTIONS.seed} --lr {OPTIONS.learning_rate} --snapshot ours --quiet").split()],
            cwd=folder, check=True, timeout=120)
        mp.spawn(train, args=(f"{folder}/rendezvous", f"{folder}/theirs"), nprocs=WORLD_SIZE)
        ours, theirs = load_file(f"{folder}/ours"), load_file(f"{folder}/theirs")

    initial = initial_model().state_dict()
    failed = ours.keys() != theirs.keys()
    for name, weight in theirs.items():
        difference = (ours[name] - weight).abs().max().item()
        moved = (weight - initial[name]).abs().max().item()
        # `not <=`, so that NaN fails. All weights must have moved, or they would agree without training.
        bad = not difference <= 1e-5 or not moved > 1e-3
        failed |= bad
        print(f"{name}: largest difference {difference:.2e}, moved {moved:.2e}{' FAILED' if bad else ''}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
