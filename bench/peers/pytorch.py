#!/usr/bin/env python3
"""Trains the stages' model with Python's own DistributedDataParallel: a peer as in bench/peers/README.md."""

import os
import pathlib
import sys

from ddp_peers.command_line import run_peer

VARIANTS = {
    "tuned": "gradient_as_bucket_view, static_graph, fused SGD, a batch gathered by one index_select",
    "compiled": "as tuned, and the model compiled by torch.compile instead of static_graph",
}


def train(options, device, samples, model, log):
    import torch
    from ddp_peers.training import GatherLoader, loss_of

    compiled = options.variant == "compiled"
    # Compiled inside the wrapper: a single graph, and DDP keeps its hooks.
    parallel_model = torch.compile(model) if compiled else model
    if options.processes > 1:  # a single process is faster without the wrapper
        parallel_model = torch.nn.parallel.DistributedDataParallel(
            parallel_model, device_ids=[device.index] if device.type == "cuda" else None, gradient_as_bucket_view=True,
            static_graph=not compiled)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.learning_rate, fused=True)
    loader = GatherLoader(samples, options, log.rank, device)

    for epoch in range(options.total_epochs):
        loader.set_epoch(epoch)
        if compiled:
            torch.compiler.set_stance("default")
        log.begin()
        for inputs, targets, share in loader:
            if compiled and len(inputs) < options.batch_per_rank:  # an epoch's last batch, not worth a second compilation
                torch.compiler.set_stance("force_eager")
            loss = loss_of(parallel_model(inputs), targets, share)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            log.step(loss, share)


def run(options):
    # Before its first kernel torch.compile starts processes that compile, and a process that tries the vector instructions.
    # That takes longer than the kernels. The variables are read when torch._dynamo is imported.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
    # Cache for later runs: the default folder is in TMPDIR, which is different for each run of bench.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(pathlib.Path(__file__).parents[2] / ".venv-peers" / "torchinductor"))
    from ddp_peers import torch_peer

    torch_peer.run(options, train)


if __name__ == "__main__":
    sys.exit(run_peer("pytorch", ["torch"], VARIANTS, run))
