"""How the PyTorch peer trains: see its variants in pytorch.py."""

import os

# What torch.compile does before its first kernel, longer than the kernels take: it starts processes that compile, and one
# more that tries the processor's vector instructions. Read when torch._dynamo is imported.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

import torch
from ddp_peers import torch_peer
from ddp_peers.data import GatherLoader, TutorialLoader
from ddp_peers.mlp import loss_of
from ddp_peers.training_log import BACKWARD, FORWARD, OPTIMIZER


def train(options, dataset, model, log, device):
    tutorial = options.variant.name in ("single", "default")
    compiled = options.variant.name == "compiled"
    # Inside the wrapper: one graph, and the gradients' hooks stay DDP's.
    parallel_model = torch.compile(model) if compiled else model
    if options.variant.max_processes != 1:
        settings = {} if tutorial else {"gradient_as_bucket_view": True, "static_graph": not compiled}
        parallel_model = torch.nn.parallel.DistributedDataParallel(
            parallel_model, device_ids=[device.index] if device.type == "cuda" else None, **settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.learning_rate, fused=None if tutorial else True)
    loader = (TutorialLoader if tutorial else GatherLoader)(dataset.train, options, log.group.rank, device)

    for epoch in range(options.total_epochs):
        loader.set_epoch(epoch)
        log.begin_epoch(epoch)
        if compiled:
            torch.compiler.set_stance("default")
        for inputs, targets, share in loader:
            if compiled and len(inputs) < options.batch_per_rank:  # an epoch's last batch, not worth a compilation of its own
                torch.compiler.set_stance("force_eager")
            log.begin(FORWARD)
            loss = loss_of(parallel_model(inputs), targets, share)
            log.begin(BACKWARD)
            loss.backward()
            log.begin(OPTIMIZER)
            optimizer.step()
            optimizer.zero_grad()
            log.end(loss.detach(), share)
        log.end_epoch()


def run(options):
    name = options.variant.name
    if name == "cuda_graph":
        from pytorch_graph import train as chosen
    elif name == "tutorial":
        from pytorch_tutorial import train as chosen
    else:
        chosen = train
    torch_peer.run(options, chosen)
