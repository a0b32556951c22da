#!/usr/bin/env python3
"""Compiles the steps that other tests train, side by side, and notes what Python computes for the same batches.

usage: make_steps.py FOLDER    (T, cnn and zoo: .pt2 and .safetensors; zoo.expected.safetensors)
"""

import pathlib
import subprocess
import sys

import torch
import zoo
from safetensors.torch import load_file, save_file

ROOT, FOLDER = pathlib.Path(__file__).resolve().parents[2], pathlib.Path(sys.argv[1])
MODELS = {"T": ["--layers", "20,1"], "cnn": [ROOT / "docs/your_model/model.py"], "zoo": [ROOT / "tests/compiled/zoo.py"]}
SAMPLES = [4, 1, 7]  # of the batches


def expect():
    """Three steps of SGD in Python: batches, losses, and the last parameters and buffers."""
    model = zoo.model()
    model.load_state_dict(load_file(FOLDER / "zoo.safetensors"), strict=False)  # "out.weight" is the embedding's
    trained = [value for value in model.parameters() if value.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1)
    tensors = {}
    for step, samples in enumerate(SAMPLES):
        tokens, target = torch.randint(50, (2, samples, 8))
        loss = zoo.loss(model(tokens), target) * 0.5
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        tensors |= {f"input{step}": tokens, f"target{step}": target, f"loss{step}": loss.detach()}
    model.eval()
    tensors["evaluated"] = zoo.loss(model(tokens), target).detach()
    named = dict(model.named_parameters()) | dict(model.named_buffers())
    save_file({name: value.contiguous().clone() for name, value in (tensors | named).items()}, FOLDER / "zoo.expected.safetensors")


FOLDER.mkdir(exist_ok=True)
compilers = [subprocess.Popen([ROOT / "tools/compile_step", *words, "--output", FOLDER / f"{name}.pt2"]) for name, words in MODELS.items()]
if codes := [compiler.wait() for compiler in compilers if compiler.wait() != 0]:
    sys.exit(f"tools/compile_step: exit codes {codes}")
expect()
