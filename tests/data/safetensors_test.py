#!/usr/bin/env python3
"""The safetensors library reads the files of common/data/tensor_file.

usage: tests/data/safetensors_test.py DATA_TEST
"""

import pathlib
import subprocess
import sys
import tempfile

import torch
from safetensors import safe_open
from safetensors.torch import load_file


def main(folder):
    subprocess.run([sys.argv[1], "[.safetensors]"], cwd=folder, check=True)
    path = folder / "written.safetensors"
    assert path.read_bytes()[0] % 8 == 0  # the header's size, after which the data begins
    tensors = load_file(path)
    assert tensors.pop("scalar").item() == 7
    assert tensors.pop("none").shape == (0, 3)
    assert set(tensors) == {"w", "layer.0.weight", 'a "quote"', "back\\n", "new\nline", "\u00e9\u2713", "", "__metadata"}, tensors.keys()
    assert len({tensor.dtype for tensor in tensors.values()}) == 8, tensors
    for name, tensor in tensors.items():
        assert torch.equal(tensor, torch.arange(6).reshape(2, 3).to(tensor.dtype)), (name, tensor)
    with safe_open(path, framework="pt") as opened:
        assert opened.metadata()['"key"\n'] == "\u00e9", opened.metadata()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(pathlib.Path(scratch))
