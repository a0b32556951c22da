#!/usr/bin/env python3
"""What common/data/tensor_file writes is what the safetensors library reads: 1,000 files of random tensors.

usage: tests/safetensors_test.py CORE_TEST
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import safetensors


def tensors_in(path):
    """Order in the file is free: a library may list by offset or by name."""
    return {name: (tensor["dtype"], list(tensor["shape"]), bytes(tensor["data"]).hex())
            for name, tensor in safetensors.deserialize(path.read_bytes())}


def expected_in(path):
    lines = (line.split("\t") for line in path.read_text().splitlines())
    return {bytes.fromhex(name).decode(): (dtype, json.loads(shape), data) for name, dtype, shape, data in lines}


def main(folder):
    written = subprocess.run([sys.argv[1], "[.safetensors]"], cwd=folder, stdout=subprocess.PIPE, text=True)
    assert written.returncode == 0, written.stdout
    files = sorted(folder.glob("*.safetensors"))
    assert len(files) == 1000, len(files)
    dtypes = set()
    for path in files:
        found, expected = tensors_in(path), expected_in(path.with_suffix(".expected"))
        assert found == expected, f"{path}: {found}, expected {expected}"
        dtypes |= {dtype for dtype, *_ in found.values()}
        with safetensors.safe_open(path, framework="np") as opened:
            metadata = opened.metadata()
        assert metadata["number"] == path.stem and metadata['"key"\n'] == "\u00e9", metadata
    assert len(dtypes) == 8, dtypes
    print(f"{len(files)} files")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(pathlib.Path(scratch))
