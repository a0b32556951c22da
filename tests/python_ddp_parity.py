"""Trains the digits with Python's DistributedDataParallel and compares the weights with 03_ddp_spawn's.

usage: python_ddp_parity.py BIN_DIR SOURCE_DIR
Exit code 0 if every tensor agrees to 1e-5, else 1.
"""

import csv
import gzip
import os
import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors.torch import load_file, save_file

EPOCHS, GLOBAL_BATCH, SEED, LR, WORLD_SIZE = 5, 32, 42, 0.1, 2
WIDTHS = (64, 128, 128, 10)


def digits(source_dir):
    with gzip.open(os.path.join(source_dir, "data", "digits.csv.gz"), "rt") as file:
        table = torch.tensor([[int(cell) for cell in row] for row in csv.reader(file)])
    train = table[torch.arange(len(table)) % 5 != 0]
    pixels = train[:, :64].float()
    mean = pixels.double().mean()
    deviation = (pixels.double() - mean).square().mean().sqrt()
    return (pixels - mean.item()) / deviation.item(), train[:, 64]


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for i in range(len(WIDTHS) - 1):
            setattr(self, f"layer{i}", torch.nn.Linear(WIDTHS[i], WIDTHS[i + 1]))

    def forward(self, x):
        x = self.layer0(x)
        for i in range(1, len(WIDTHS) - 1):
            x = getattr(self, f"layer{i}")(torch.relu(x))
        return x


def train(rank, source_dir, rendezvous, output):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=WORLD_SIZE)
    inputs, targets = digits(source_dir)
    torch.manual_seed(SEED)
    model = torch.nn.parallel.DistributedDataParallel(Mlp())
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for epoch in range(EPOCHS):
        order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(SEED + epoch))
        for begin in range(0, len(order), GLOBAL_BATCH):
            batch = order[begin : begin + GLOBAL_BATCH]
            mine = batch[rank::WORLD_SIZE]
            loss = torch.nn.functional.cross_entropy(model(inputs[mine]), targets[mine], reduction="sum")
            optimizer.zero_grad()
            (loss / (len(batch) / WORLD_SIZE)).backward()
            optimizer.step()
    if rank == 0:
        save_file(model.module.state_dict(), output)
    dist.destroy_process_group()


def main(bin_dir, source_dir):
    with tempfile.TemporaryDirectory() as folder:
        ours_path = os.path.join(folder, "ours.safetensors")
        theirs_path = os.path.join(folder, "theirs.safetensors")
        subprocess.run(
            [os.path.join(bin_dir, "03_ddp_spawn"), str(EPOCHS), str(EPOCHS), "--dataset", "digits",
             "--nprocs", str(WORLD_SIZE), "--global-batch", str(GLOBAL_BATCH), "--seed", str(SEED),
             "--lr", str(LR), "--snapshot", ours_path, "--quiet"],
            check=True, timeout=120)
        mp.spawn(train, args=(source_dir, os.path.join(folder, "rendezvous"), theirs_path), nprocs=WORLD_SIZE)
        ours, theirs = load_file(ours_path), load_file(theirs_path)

    torch.manual_seed(SEED)
    initial = Mlp().state_dict()
    failed = ours.keys() != theirs.keys()
    for name, weight in theirs.items():
        difference = (ours[name] - weight).abs().max().item()
        moved = (weight - initial[name]).abs().max().item()
        # `not <=`: NaN fails. A weight that never moved would agree for the wrong reason.
        bad = not difference <= 1e-5 or not moved > 1e-3
        failed |= bad
        print(f"{name}: largest difference {difference:.2e}, moved {moved:.2e}{' FAILED' if bad else ''}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
