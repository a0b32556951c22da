#!/usr/bin/env python3
"""A release: one version, what GitHub and reference managers read, and the files that CONTRIBUTING.md names for a new kind.

usage: release_test.py FOLDER        cffconvert is installed there once, because pip refuses it beside check-jsonschema
"""

import os
import pathlib
import re
import subprocess
import sys
import unittest

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
CFFCONVERT = pathlib.Path(sys.argv.pop(1)).absolute()
# Rows of CONTRIBUTING.md, and what stands in each file that such a thing needs.
KINDS = {"backend": "mpi", "launcher": "mpirun", "option": "bucket.mib", "optimizer": "adamw", "column": "peak_rss_mib", "variant": "accelerated"}


def text(path):
    return (ROOT / path).read_text()


class Release(unittest.TestCase):
    def passes(self, *command, **variables):
        done = subprocess.run([sys.executable, *command], cwd=ROOT, env=os.environ | variables, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_every_place_has_the_version_of_cmake(self):
        version = re.search(r"^project\(ddp_cpp VERSION (\S+)", text("CMakeLists.txt"), re.MULTILINE)[1]
        package, citation = (r"^find_package\(ddp_cpp (\S+) REQUIRED\)", version.rpartition(".")[0]), yaml.safe_load(text("CITATION.cff"))
        for path, pattern, expected in (
                ("CITATION.cff", r"^version: (.+)", version), ("CHANGELOG.md", "^## (.+)", f"{version} - {citation['date-released']}"),
                ("docs/your_model/CMakeLists.txt", *package), ("docs/guides/your_model.md", *package),
                *((path, r"^\s*version\W+([\d.]+)", version) for path in ROOT.glob("packaging/[es]*/*.*"))):
            self.assertEqual(re.search(pattern, text(path), re.MULTILINE)[1], expected, path)
        self.assertIn(f"(c) 2026, {citation['authors'][0]['name']}\n", text("LICENSE"))

    def test_files_have_the_schemas_of_their_readers(self):
        self.assertIn("\n      - run: .ci/run\n", text(".github/workflows/ci.yml"))
        for schema, folder in ("github-workflows", "workflows"), ("github-issue-forms", "ISSUE_TEMPLATE"):
            self.passes("-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *(ROOT / ".github" / folder).iterdir())
        if not CFFCONVERT.is_dir():
            new = CFFCONVERT.with_suffix(".new")
            self.passes("-m", "pip", "install", "--disable-pip-version-check", "--only-binary=:all:", "--no-deps", "--no-user", "--upgrade",
                        "--target", new, "cffconvert==2.0.0", "pykwalify==1.8.0")
            new.rename(CFFCONVERT)
        self.passes(CFFCONVERT / "bin/cffconvert", "--validate", PYTHONPATH=f"{CFFCONVERT}")

    def test_a_kind_stands_in_the_files_that_contributing_names(self):
        rows = re.findall(r"^\| (\w+) \|([^|]+)\|([^|]+)\|$", text("CONTRIBUTING.md"), re.MULTILINE)
        self.assertEqual([kind for kind, *_ in rows][1:], list(KINDS))  # after the heads
        for kind, always, sometimes in rows[1:]:
            for path in re.findall("`([^`]+)`", always + sometimes):
                named = not path.endswith("/") and re.search(KINDS[kind], text(path), re.IGNORECASE)
                self.assertTrue(named or (ROOT / path).exists() and (path in sometimes or path.endswith("/")), (kind, path))


if __name__ == "__main__":
    unittest.main()
