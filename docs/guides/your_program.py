#!/usr/bin/env python3
"""A training program in plain PyTorch, as a reader has one, for `bench --program`. Three lines of it write the step log.

    torchrun --nproc_per_node 2 docs/guides/your_program.py --global-batch 64
"""

import argparse
import os
import pathlib
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

# With step_log.py copied beside your program, you do not need this line.
sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
from step_log import StepLog  # noqa: E402  # step log, line 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32, help="samples per process and step")
    parser.add_argument("--global-batch", type=int, help="samples per step over all processes, instead of --batch-size")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()

    rank, world_size, local_rank = (int(os.environ.get(name, default))
                                    for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0)))
    if options.global_batch and options.global_batch % world_size:
        parser.error(f"--global-batch: got {options.global_batch}, expected a multiple of {world_size}, the processes")
    batch_size = options.global_batch // world_size if options.global_batch else options.batch_size
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    if "RANK" in os.environ:  # started by a launcher
        dist.init_process_group("nccl" if on_gpu else "gloo")

    torch.manual_seed(0)  # the same samples and first weights on every rank
    inputs = torch.randn(2048, 64)
    dataset = TensorDataset(inputs, (inputs @ torch.randn(64, 10)).argmax(1))
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)).to(device)
    if dist.is_initialized():
        model = DistributedDataParallel(model, device_ids=[local_rank] if on_gpu else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank, drop_last=True)
    loader = DataLoader(dataset, batch_size, sampler=sampler, drop_last=True)

    log = StepLog()  # step log, line 2
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        for input, target in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(input.to(device)), target.to(device))
            loss.backward()
            optimizer.step()
            log.step(loss, samples=len(input))  # step log, line 3
    if rank == 0:
        print(f"{len(loader)} steps per epoch | loss {loss.item():.4f}")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
