#!/usr/bin/env python3
"""The tools on machines that differ: variables of a user's shell, limits of control groups, a broken ccache; and the tool that breaks lines.

usage: tools_test.py CMAKE
"""

import os
import pathlib
import re
import shutil
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support.scratch import ROOT, Scratch  # noqa: E402

CMAKE = sys.argv.pop(1)


def functions(*names):  # of tools/setup.sh
    text = (ROOT / "tools/setup.sh").read_text()
    return "".join(re.search(rf"^{name}\(\) \{{([^\n]*\}}|.*?\n\}})\n", text, re.DOTALL | re.MULTILINE)[0] for name in names)


class Tools(Scratch):
    def run_script(self, *parts):
        """Runs parts of tools/setup.sh, after what it has of tools/installing.sh."""
        return self.run_here("bash", "-euo", "pipefail", "-c", "\n".join([f"program=setup; . {ROOT}/tools/installing.sh; say() {{ :; }}; log=$PWD/log", *parts]))

    def copy(self, name, folder="."):
        return self.script(f"{folder}/{name}", (ROOT / name).read_text())

    def test_compilers_fit_the_limits_of_control_groups(self):
        find_jobs = functions("find_jobs").replace("/sys/", "sys/").replace("/proc/", "proc/").replace("nproc", "echo 9")
        version2, version1 = "0::/a/b\n", "4:memory:/d\n1:cpu,cpuacct:/d\n0::/\n"
        for groups, files, jobs in [
            (version2, {}, 8), ("", {}, 8), (version2, {"a/b/memory.max": "max", "a/b/cpu.max": "max 100000"}, 8), (version2, {"a/b/memory.max": "6500000000"}, 3),
            (version2, {"a/memory.max": "4000000000"}, 2), (version2, {"memory.max": "1000"}, 1), (version2, {"a/cpu.max": "550000 100000", "a/b/cpu.max": "600000 100000"}, 5),
            (version2, {"unified/a/cpu.max": "50000 100000"}, 1), (version1, {"memory/d/memory.limit_in_bytes": "9223372036854771712"}, 8),
            (version1, {"memory/memory.limit_in_bytes": "8000000000"}, 4), (version1, {"cpu/d/cpu.cfs_quota_us": "-1", "cpu/d/cpu.cfs_period_us": "100000"}, 8),
            (version1, {"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3), (version1, {"memory/e/memory.limit_in_bytes": "1"}, 8),
        ]:
            shutil.rmtree(self.folder / "sys", ignore_errors=True)
            for name, text in {"proc/self/cgroup": groups, "proc/meminfo": "MemFree: 1 kB\nMemAvailable: 16000000 kB\n",
                               **{f"sys/fs/cgroup/{name}": f"{text}\n" for name, text in files.items()}}.items():
                self.write(name, text)
            done = self.run_script(find_jobs, "find_jobs")
            self.assertEqual((done.stdout, done.stderr), (f"{jobs}\n", ""), (groups, files))

    def test_cdpath_sends_no_script_elsewhere(self):
        (self.folder / "build").mkdir()
        self.copy("tools/installing.sh")
        for name, *words in ("tools/setup.sh", "bench"), ("bench/run.sh",), ("tests/run.sh",), ("tests/gpu.sh", "pack", "new"):
            self.copy(name)
            for path in ".", "..:.", f"{self.folder}":
                done = self.run_here(name, *words, CDPATH=path, LIBTORCH="/nowhere")
                self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), (name, done.stderr))
                self.assertRegex(done.stderr, f"found no bin/.* in {self.folder}/build|/nowhere is no LibTorch", name)
                shutil.rmtree(self.folder / "new", ignore_errors=True)
        for word, version in ("tests", ""), ("bench", "&"), ("bench", "-x"), ("bench", "2.9/.."), ("bench", "2.9 0"):
            done = self.run_here("tools/setup.sh", word, LIBTORCH="/nowhere", LIBTORCH_VERSION=version)
            self.assertRegex(f"{done.returncode} {done.stderr}", '^2 setup: (LIBTORCH_VERSION: got .*|got "tests"), expected .*\n$')
        self.script("tools/setup.sh", '#!/bin/sh\necho "$1"\nexit $CODE\n')
        self.script("build/bin/bench", '#!/bin/sh\necho "$@"\n')
        for code, printed in (0, "--json report.json --html report.html --cpu\n"), (1, ""):
            done = self.run_here("bench/run.sh", "--cpu", CODE=str(code))
            self.assertEqual((done.returncode, done.stdout, done.stderr), (code, printed, "bench\n"))

    def test_a_folder_of_other_files_is_no_venv(self):
        helpers = "find_python() { echo false; }; requirements=(r) venv_mb=0 stamp=s venv=$PWD/link\n" + functions("logged", "install_venv")
        (self.folder / "link").symlink_to("disk")
        for file, left in ("thesis", ["thesis"]), (".hidden", [".hidden"]), ("a/b", ["a"]), ("pyvenv.cfg", ["pyvenv.cfg"]), (None, []):
            (self.folder / "disk").mkdir()
            self.write(f"disk/{file}" if file else "else", "")
            self.write("disk/lib/torch" if left == ["pyvenv.cfg"] else "else", "")
            said = self.run_script(helpers, "install_venv").stderr
            self.assertEqual((os.listdir(self.folder / "disk"), "got a folder of other files" in said), (left, left not in (["pyvenv.cfg"], [])), said)
            shutil.rmtree(self.folder / "disk")
        self.assertIn("not enough disk space", self.run_script("mkdir disk", helpers, "venv_mb=1000000000", "install_venv").stderr)

    def test_a_venv_is_kept_brought_up_to_date_or_made_anew(self):
        """A failed installation never looks complete, and the one before it stays in use."""
        python = self.script("python", '#!/bin/sh\necho "$*" | grep -o "m venv\\|pip install\\|import torch" >>calls\ncase "$*" in\n'
                                       '*"-m venv"*) mkdir -p venv/bin && cp python venv/bin && touch venv/pyvenv.cfg ;; *$FAILS*) echo "no $FAILS"; exit 1 ;; esac\n')
        install = (f"find_python() {{ echo {python}; }}; requirements=(r) venv_mb=0 stamp=venv/stamp venv=$PWD/venv\n"
                   f"{functions('logged', 'wanted_stamp', 'install_venv')}export FAILS=none")
        anew, newer = "m venv pip install import torch", "pip install import torch"
        for wanted, before, code, calls in (
                ("1", ":", 0, anew), ("1", ":", 0, ""), ("2", "FAILS='pip install'", 1, "pip install"), ("1", ":", 0, ""), ("2", ":", 0, newer),
                ("3", "FAILS='import torch'", 1, newer), ("3", ":", 0, anew), ("3", "FAILS='import pip'", 0, anew), ("3", "sed -i s:venv:: venv/stamp", 0, anew)):
            done = self.run_script(install, f"echo {wanted} >r; >calls; {before}", "install_venv")
            self.assertEqual((done.returncode, " ".join((self.folder / "calls").read_text().split())), (code, calls), (wanted, before, done.stderr))
            self.assertEqual("\nno " in f"\n{done.stderr}", code == 1)

    def test_a_relative_libtorch_lies_where_setup_is_called(self):
        self.copy("tools/installing.sh", "checkout")
        script = self.copy("tools/setup.sh", "checkout")
        for name in "bin/dirname", "bin/flock", "bin/mkdir":
            self.script(name, f'#!/bin/sh\nexec {shutil.which(name[4:])} "$@"\n')
        for name, message in ("lib/libtorch_cpu.so", "setup: LIBTORCH=a is no LibTorch"), ("include/torch/x.h", "setup: no g++ and no apt-get here"):
            self.write(f"a/{name}", "")
            self.assertIn(message, self.run_here("/bin/bash", script, "bench", PATH=f"{self.folder}/bin", LIBTORCH="a").stderr)

    def test_a_ccache_that_fails_is_not_used(self):
        self.write("CMakeLists.txt", f"cmake_minimum_required(VERSION 3.25)\nproject(x LANGUAGES CXX)\ninclude({ROOT}/cmake/project.cmake)\n"
                                     'message("launcher: [${CMAKE_CXX_COMPILER_LAUNCHER}]")\n')
        self.write("conf", "max_size = a lot\n")
        self.script("bin/ccache", '#!/bin/sh\n[ -z "$BROKEN" ] || exit 7\nexec "$@"\n')
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        self.assertRegex(self.configure(PATH=path), r"launcher: \[.*/bin/ccache\]")
        for environment in {"PATH": path, "BROKEN": "1"}, {"CCACHE_DIR": "/dev/null/a"}, {"CCACHE_TEMPDIR": "/dev/null/a"}, {"CCACHE_CONFIGPATH": f"{self.folder}/conf"}, {"CCACHE_DIR": "/proc/1"}:
            shutil.rmtree(self.folder / "build")
            self.assertRegex(self.configure(**environment), r"(?s)ccache: not used, got .*launcher: \[\]", environment)

    def configure(self, **environment):
        done = self.run_here(CMAKE, "-S", ".", "-B", "build", "-DBUILD_TESTING=OFF", **environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout + done.stderr


if __name__ == "__main__":
    unittest.main()
