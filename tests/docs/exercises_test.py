#!/usr/bin/env python3
"""Each exercise's copy shows the symptom of its page, and its check refuses the copy and programs that skip the lesson. Solutions pass.

usage: exercises_test.py BUILD_DIR [NUMBER...]      default: all exercises
       exercises_test.py                            only what needs no build
"""

import concurrent.futures
import contextlib
import importlib.machinery
import importlib.util
import io
import os
import pathlib
import re
import sys
import tempfile
import unittest
from unittest import mock

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support.scratch import ROOT, Scratch  # noqa: E402
sys.path.insert(0, str(ROOT / "tools"))

from pages import same_line  # noqa: E402

loader = importlib.machinery.SourceFileLoader("exercise", str(ROOT / "tools" / "exercise"))
exercise = importlib.util.module_from_spec(importlib.util.spec_from_loader("exercise", loader))
loader.exec_module(exercise)
os.environ["PATH"] = exercise.pages.SHELL_PATH  # the commands of the pages need no other programs than the system's

BY_HAND = """      for (const torch::Tensor& parameter : model->parameters()) {
        ddp::all_reduce(parameter.grad());  // collective: the sum over the ranks
        parameter.grad().div_(launch.world_size);
      }
"""
DIVIDE = "        parameter.grad().div_(launch.world_size);\n"
SEED = "torch::manual_seed(options.seed + static_cast<uint64_t>(rank));"
SAMPLER = "sampler(dataset.train.size(), launch.rank, launch.world_size,"
OPTIMIZER = "  const auto optimizer = ddp::make_optimizer(model->parameters(), options);\n"
INCLUDE = '#include "common/stage.hpp"'
OWN_OPTIMIZER = "  const auto optimizer = std::make_unique<torch::optim::{}>(model->parameters(), {});\n"
WRAPPED = {OPTIMIZER: "  ddp::DistributedDataParallel parallel_model(model);\n" + OPTIMIZER, "model->forward": "parallel_model.forward"}
WAIT = "        group.wait(message.work);\n"

# Programs beside a copy as it is: the exercise, the program to begin with (1: its solution, 0: its copy, or another exercise's copy or solution),
# what to replace in it, and a word of the sentence that refuses it. None: it is right.
PROGRAMS = [
    ("01", 0, {"options.batch_size,": "options.batch_size * launch.world_size,"}, "the ranks do the same work"),
    ("01", 1, {SAMPLER + "\n                                  options.seed": SAMPLER + "options.seed + rank"}, "same seed on all ranks"),
    ("02", 0, {SEED: "torch::manual_seed(options.seed);"}, "Leave the seeds as they are"),
    ("02", 0, {SEED: SEED + "at::manual_seed(options.seed + 0);"}, "broadcast the weights"),
    ("02", 1, {"broadcast(parameter.detach())": "all_reduce(parameter.detach())"}, "not on the first weights of rank 0"),
    ("03", "06 copy", {}, "before the step"),
    ("03", 1, {DIVIDE: ""}, "Are they sums?"),
    ("03", 1, {DIVIDE: "", OPTIMIZER: OPTIMIZER + "  for (auto& of : optimizer->param_groups()) of.options().set_lr(of.options().get_lr() / 2);\n"},
     "smaller learning rate"),
    ("03", 1, {DIVIDE: DIVIDE + "        std::exit(0);\n"}, "ended too early"),
    ("03", 1, {DIVIDE: "", "loss.backward()": "(loss / launch.world_size).backward()"}, None),
    ("03", 0, {OPTIMIZER: OPTIMIZER + "  ddp::Accelerator accelerator(options, launch);\n"}, "by hand"),
    ("03b", 0, WRAPPED, "by hand"),
    ("03b", 1, {"      std::vector<torch::Tensor> gradients;\n": BY_HAND + "      std::vector<torch::Tensor> gradients;\n"}, "left in a loop"),
    ("03b", 1, {"      flat.div_(launch.world_size);\n": ""}, "Is the sum divided"),
    ("03b", 1, {"flat.narrow(0, begin, ": "flat.narrow(0, 0, "}, "its own parameter"),
    ("03b", 1, {"        parameter.grad().copy_": "        if (begin > 249'600) parameter.grad().copy_"}, "must be in the message"),
    ("03b", 1, {"loss.backward();": "loss.backward();\n      optimizer->step();", "parameter.grad().flatten()": "parameter.detach().flatten()",
                "parameter.grad().copy_": "parameter.detach().copy_", "      }\n      optimizer->step();": "      }"}, "right with SGD only"),
    ("04", 0, {"options.seed);\n  ddp::DataLoader": "options.seed, false);\n  ddp::DataLoader"}, "order of one process"),
    ("04", 0, {"      optimizer->zero_grad();": "      sampler.set_epoch(epoch);\n      optimizer->zero_grad();"}, "before the loader begins"),
    ("06", 0, {OPTIMIZER: OWN_OPTIMIZER.format("SGD", "0.1"), INCLUDE: INCLUDE + "\n#include <torch/optim/sgd.h>"}, "`--optimizer` must choose"),
    ("06", 1, {DIVIDE: ""}, "Did you divide the sum?"),
    ("06", 1, {"      optimizer->step();\n": "      optimizer->step();\n      for (auto& each : model->parameters()) ddp::broadcast(each.detach());\n"},
     "send no weights"),
    ("06", 0, {"loss.backward();\n": "loss.backward();\n" + BY_HAND}, "average no weights"),
    ("07", 1, {"  ddp::expect_same_weights(*model);  // collective\n": ""}, "Keep it"),
    ("07", 1, {"    epoch_loss.div_(launch.world_size);\n": ""}, "divide the sum"),
    ("08", 0, {"      // Yours, about five lines: wait for all messages, and make means of the sums.\n": BY_HAND}, "after backward has ended"),
    ("08", 1, {WAIT: "", "(message.gradient);  // collective\n": "(message.gradient);\n      group.wait(message.work);\n"}, "backward stands still"),
    ("08", 1, {"      message.work = group.start_all_reduce(message.gradient);  // collective\n": "",
               "&](const torch::Tensor& gradient) {\n      Message& message =": "&](const torch::Tensor& gradient) {",
               "      for (const Message& message : messages) {\n" + WAIT: """      for (Message& message : messages) {
        message.work = group.start_all_reduce(message.gradient);
      }
      for (Message& message : messages) {\n""" + WAIT}, "in the hook"),
    ("09", 1, {"parameters.rbegin(); parameter != parameters.rend()": "parameters.begin(); parameter != parameters.end()"},
     "from the last parameter"),
    ("09", 1, {"40'000": "400'000"}, "one message per bucket"),
    ("09", 1, {"if (--bucket.missing == 0) {\n          bucket.start(group);  // collective\n        }": "--bucket.missing;",
               "        group.wait(bucket.work);": "        bucket.start(group);\n        group.wait(bucket.work);"}, "after backward has ended"),
    ("10", 0, {"  (void)part(values, 0), (void)next, (void)previous;":
               "  for (size_t i = 0; i < values.size(); ++i) values[i] = 10.0F * float(i % 1000);"},
     "target is missed"),
    ("10", 1, {"own[i] += received[i]": "own[i] = 10.0F * float((&own[i] - values.data()) % 1000)"}, "sum is wrong"),
    ("11", "03 solution", {}, "this rank's part only"),
    ("11", 0, {"      // Yours, about fifteen lines: reduce-scatter, step, all-gather, new weights for the model.\n": BY_HAND,
               "      optimizer->step();": "      all->step();",
               "  // 4.": "  const auto all = ddp::make_optimizer(model->parameters(), options);\n  // 4."},
     "second optimizer"),
    ("11", 1, {"sum =\n          group.reduce_scatter(flat(gradients, launch.world_size));": "rows = flat(gradients, launch.world_size);\n      ddp::all_reduce(rows);",
               "sum / launch": "rows[rank] / launch"}, "sums of all parts"),
    ("11", 1, {"group.reduce_scatter(flat(gradients, launch.world_size))": "group.all_gather(flat(gradients, launch.world_size)).sum(0)[rank]"},
     "by one reduce-scatter"),
    ("11", 1, {"parameter.detach().copy_": "parameter.copy_"}, "change parameter.detach()"),
    ("11", 1, {"sum / launch.world_size": "sum"}, "Adam hides a sum"),
    ("12", 0, {"784,256,10": "784,256,10 --resume restart"}, "did not read the snapshot"),
    ("12", 1, {"    --snapshot \"$snapshot\"": "    --quiet"}, "The run failed"),
]


BUILD = exercise.build


def program(page, base, edits):
    """The text of a program: a copy or a solution, with some of its text replaced."""
    if isinstance(base, str):
        page, base = exercise.find(base.split()[0]), base.endswith("solution")
    text = page.right if base else page.broken
    for old, new in edits.items():
        assert text.count(old) == 1, f"{page.title}: got {text.count(old)} times, expected once: {old}"
        text = text.replace(old, new)
    return text


def build_together(page, texts, folder):
    """Compiles programs of one stage as one, because LibTorch's headers cost seconds in each source. @return a script for each text"""
    includes = sorted(set(re.findall("^#include .*", "".join(texts), re.MULTILINE)))
    parts = [f'namespace program_{number} {{\n#line 1 "{folder}/{number}/{page.source.name}"\n{re.sub("#include .*", "", text)}\n}}'
             for number, text in enumerate(texts)]
    mains = ", ".join(f"program_{number}::main" for number in range(len(texts)))
    main = f'int main(int argc, char** argv) {{\n  return std::array{{{mains}}}.at(std::stoul(std::getenv("TEST_PROGRAM")))(argc, argv);\n}}\n'
    folder.mkdir()
    (folder / page.source.name).write_text("\n".join(["#include <array>", *includes, *parts, main]))
    if errors := BUILD(page, folder, BUILD_DIR):
        raise AssertionError(errors)
    return {text: f'#!/bin/sh\nTEST_PROGRAM={number} exec {folder}/{page.program} "$@"\n' for number, text in enumerate(texts)}


def complaint(page, text, refusal):
    """How the check of a program differs from what is expected. @param refusal a word of its sentence, or none if the program is right"""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        exercise.make(page, folder)
        (folder / page.source.name).write_text(text)
        passes, verdicts, output = exercise.check(page, folder, BUILD_DIR)
    report = "\n".join([page.title, *verdicts, output])
    if passes != (refusal is None) or "In file included from" in report or refusal and refusal not in "\n".join(verdicts[-2:]):
        return f"got this, expected {refusal or 'right'}: {report}"
    missing = [line for _, quoted in page.run for line in quoted if text == page.broken and line != "..." and
               not any(same_line(line, printed) for printed in output.splitlines())]
    return f"not printed: {missing}: {report}" if missing else ""


class Programs(unittest.TestCase):
    def test_copies_and_programs_without_the_lesson_are_refused_and_solutions_pass(self):
        cases, stages, scripts = [], {}, {}
        for page in exercise.exercises():
            if page.number in NUMBERS or not NUMBERS:
                cases += [(page, page.broken, ""), (page, page.right, None)]
                cases += [(page, program(page, base, edits), refusal) for number, base, edits, refusal in PROGRAMS if number == page.number]
        for page, text, refusal in cases:
            refused_before = any(exercise.complaint(text, operator, value) for fact, operator, value, _ in page.rows if fact == "copy")
            if page.source.parent.name == "03_ddp_spawn" and not refused_before:
                stages.setdefault(page.program, (page, {}))[1][text] = None

        def build(page, folder, build_dir):
            if not (script := scripts.get((folder / page.source.name).read_text())):
                return BUILD(page, folder, build_dir)
            (folder / page.program).write_text(script)
            (folder / page.program).chmod(0o755)

        with (concurrent.futures.ThreadPoolExecutor(2) as pool, tempfile.TemporaryDirectory() as name,
              mock.patch.object(exercise, "build", build)):
            for built in pool.map(lambda stage: build_together(*stage, pathlib.Path(name) / stage[0].program), stages.values()):
                scripts.update(built)
            found = [complaint for complaint in pool.map(lambda case: complaint(*case), cases) if complaint]
            if "03b" in [page.number for page, *_ in cases]:
                (pathlib.Path(name) / "bin").symlink_to(BUILD_DIR / "bin")
                with mock.patch.object(exercise, "LAUNCHES", 1), contextlib.redirect_stdout(io.StringIO()) as printed:
                    exercise.ladder("03b", None, True, pathlib.Path(name))
                self.assertRegex(printed.getvalue(), r"\n03b One flat message +1 +\d")
        self.assertEqual(found, [], "\n".join(found))


class Pages(Scratch):
    def exercise(self, words):
        """@return exit code, standard output and errors of tools/exercise in the folder"""
        result = self.run_here(ROOT / "tools/exercise", *words.split())
        return result.returncode, result.stdout, result.stderr

    def main(self, arguments):
        """@return exit code and output of tools/exercise in this process, so that its functions can be mocked"""
        with (mock.patch.object(sys, "argv", ["exercise", *arguments.split()]), contextlib.redirect_stdout(io.StringIO()) as printed):
            return f"{exercise.main()} {printed.getvalue()}"

    def test_every_exercise_is_listed_once_and_in_order(self):
        listed = re.findall(r"^\| \**\[(.+?)\]\((\S+?)#", (exercise.PAGES / "README.md").read_text(), re.MULTILINE)
        self.assertEqual(listed, [(page.title, page.page.name) for page in exercise.exercises()])
        self.assertEqual([page.number for page in exercise.exercises()], "01 02 03 03b 04 06 07 08 09 10 11 12".split())

    def test_short_path_is_the_same_on_both_pages_and_comes_first(self):
        lines = re.findall(r"\[Exercises\]\(docs/exercises/README.md\) (\d.*?) \|", (ROOT / "README.md").read_text())
        done, path = set(), re.findall(r"\b\d\d\w?\b", " ".join(lines))
        for number in [*path, "02", "04", "08", "09", "10", "11"]:
            self.assertRegex(exercise.next_of(done), f"^Next: tools/exercise {number} ")
            done.add(number)
        self.assertEqual(exercise.next_of(done), "All exercises are done.")

    def test_every_row_is_read_and_every_copy_differs_from_its_solution(self):
        text = "".join(path.read_text() for path in exercise.PAGES.glob("*.md"))
        self.assertEqual(len(exercise.ROW.findall(text)), len(re.findall(r"^\| `", text, re.MULTILINE)))
        for page in exercise.exercises():
            self.assertNotEqual(page.broken, page.right)
            self.assertEqual([row[2] for row in page.rows if row[0] == "exit"], ["0"])
            places = [exercise.FIRST.get(fact, 3) for fact, *_ in page.rows]
            self.assertEqual(places, sorted(places))
            self.assertGreaterEqual(1 + sum(number == page.number and refusal is not None for number, _, _, refusal in PROGRAMS), 3, page.title)
            for _, operator, value, _ in (row for row in page.rows if row[0] == "copy"):
                self.assertIsNone(exercise.complaint(page.broken, operator, value) or exercise.complaint(page.right, operator, value))

    def test_the_first_step_that_differs_is_named(self):
        self.assertIsNone(exercise.first_difference([1.0] * 20 + [2.0], [1.000009] * 20 + [2.00019]))
        self.assertRegex(exercise.first_difference([1.0] * 20, [1.00002] * 20), "^step 0: ")
        self.assertRegex(exercise.first_difference([1.0] * 20 + [2.0], [1.0] * 20 + [2.0003]), "^step 20: ")
        for yours in ([1.0, 2.1], [1.0, float("nan")], [1.0], [], None):
            self.assertRegex(exercise.first_difference(yours, [1.0, 2.0]), "^step 1: |steps, expected 2$")
        self.assertTrue(exercise.first_difference([], []))
        self.assertTrue(exercise.first_difference(exercise.step_losses('{"step": 0, "loss": null}'), [0.0]))

    def test_the_copy_is_kept_and_exit_codes_tell_what_is_right(self):
        with mock.patch.object(exercise, "check") as check, mock.patch.object(exercise, "build", return_value="an error"):
            for file in "kill_a_rank.sh", "by_hand.cpp", "exercise/03b/by_hand.cpp":
                self.write(file, "mine")
            here = f"--folder {self.folder} --build-dir {os.path.relpath(self.folder)}"
            for arguments, is_right, answer in ((f"12 {here}", None, "^0 .*stays as it is.*an error"),
                                                (f"11 --check {here}", False, "^1 .*still wrong"),
                                                (f"11 --check {here}", True, "^0 .*11: right.*A ring sends.*Next: tools/exercise 01 "),
                                                (f"11 --solution {here}", None, "^0 .*A ring sends"), ("11 --hint", None, r"^0 `group\.reduce_scatter"),
                                                (f"3b --check --build-dir {self.folder}", True, "^0 .*03b --time.*Next: tools/exercise 01"),
                                                (f"--build-dir {self.folder}", None, "^0   01 .*\n  03 .*\n✓ 03b .*\n  12 .*Next: tools/exercise 01 ")):
                check.return_value = is_right, ["a row"], ""
                self.assertRegex(self.main(arguments), f"(?s){answer}")
            with mock.patch.object(exercise, "ladder"):
                for arguments in re.findall("^tools/exercise(.*?) *#", (exercise.PAGES / "README.md").read_text(), re.MULTILINE):
                    check.return_value = True, ["a row"], ""
                    self.assertRegex(self.main(f"{arguments} {here}"), "^0 ")
            self.write("exercise/03b/by_hand.cpp", "changed")
            self.assertRegex(self.main(f"--build-dir {self.folder}"), "\n  03b ")
            self.assertTrue(check.call_args[0][2].is_absolute())  # commands run in other folders
            self.assertEqual((self.folder / "kill_a_rank.sh").read_text(), "mine")
            with mock.patch.object(pathlib.Path, "chmod", side_effect=PermissionError):  # a file system without modes
                self.assertRegex(exercise.make(exercise.find("12"), self.folder / "new"), "^Edit ")

    def test_what_is_not_there_is_refused(self):
        with mock.patch.object(exercise, "TIMEOUT_S", 0.1):
            program = self.write("bin/03_ddp_spawn_by_hand", "")
            self.write("by_hand.cpp", exercise.find("11").right)
            for content, words in ((b"[" * 100_000, ""), (b"[{", ""), (b"", ""), (b"[]", ""), (b"[]", "--folder /dev/null"), (b"[]", "--folder /proc/x"), (b"\xff", "")):
                self.write("compile_commands.json", content)
                code, printed, said = self.exercise(f"11 --build-dir . --folder . {words or '--check'}")
                self.assertEqual((code, "" if words else printed, said.count("\n")), (2, "", 1), said)
            self.assertIn("--nonsense", self.exercise("--nonsense")[2])
            for words, message in (("3 --check --folder /nowhere", "make it first: tools/exercise 03 --folder /nowhere$"),
                                   ("5", "got 5, expected one of 01"), ("4 --time", "got 4, expected one of 03, 03b, 08, 09, compiled$"),
                                   ("--check", "got no number --check, expected a number"),
                                   ("--time --solution --folder .", "got no number --solution --time, expected a number"),
                                   ("3 --time --build-dir .", "got no text that a check called right"), ("3 --solution --check", "alone or with --time$")):
                code, printed, said = self.exercise(words)
                self.assertEqual((code, printed), (2, ""))
                self.assertRegex(said, message)
            program.unlink()
            for wrong, message in ((lambda: exercise.find("99"), "got 99, expected one of 01, 02"),
                                   (lambda: exercise.build(exercise.find("11"), self.folder, self.folder), "expected a build there"),
                                   (lambda: exercise.reference_facts("exit 3", ROOT), "got exit code 3, expected 0"),
                                   (lambda: exercise.reference_facts("sleep 9", ROOT), "got no end after 0.1 s")):
                self.assertRaisesRegex(exercise.Bad, message, wrong)

    def test_errors_of_a_compiler_are_those_of_the_copy(self):
        copy = pathlib.Path("/x/by_hand.cpp")
        for printed, shown in (("/x/by_hand.cpp:9:3: error: no y [-fpermissive]\n  9 | y\n/t.h:5:1: error: z", "by_hand.cpp:9:3: error: no y"),
                               ("/t.h: In instantiation of f:\n/x/by_hand.cpp:9:3:   required from here\n/t.h:5:1: error: no z", "by_hand.cpp:9:3: error: no z"),
                               ("ld: copy.o: in f:\n(.text+0x1): undefined reference to `g'\nmore", "by_hand.cpp: error: undefined reference to `g'"),
                               ("ld: no space", "ld: no space")):
            self.assertEqual(exercise.own_errors(printed, copy), shown)
        for words, hint in ("training diverged", "does not diverge"), ("discards qualifiers", "grad() is const"):
            self.assertIn(hint, exercise.hints(words)[0])

    def test_facts_are_of_the_last_epoch_and_of_all_ranks(self):
        epochs = "".join(f"[CPU{rank}] Epoch {epoch} | Batchsize: 8 | Steps: {4 + epoch} | Loss: {loss}\n"
                         for rank, epoch, loss in ((0, 0, 3), (1, 0, 3), (2, 0, 3), (1, 1, 2), (0, 1, 1)))
        facts = exercise.run(f"echo 'digest a\n{epochs}digest b'${{CUDA_VISIBLE_DEVICES-x}}; exit 3\n", None, None, ROOT)
        self.assertEqual(facts, {"exit": "3", "output": facts["output"], "digest": "b", "trainings_from_epoch_0": "1", "batch_size": "8", "steps": "5",
                                 "printed_loss": "1 and 2"})
        self.assertEqual(exercise.step_losses('{"step": 0, "loss": 1}\n{"step": 0, "loss": 2}'), [1.5])

    def test_a_diff_fits_or_is_refused_and_links_are_no_text_of_a_terminal(self):
        self.assertEqual(exercise.plain("a [b\nc](d.md#e) f(g)"), "a b\nc f(g)")
        diff = " a\n-b\n+B\n@@\n c\n+d\n"
        self.assertEqual(exercise.changed("a\nb\nc\n", diff), "a\nB\nc\nd\n")
        self.assertEqual(exercise.changed("a\nB\nc\nd\n", diff, backwards=True), "a\nb\nc\n")
        for text in "a\nc\n", "a\nb\na\nb\nc\n":
            with self.assertRaisesRegex(exercise.Bad, "places with these lines, expected 1"):
                exercise.changed(text, diff)

    def test_a_row_holds_or_not(self):
        for yours, operator, value, is_right in (("nan", "=", "1", False), (None, "=", "1", False), ("nan", ">", "0", False), (None, ">", "0", False),
                                                 ("0", ">", "0", False), ("1", ">", "0", True), ("f( a );  // b", "has", "f(a);", True),
                                                 ("// f(a);", "has", "f(a);", False), ("/* f(a);\n*/", "has", "f(a);", False), ("f()", "once", "f(", True),
                                                 ("f() f()", "once", "f(", False), ("g()", "lacks", "f( or g(", False),
                                                 ("2", "=", "1 or 2", True), ("// f(a);", "lacks", "f(a);", True), ("f(a );", "lacks", "f(a);", False)):
            self.assertEqual(exercise.complaint(yours, operator, value) is None, is_right, (yours, operator))


if __name__ == "__main__":
    BUILD_DIR = pathlib.Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else None
    NUMBERS = sys.argv[2:]
    unittest.main(argv=sys.argv[:1], defaultTest=["Pages", "Programs"] if BUILD_DIR else ["Pages"])
