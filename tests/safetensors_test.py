#!/usr/bin/env python3
"""What common/data/tensor_file writes is what the safetensors library reads: 1,000 files of random tensors. And the other way round: stages train on
a file that the library wrote, and on the same numbers as text; it reads what images_to_safetensors writes.

usage: tests/safetensors_test.py CORE_TEST BIN_DIR
"""

import gzip
import json
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

import numpy
import safetensors
import safetensors.numpy


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


def digest(folder, dataset):
    said = subprocess.run([sys.argv[2] + "/01_single_gpu", "2", "9", "--quiet", "--dataset", dataset], cwd=folder, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    return re.search("digest ([0-9a-f]{16})", said.stdout)[1]


def their_files(folder):
    random = numpy.random.default_rng(0)
    # Others beside them, which decide where in the file they lie.
    features = random.normal(size=(50, 3)).astype("float32")
    labels = (features.sum(axis=1) > 0).astype("int64")
    safetensors.numpy.save_file({"features": features, "labels": labels, "a": numpy.ones(3, "float16"), "z": numpy.ones(1, "uint8")},
                                folder / "theirs.safetensors", metadata={"format": "np"})
    rows = [",".join([*(repr(float(value)) for value in row), str(label)]) for row, label in zip(features, labels)]
    (folder / "same.csv").write_text("\n".join(["a,b,c,label", *rows]))
    assert digest(folder, "theirs.safetensors") == digest(folder, "same.csv")

    pixels = random.integers(0, 256, (7, 4, 5), "uint8")
    numbers = numpy.arange(7, dtype="uint8") % 3
    (folder / "i.gz").write_bytes(gzip.compress(struct.pack(">4I", 0x803, *pixels.shape) + pixels.tobytes()))
    (folder / "l").write_bytes(struct.pack(">2I", 0x801, 7) + numbers.tobytes())
    subprocess.run([sys.argv[2] + "/images_to_safetensors", "i.gz", "l", "idx.safetensors"], cwd=folder, check=True)
    written = safetensors.numpy.load_file(folder / "idx.safetensors")
    assert (written["features"] == pixels).all() and (written["labels"] == numbers).all() and len(written) == 2, written


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(pathlib.Path(scratch))
        their_files(pathlib.Path(scratch))
