#!/usr/bin/env python3
"""Stage 03 trains a model with a loss and an optimizer of LibTorch: any number of ranks ends on the same weights.

usage: own_model_test.py write STAGE_03 OUT | run PROGRAM
"""

import json
import pathlib
import subprocess
import sys
import tempfile

# Lines of the stage, and a reader's lines in their place. 20 features are an image of 4 x 5 pixels.
OWN = {
    '#include "common/stage.hpp"\n': '#include "common/stage.hpp"\n#include <torch/torch.h>\n',
    "  ddp::Mlp model(dataset.layers, options.verbose);\n":
        "  namespace nn = torch::nn;\n"
        "  nn::Sequential model(nn::Unflatten(nn::UnflattenOptions(1, {1, 4, 5})), nn::Conv2d(1, 6, 3), nn::ReLU(),\n"
        "                       nn::Flatten(), nn::Linear(6 * 2 * 3, 1));\n",
    "ddp::make_optimizer(model->parameters(), options)": "std::make_unique<torch::optim::Adam>(model->parameters(), 0.01)",
    "ddp::loss(output, batch.target, batch.weight)": "torch::mse_loss(output, batch.target) * batch.weight",
}


def write(stage, out):
    text = pathlib.Path(stage).read_text(encoding="utf-8")
    for old, new in OWN.items():
        if text.count(old) != 1:
            sys.exit(f"{stage}: {text.count(old)} times {old!r}, expected once")
        text = text.replace(old, new)
    pathlib.Path(out).write_text(text, encoding="utf-8")


def summary(program, ranks):
    with tempfile.TemporaryDirectory(prefix="ddp-own-model-") as folder:
        subprocess.run([program, "4", "4", "--nprocs", str(ranks), "--device", "cpu", "--global-batch", "64", "--metrics", "m"],
                       cwd=folder, check=True, timeout=120)  # the stage itself compares the ranks' weights
        lines = pathlib.Path(folder, "m").read_text(encoding="utf-8").splitlines()
        steps = [json.loads(line) for line in lines[:-1]]
        assert steps[-1]["loss"] < 0.5 * steps[0]["loss"], (steps[0], steps[-1])
        return json.loads(lines[-1])["summary"]


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(*sys.argv[2:])
    else:
        one, two = summary(sys.argv[2], 1), summary(sys.argv[2], 2)
        assert two["moved"] > 0.1 and abs(two["moved"] - one["moved"]) < 1e-3 * one["moved"], (one["moved"], two["moved"])
