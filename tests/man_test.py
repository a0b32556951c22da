#!/usr/bin/env python3
"""The programs and their manual pages as `cmake --install` leaves them: a page for each, which says all that --help says.

usage: man_test.py BUILD_DIR CMAKE
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

OPTION = re.compile(r"^  (-\S+)", re.MULTILINE)


def run(*command):
    result = subprocess.run([str(word) for word in command], check=False, text=True, capture_output=True, timeout=120)
    if result.returncode != 0:
        raise AssertionError(f"{command}: exit code {result.returncode}\n{result.stdout}\n{result.stderr}")
    return result


def squeezed(text):
    return re.sub(r"\s", "", text)


class Man(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory(prefix="ddp-man-")
        cls.addClassCleanup(scratch.cleanup)
        prefix = pathlib.Path(scratch.name)
        for component in "programs", "man":
            run(CMAKE, "--install", BUILD, "--prefix", prefix, "--component", component)
        cls.programs = sorted((prefix / "bin").iterdir())
        cls.folder = prefix / "share/man/man1"
        cls.help = {program.name: run(program, "--help").stdout for program in cls.programs}

    def source(self, name):
        return (self.folder / f"{name}.1").read_text()

    def text(self, name):
        """As a reader sees it: the parts by their heading."""
        # Plain: no hyphens at the ends of lines, no colours, nothing printed twice.
        shown = run("groff", "-man", "-Tascii", "-rHY=0", "-P-cbou", self.folder / f"{name}.1")
        self.assertEqual(shown.stderr, "")
        parts = re.split(r"^([A-Z][A-Z ]+)$", shown.stdout, flags=re.MULTILINE)
        return dict(zip(parts[1::2], parts[2::2], strict=True))

    def test_every_program_has_its_page(self):
        self.assertGreater(len(self.programs), 12)
        self.assertEqual([f"{program.name}.1" for program in self.programs], sorted(path.name for path in self.folder.iterdir()))

    def test_an_installed_program_runs(self):
        for program in self.programs:
            with self.subTest(program.name):
                self.assertEqual(run(program, "--version").stdout, run(BUILD / "bin" / program.name, "--version").stdout)

    def test_groff_does_not_complain(self):
        for name in self.help:
            with self.subTest(name):
                self.assertEqual(run("groff", "-man", "-Tutf8", "-ww", "-z", self.folder / f"{name}.1").stderr, "")

    def test_name_synopsis_and_exit_status(self):
        purposes = set()
        for name, said in self.help.items():
            with self.subTest(name):
                text = self.text(name)
                title, purpose = " ".join(text["NAME"].split()).split(" - ")
                self.assertEqual(title, name)
                self.assertRegex(purpose, r"^[a-z].{10,}[^.]$")
                purposes.add(purpose)
                self.assertEqual(squeezed(text["SYNOPSIS"]), squeezed(re.search(r"^Usage:(.*)", said, re.MULTILINE)[1]))
                codes = re.search(r"^Exit codes:((?:.|\n)*?)(?:\n\n|\Z)", said, re.MULTILINE)[1]
                self.assertTrue(squeezed(text["EXIT STATUS"]).startswith(squeezed(codes)), text["EXIT STATUS"])
        self.assertEqual(len(purposes), len(self.help))

    def test_every_option_stands_before_its_description(self):
        count = 0
        for name, said in self.help.items():
            options = OPTION.findall(said)
            count += len(options)
            with self.subTest(name):
                tags = re.findall(r"^\.TP\n(.*)\n(.*)", self.source(name).replace(r"\-", "-"), re.MULTILINE)
                described = [re.sub(r"\\f.", "", tag) for tag, description in tags if tag.startswith(r"\fB-") and description]
                self.assertEqual(options, [re.match(r"-[^\s,]+(?:, -[^\s,]+)*", tag)[0].replace(", ", ",") for tag in described])
                self.assertNotIn(".HP", self.source(name), "an option without a description")
                self.assertEqual(bool(options), "OPTIONS" in self.text(name))
        self.assertGreater(count, 200)

    def test_nothing_of_the_help_is_lost(self):
        for name, said in self.help.items():
            page = squeezed("".join(self.text(name).values()))
            for line in said.splitlines():
                for part in re.split(r"; (?=\w+ )", line) if line.startswith("Example") else [line]:
                    left = re.sub(r"^(?:Usage|Options|Exit codes|Examples?): ?|^ +or: |;$", "", part)
                    with self.subTest(f"{name}: {left}"):
                        self.assertTrue(squeezed(left) in page, "not on the page")


if __name__ == "__main__":
    BUILD, CMAKE = pathlib.Path(sys.argv.pop(1)).resolve(), sys.argv.pop(1)
    unittest.main()
