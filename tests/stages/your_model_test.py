#!/usr/bin/env python3
"""docs/your_model is built against an installation of this build, by find_package() and outside the tree, and trains as PyTorch does.

usage: your_model_test.py BUILD_DIR CMAKE TORCHRUN CXX_FLAGS
"""

import functools
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.utils import clip_grad_norm_, parameters_to_vector

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "docs/your_model")]
import model as cnn  # noqa: E402
from support.scratch import Scratch  # noqa: E402

DIGITS = ROOT / "data/digits.safetensors"
STEPS = 20  # of the GPT


def run(*command, **options):
    return subprocess.run([str(word) for word in command], check=False, text=True, capture_output=True, timeout=480, **options)


def order(size, epoch=0):
    return torch.randperm(size, generator=torch.Generator().manual_seed(42 + epoch))


def train(model, optimizer, rates, batches, loss):
    """@return the loss of each step, and the norms of the gradients"""
    losses, norms = [], []
    for rate, batch in zip(rates, batches, strict=True):
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        losses.append(loss(batch))
        losses[-1].backward()
        norms.append(clip_grad_norm_(model.parameters(), 1))
        optimizer.step()
    return [value.item() for value in losses], [value.item() for value in norms]


def your_model_in_python(file, epochs):
    """@return (loss, held-out loss, accuracy, moved) of each epoch"""
    data, rows = load_file(file), []
    torch.manual_seed(42)
    model = cnn.model()
    initial = parameters_to_vector(model.parameters()).detach()
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    for epoch in range(epochs):
        batches = order(len(data["labels"]), epoch).split(64)
        rates = [0.1 * min(1, (epoch * len(batches) + step + 1) / 20) for step in range(len(batches))]
        losses, _ = train(model, optimizer, rates, batches, lambda batch: cnn.loss(model(data["features"][batch] / 16), data["labels"][batch]))
        output, labels = model(data["test_features"] / 16).detach(), data["test_labels"]
        rows.append([sum(losses) / len(losses), cnn.loss(output, labels).item(), (output.argmax(1) == labels).float().mean().item(),
                     (parameters_to_vector(model.parameters()) - initial).norm().item()])
    return rows


@functools.lru_cache(maxsize=None)
def gpt_in_python(text, dropout=0, ranks=1):
    """@return losses and norms as train() does"""
    blocks = [nn.TransformerEncoderLayer(128, 4, 512, dropout, "gelu", batch_first=True, norm_first=True) for _ in range(2)]
    for block in blocks:
        block.dropout = nn.Identity()
        block.dropout1.register_forward_pre_hook(lambda _, x: x[0].contiguous())  # it draws in the order of the memory
    model = nn.ModuleList([nn.Embedding(256, 128), nn.Embedding(64, 128), *blocks, nn.LayerNorm(128)])
    states = [torch.Generator().manual_seed(42 + rank).get_state() for rank in range(ranks)]
    torch.manual_seed(42)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, 0, 0.02)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)

    def micro_loss(rows):
        x = nn.functional.dropout(model[0](rows[:, :-1]) + model[1].weight, dropout)
        for block in blocks:
            x = block(x, nn.Transformer.generate_square_subsequent_mask(64), is_causal=True)
        return cnn.loss((model[-1](x) @ model[0].weight.T).flatten(0, 1), rows[:, 1:].flatten())

    def loss(rows):
        losses = []
        for rank in range(ranks):
            torch.set_rng_state(states[rank])
            losses += [micro_loss(part) for part in rows[rank::ranks].split(4)]
            states[rank] = torch.get_rng_state()
        return torch.stack(losses).mean()

    rates = [1e-3 * min(1, (step + 1) / 10) * (0.55 + 0.45 * math.cos(math.pi * step / STEPS)) for step in range(STEPS)]
    size = len(text) - 64  # places where a sequence may begin
    first = torch.cat([order(size, epoch)[:size // 32 * 32] for epoch in range(STEPS)])[:STEPS * 32]
    batches = torch.tensor(list(text))[first.view(STEPS, 32, 1) + torch.arange(65)]
    return train(model, torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.1), rates, batches, loss)


class YourModel(Scratch):
    @classmethod
    def setUpClass(cls):
        torch.set_num_threads(1)
        build_dir, cmake, _, flags = ARGUMENTS
        # Always the same folder, so that ccache finds earlier objects.
        folder = pathlib.Path(build_dir).resolve() / "tests" / "outside"
        shutil.rmtree(folder, ignore_errors=True)
        cls.prefix = folder / "prefix"
        cls.program, cls.gpt = folder / "build" / "your_model", folder / "build" / "gpt"
        shutil.copytree(ROOT / "docs/your_model", folder / "source")
        ccache = shutil.which("ccache")
        for command in (
            [cmake, "--install", build_dir, "--prefix", cls.prefix],
            [cmake, "-G", "Ninja", "-S", folder / "source", "-B", folder / "build", f"-DCMAKE_PREFIX_PATH={cls.prefix}",
             "-DCMAKE_DISABLE_FIND_PACKAGE_fmt=ON",  # LibTorch's is enough
             f"-DCMAKE_CXX_FLAGS=-O1 {flags}", *([f"-DCMAKE_CXX_COMPILER_LAUNCHER={ccache}"] if ccache else [])],
            [cmake, "--build", folder / "build"],
        ):
            result = run(*command)
            if result.returncode != 0:
                raise AssertionError(f"{command}: exit code {result.returncode}\n{result.stdout}\n{result.stderr}")

    def torchrun(self, *command):
        return run(ARGUMENTS[2], "--standalone", "--nproc-per-node=2", "--no-python", *command, cwd=self.folder)

    def start(self, *command, ranks=2):
        """Starts ranks as 03_ddp_spawn does, because torchrun imports torch first."""
        (self.folder / "store").unlink(missing_ok=True)
        job = {"DDP_LAUNCHER": "spawn", "DDP_STORE_FILE": str(self.folder / "store"), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
        started = [subprocess.Popen([str(word) for word in command], cwd=self.folder, env=os.environ | job | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in range(ranks)]
        for rank in started:
            self.addCleanup(rank.kill)
        return started

    def ranks(self, *command, ranks=2):
        started = self.start(*command, ranks=ranks)
        out, err = map("".join, zip(*(rank.communicate(timeout=480) for rank in started)))
        return subprocess.CompletedProcess(command, max(abs(rank.returncode) for rank in started), out, err)

    def outputs(self, *command, start=None):
        """@return stdout of one process, and of two ranks"""
        results = run(*command, cwd=self.folder), (start or self.ranks)(*command)
        self.assertEqual([result.returncode for result in results], [0, 0], results)
        return [result.stdout for result in results]

    def assert_close(self, got, expected, relative):
        torch.testing.assert_close(torch.tensor(got, dtype=torch.float64), torch.tensor(expected, dtype=torch.float64), rtol=relative, atol=0)

    def your_model(self, output, ranks):
        """@return (loss, held-out loss, accuracy) of each epoch; accuracy and moved of the saved weights"""
        last = sorted(re.findall(r"^\[rank (\d)\] moved (\S+) \| your_model.pt has accuracy (\S+)$", output, re.MULTILINE))
        self.assertEqual(last, [(str(rank), *last[0][1:]) for rank in range(ranks)])
        epochs = re.findall(r"^epoch \d+ \| loss (\S+) \| held-out loss (\S+) \| accuracy (\S+)$", output, re.MULTILINE)
        return [list(map(float, row)) for row in epochs], [float(last[0][2]), float(last[0][1])]

    def test_your_model_trains_as_python(self):
        uneven = self.folder / "uneven.safetensors"  # in the last step a rank has no sample; rank 0 evaluates two of three
        save_file({name: value[:3 if name.startswith("test") else 65].contiguous() for name, value in load_file(DIGITS).items()}, uneven)
        os.link(self.write("old", ""), self.folder / "your_model.pt")  # a save replaces the file, and does not write into it
        for file, epochs, *words in (DIGITS, 6), (uneven, 4, 4):
            expected = your_model_in_python(file, epochs)
            for ranks, output in enumerate(self.outputs(self.program, file, *words, start=self.torchrun), 1):
                with self.subTest(file.name, ranks=ranks):
                    rows, saved = self.your_model(output, ranks)
                    self.assert_close(rows, [row[:3] for row in expected], 1e-4)
                    self.assert_close(saved, min(expected, key=lambda row: row[1])[2:], 1e-4)
        self.assertEqual(sorted(os.listdir(self.folder)), ["old", "uneven.safetensors", "your_model.pt"])
        self.assertEqual((self.folder / "old").read_text(), "")
        page = (ROOT / "docs/guides/your_model.md").read_text(encoding="utf-8")
        self.assertTrue("/your_model data/digits.safetensors\n" in page, "the page has another command")

    def test_all_ranks_stop_early_and_the_best_weights_stay(self):
        for ranks, output in enumerate(self.outputs(self.program, DIGITS, 200, 1, 2), 1):
            with self.subTest(ranks=ranks):
                rows, (accuracy, _) = self.your_model(output, ranks)
                best = min(range(len(rows)), key=lambda epoch: rows[epoch][1])
                self.assertEqual((len(rows), accuracy), (best + 3, rows[best][2]))

    def test_ranks_with_other_settings_are_refused(self):
        own = "$((1 + RANK))"
        for words, name in ((f"{self.program} {DIGITS} {own}", "epochs"), (f"{self.program} {DIGITS} 1 1 {own}", "patience"),
                            (f"{self.gpt} {DIGITS} {own}", "steps"), (f"{self.gpt} {DIGITS} 1 0 $([ $RANK = 1 ] || echo autocast)", "precision")):
            result = self.ranks("sh", "-c", f"exec {words}")
            self.assertNotEqual(result.returncode, 0)
            self.assertRegex(result.stderr, f'settings: rank 1 has "{name} .*", rank 0 has "{name} ')
        for program, batch in (self.program, 64), (self.gpt, 8):
            self.assertIn(f"ranks: got 3, expected a divisor of {batch}", self.ranks(program, DIGITS, 1, ranks=3).stderr)

    def test_a_loss_that_is_no_number_ends_the_training(self):
        file, data = self.folder / "nan.safetensors", load_file(DIGITS)
        save_file(data | {"test_features": data["test_features"] * math.nan}, file)
        self.assertRegex(run(self.program, file, 1, cwd=self.folder).stderr, "held-out loss: got -?nan, expected a number")

    def gpt_outputs(self, *words):
        """@return the losses, and the norms, of one process and of two ranks"""
        rows = [re.findall(r"^step \d+ \| loss (\S+) \| norm (\S+)$", output, re.MULTILINE) for output in self.outputs(self.gpt, *words)]
        return [[[float(row[i]) for row in of_ranks] for i in range(2)] for of_ranks in rows]

    def test_gpt_trains_as_python(self):
        text = (ROOT / "LICENSE").read_bytes()[:400]  # two epochs of ten steps
        file = self.write("text", text)
        cases = (0, "float32", -1, 1e-5), (0, "autocast", 1e-5, 1e-3), (0, "bfloat16", 1e-4, 0.01), (0.5, "float32", -1, 1e-5)
        for dropout, precision, least, most in cases:
            for ranks, (losses, got) in enumerate(self.gpt_outputs(file, STEPS, dropout, precision), 1):
                expected, norms = gpt_in_python(text, dropout, ranks if dropout else 1)
                with self.subTest(precision, dropout=dropout, ranks=ranks):
                    self.assertLess(expected[-1], 0.8 * expected[0])
                    self.assert_close(losses, expected, most)
                    self.assert_close(got, norms, 10 * most)
                    self.assertGreater(max(abs(loss / other - 1) for loss, other in zip(losses, expected, strict=True)), least)
        for words, said in (([self.write("short", text[:95])], "got 95 bytes, expected at least 96\n"),
                            ([file, 1, 1], "dropout: got 1, expected "), ([file, 1, 0, "bf16"], 'precision: got "bf16", expected ')):
            self.assertIn(said, run(self.gpt, *words, cwd=self.folder).stderr)

    def test_gpt_sends_gradients_once_a_step(self):
        ranks = self.start(self.gpt, ROOT / "LICENSE", "1000")
        for line in ranks[0].stdout:
            if line.startswith("step 19 "):
                ranks[1].kill()
        error, _ = [rank.communicate(timeout=60)[1] for rank in ranks]
        self.assertLess(int(re.search(r"collective (\d+)", error)[1]), 150, error)  # about 65, or 185 if each micro-batch sends

    def test_the_installation_has_a_gpus_module_if_the_build_has(self):
        module = "libddp_cuda.so"
        self.assertEqual((self.prefix / "lib" / module).exists(), pathlib.Path(ARGUMENTS[0], "lib", module).exists())


if __name__ == "__main__":
    ARGUMENTS = [sys.argv.pop(1) for _ in range(3)] + [" ".join(sys.argv[1:])]  # CMake drops empty flags
    del sys.argv[1:]
    unittest.main()
