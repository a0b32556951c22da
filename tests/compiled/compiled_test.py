#!/usr/bin/env python3
"""03_ddp_spawn_compiled trains as by hand and as Python; what does not fit is one line; a killed run resumes to the same bits.

usage: compiled_test.py BIN_DIR STEPS    (STEPS: what make_steps.py has written)
"""

import json
import os
import pathlib
import shutil
import re
import runpy
import signal
import subprocess
import sys
import time
import unittest
import warnings

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "docs/your_model"), str(ROOT / "tools")]
from clusters.stages import last_line  # noqa: E402
from support.scratch import Scratch  # noqa: E402
import model as cnn  # noqa: E402

BIN_DIR, STEPS = (pathlib.Path(sys.argv.pop(1)).resolve() for _ in range(2))
KEY = "ddp-step-1"


class Compiled(Scratch):
    def train(self, line, program="03_ddp_spawn_compiled"):
        """@return moved and digest"""
        done = self.run_here(BIN_DIR / program, *line.split(), "--quiet")
        self.assertEqual(done.returncode, 0, done.stderr)
        return last_line(done.stdout)

    def losses(self, line, program="03_ddp_spawn_compiled"):
        """@return the losses of the first 20 steps, means over the ranks"""
        self.train(f"{line} --metrics m.jsonl --resume never", program)
        rows = [json.loads(text) for text in (self.folder / "m.jsonl").read_text().splitlines()]
        steps = [[row["loss"] for row in rows if row.get("step") == step] for step in range(20)]
        return [sum(step) / len(step) for step in steps]

    def refused(self, line, *words, code=2):
        done = self.run_here(BIN_DIR / "03_ddp_spawn_compiled", *f"1 1 --nprocs 1 {line}".split())
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)

    def assert_equal_losses(self, losses, expected):
        self.assertEqual(len(losses), 20)
        for loss, wanted in zip(losses, expected, strict=True):
            self.assertAlmostEqual(loss, wanted, delta=1e-5 * wanted)

    def test_it_trains_as_by_hand_on_any_number_of_ranks(self):
        step = f"--step {STEPS}/T.pt2"
        for work in ("--nprocs 1", "--nprocs 2 --optimizer adamw", "--nprocs 3"):
            with self.subTest(work):
                line = f"4 4 --global-batch 66 {work}"
                moved, digest = self.train(f"{line} {step}")
                by_hand, _ = self.train(line, "03_ddp_spawn_by_hand")
                self.assertAlmostEqual(moved, by_hand, delta=1e-4 * by_hand)
                self.assertEqual(digest, self.train(f"{line} {step}")[1])
        self.assert_equal_losses(self.losses(f"1 1 --nprocs 2 {step}"), self.losses("1 1 --nprocs 2", "03_ddp_spawn_by_hand"))
        self.assertEqual(*[self.train(f"2 2 --nprocs 2 {step} --backend {name}")[1] for name in ("shm", "gloo")])

    def test_the_first_losses_of_a_model_of_python_are_python_s(self):
        data = load_file(ROOT / "data/digits.safetensors")
        pixels, labels = data["features"].double(), data["labels"]
        inputs = ((pixels - pixels.mean()) / pixels.std(correction=0)).float()
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(42))
        model = cnn.model()
        model.load_state_dict(load_file(STEPS / "cnn.safetensors"))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        expected = []
        for batch in order[:20 * 64].view(20, 64):
            optimizer.zero_grad()
            loss = cnn.loss(model(inputs[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            expected.append(loss.item())
        for ranks in 1, 2:
            with self.subTest(ranks=ranks):
                self.assert_equal_losses(self.losses(f"1 1 --dataset digits --step {STEPS}/cnn.pt2 --optimizer momentum --lr 0.05 "
                                                     f"--nprocs {ranks} --global-batch 64"), expected)

    def copy(self, change=None):
        """Copies T's package. @param change of the description, in place @return its path"""
        for suffix in ".pt2", ".safetensors":
            shutil.copy(STEPS / f"T{suffix}", self.folder / f"step{suffix}")
        if change:
            path = self.folder / "step.safetensors"
            with safe_open(path, "pt") as file:
                description = json.loads(file.metadata()[KEY])
            change(description)
            save_file(load_file(path), path, {KEY: json.dumps(description)})
        return f"--step {self.folder}/step.pt2"

    def test_what_does_not_fit_is_refused_by_name(self):
        changes = (
            (lambda d: d.update(torch="2.10.0"), 'a package of torch "2.10.0"'),
            (lambda d: d.update(device="cuda"), 'for device "cuda", expected cpu'),
            (lambda d: d["instruction_sets"].append("amx_tile9"), 'for processors with "amx_tile9"'),
            (lambda d: d.update(crc32=1), "another checksum"),
            (lambda d: d.update(fewest_samples="2"), "must be number"),
            (lambda d: d["trained"].append("layer1.weight"), "layer1.weight"),
            (lambda d: d.pop("trained"), "trained"),
        )
        for change, words in changes:
            with self.subTest(words):
                self.refused(self.copy(change), words, "tools/compile_step")
        self.copy()
        for name in "step.pt2", "step.safetensors":
            content = (self.folder / name).read_bytes()
            for damaged in (content[:-1], content[:len(content) // 2], b"", content[:-3] + bytes([content[-3] ^ 4]) + content[-2:]):
                with self.subTest(name, bytes=len(damaged)):
                    self.write(name, damaged)
                    self.refused(f"--step {self.folder}/step.pt2", "step.pt2")
            self.write(name, content)
        shutil.copy(STEPS / "cnn.safetensors", self.folder / "step.safetensors")
        self.refused(f"--step {self.folder}/step.pt2", "another checksum")
        self.refused("--step none.pt2", "none.safetensors")
        self.refused("", "tools/compile_step MODEL.py --output step.pt2")
        self.refused(f"--step {STEPS}/T.pt2 --layers 30,1", "got input of shape (32, 30)", "expected (32, 20)")
        self.refused(f"--step {STEPS}/cnn.pt2", "got input of shape (32, 20)", "expected (32, 64)")
        self.refused(f"--step {STEPS}/T.pt2 --hidden 3", "--hidden")
        self.refused(self.copy(lambda d: d.update(fewest_samples=33)), "got a batch of 32, expected at least 33", code=1)
        self.refused(f"--step {STEPS}/T.pt2 --lr 1e9 --quiet", "diverged", code=1)
        self.assertEqual(self.run_here(BIN_DIR / "03_ddp_spawn", "1", "1", "--step", "x").returncode, 2)

    def test_a_run_on_the_cpu_loads_neither_cuda_nor_python(self):
        done = self.run_here(BIN_DIR / "03_ddp_spawn_compiled", "1", "1", "--nprocs", "2", "--step", STEPS / "T.pt2", LD_DEBUG="files",
                             LD_DEBUG_OUTPUT=f"{self.folder}/loaded")
        self.assertEqual(done.returncode, 0, done.stderr)
        loaded = "".join(re.findall(r"calling init: .*", "".join(path.read_text() for path in self.folder.glob("loaded.*"))))
        self.assertRegex(loaded, r"libtorch_cpu\.so.*step\S*\.wrapper\.so")
        self.assertNotRegex(loaded, "lib(ddp_cuda|torch_cuda|torch_python|python)")

    def test_a_killed_run_resumes_to_the_same_bits(self):
        line = f"200 10 --step {STEPS}/T.pt2 --nprocs 2 --optimizer adam --snapshot s"
        expected = self.train(line)
        for name in "s", "s.prev":
            (self.folder / name).unlink()
        run = subprocess.Popen([BIN_DIR / "03_ddp_spawn_compiled", *line.replace("200", "2000000", 1).split()], cwd=self.folder,
                               stdout=subprocess.DEVNULL, start_new_session=True)
        while not (self.folder / "s.prev").exists():
            time.sleep(0.001)
            self.assertIsNone(run.poll())
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
        with safe_open(self.folder / "s", "pt") as file:
            done = int(file.metadata()["epochs_done"])
        self.assertGreaterEqual(done, 20)
        self.assertLess(done, 200, "the run was not killed early enough")
        self.assertEqual(self.train(f"{line} --resume auto"), expected)
        shutil.copy(STEPS / "T.pt2", self.folder / "U.pt2")
        shutil.copy(STEPS / "T.safetensors", self.folder / "U.safetensors")
        self.refused(f"--snapshot s --resume auto --optimizer adam --global-batch 64 --step {self.folder}/U.pt2", "step", "U.pt2", code=3)


class Tool(Scratch):
    def fork_tool(self, *words):
        """Starts tools/compile_step as a fork, because torch takes seconds to import. Its errors go to a file beside the output. @return its process id"""
        if pid := os.fork():
            return pid
        warnings.simplefilter("ignore")  # as in a program of its own
        code, sys.argv = 99, ["compile_step", *map(str, words)]
        os.dup2(os.open(f"{words[-1]}.said", os.O_WRONLY | os.O_CREAT), 2)
        try:
            runpy.run_path(str(ROOT / "tools/compile_step"), run_name="__main__")
        except SystemExit as stop:
            code = stop.code
        finally:
            os._exit(code)

    def test_models_that_no_step_can_hold_are_refused_by_name(self):
        good = ("def model(): return nn.Sequential(nn.Flatten(), nn.Linear(6, 2))\ndef loss(o, t): return F.cross_entropy(o, t)\n"
                "def example(): return torch.rand(4, 2, 3), torch.zeros(4, dtype=torch.long)\n")
        cases = {
            "random numbers": good.replace("nn.Flatten()", "nn.Flatten(), nn.Dropout(0.1)"),
            "loss(): got shape [4]": good.replace("(o, t): return", "(o, t): return o.sum(1) *"),
            "example(): got shapes [1, 2, 3] and [4]": good.replace("rand(4,", "rand(1,"),
            "model(): got parameters of types": good.replace("nn.Flatten(),", "nn.Flatten(), nn.Linear(6, 6).double(),"),
            "expected a model that torch.export takes": good.replace("nn.Flatten()", "nn.Unflatten(0, (2, 2)), nn.Flatten(0, 1), nn.Flatten()"),
            "has no attribute 'example'": good.partition("def example")[0],
            "another result from the package": good.replace("F.cross_entropy(o, t)", "F.cross_entropy(o, t, reduction='sum') / len(o)"),
        }
        runs = {}
        for i, (words, text) in enumerate(cases.items()):
            model = self.write(f"m{i}.py", f"import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n{text}")
            runs[words] = self.fork_tool(model, "--output", self.folder / f"m{i}.pt2"), self.folder / f"m{i}.pt2.said"
        for words, (run, said) in runs.items():
            with self.subTest(words):
                code, error = os.waitstatus_to_exitcode(os.waitpid(run, 0)[1]), said.read_text()
                self.assertEqual(code, 2, error)
                self.assertIn(words, error)
                self.assertEqual(len(error.splitlines()), 1, error)
        self.assertEqual(list(self.folder.glob("*.pt2")), [])
        done = self.run_here(ROOT / "tools/compile_step", "--layers", "20,1", "--output", "none/s.pt2")
        self.assertEqual((done.returncode, done.stderr), (1, "compile_step: error: --output: cannot write none/s.pt2: No such file or directory\n"))


if __name__ == "__main__":
    unittest.main()
