#!/usr/bin/env python3
"""packaging/: EasyBuild checks and dry-runs its recipe, without a modules tool. Versions, options and dependencies of both recipes are CMake's.

usage: recipes_test.py [TEST...], by a Python with EasyBuild
"""

import ast
import pathlib
import re
import sys
import unittest

from easybuild.framework.easyconfig.parser import EasyConfigParser

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support.scratch import ROOT, Scratch  # noqa: E402

EASYCONFIGS = pathlib.Path(sys.prefix, "easybuild/easyconfigs")
CMAKE_FILES = {*ROOT.glob("CMakeLists.txt"), *ROOT.glob("*/CMakeLists.txt"), *ROOT.glob("cmake/*")} - {ROOT / "tests/CMakeLists.txt"}
CMAKE = re.sub("#.*", "", "\n".join(path.read_text() for path in CMAKE_FILES))
VERSION = re.search(r"project\(ddp_cpp VERSION (\S+)", CMAKE)[1]
# What CMake finds, in Spack and in EasyBuild. Empty: something else there brings it.
PACKAGES = {"LibTorch": ("py-torch", "PyTorch"), "CLI11": ("cli11", "CLI11"), "nlohmann_json": ("nlohmann-json", "nlohmann_json"),
            "fmt": ("fmt", "fmt"), "ZLIB": ("zlib-api", "zlib"), "benchmark": ("benchmark", "googlebenchmark"),
            "MPI": ("mpi", ""), "Python": ("", "Python"), "Threads": ("", "")}
TOOLS = {"c", "cxx", "cmake", "xxhash"}, {"CMake", "xxHash"}  # without find_package()


class Recipes(Scratch):
    def setUp(self):
        super().setUp()
        self.eb_file, = (ROOT / "packaging/easybuild").glob("*.eb")
        self.eb = EasyConfigParser(str(self.eb_file)).get_config_dict()
        self.toolchain = "{name}-{version}".format(**self.eb["toolchain"])
        self.torch = dict(self.eb["dependencies"])["PyTorch"]
        self.spack_text = (ROOT / "packaging/spack/package.py").read_text()
        tree = ast.parse(self.spack_text)
        compile(tree, "package.py", "exec")
        self.calls = {}  # texts among the arguments, by function
        for call in ast.walk(tree):
            if isinstance(call, ast.Call):
                texts = [argument.value for argument in call.args if isinstance(argument, ast.Constant)]
                self.calls.setdefault(getattr(call.func, "id", None) or call.func.attr, []).append(texts)

    def run_eb(self, *arguments):
        # --fetch is EasyBuild's mode without a modules tool; --dry-run and --check-contrib end before anything is fetched.
        return self.run_here(sys.executable, "-m", "easybuild.main", "--fetch", f"--prefix={self.folder}", f"--robot={self.folder}:{EASYCONFIGS}",
                             *arguments, self.eb_file, TMPDIR=str(self.folder), EASYBUILD_ALLOW_USE_AS_ROOT_AND_ACCEPT_CONSEQUENCES="1")

    def test_easybuild_finds_all_dependencies_but_pytorch_which_a_site_has(self):
        missing = self.run_eb("--dry-run")
        self.assertNotEqual(missing.returncode, 0)
        self.assertRegex(missing.stderr, rf"(?m)Missing dependencies: PyTorch/{self.torch}-{self.toolchain} \([^()]+\)$")
        *_, old = EASYCONFIGS.glob(f"p/PyTorch/PyTorch-*-{self.toolchain}.eb")
        self.write(f"PyTorch-{self.torch}-{self.toolchain}.eb", re.sub("(?m)^version = .*", f"version = '{self.torch}'", old.read_text()))
        found = self.run_eb("--dry-run")
        self.assertEqual(found.returncode, 0, found.stderr)
        self.assertEqual(re.findall(r"^ \* \[ \] .*\(module: (.*)\)$", found.stdout, re.MULTILINE)[-2:],
                         [f"PyTorch/{self.torch}-{self.toolchain}", f"ddp_cpp/{VERSION}-{self.toolchain}"])

    def test_easybuild_accepts_the_style(self):
        checked = self.run_eb("--check-contrib")
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)

    def test_versions(self):
        self.assertEqual((self.eb["version"], self.eb_file.name), (VERSION, f"ddp_cpp-{VERSION}-{self.toolchain}.eb"))
        self.assertEqual(set(re.findall(r"\b\d+\.\d+\.\d+\b", self.spack_text)), {VERSION})
        self.assertEqual(set(re.findall(r"ddp_cpp-([\d.]+\d)", (ROOT / "docs/guides/build.md").read_text())), {VERSION})
        minimum = re.search(r"find_package\((?:Lib)?Torch (\d+\.\d+)", CMAKE)[1]
        self.assertTrue(self.torch.startswith(minimum + "."), self.torch)
        self.assertIn(f"py-torch@{minimum}:", self.spack_text)

    def test_options(self):
        options = set(re.findall(r"-D(\w+)=", self.eb["configopts"])) - {"CMAKE_PREFIX_PATH"} | {"BUILD_SHARED_LIBS"}
        self.assertIn("build_shared_libs", self.eb)
        self.assertEqual({texts[0] for texts in self.calls["define"] + self.calls["define_from_variant"]}, options)
        self.assertEqual({option for option in options if not re.search(rf"\b{option}\b", CMAKE)}, set())
        variants = {texts[0] for texts in self.calls["variant"]}
        self.assertEqual(variants, {texts[1] for texts in self.calls["define_from_variant"]})
        self.assertLessEqual(set(re.findall(r'(?:when=|satisfies\()"[+~](\w+)"', self.spack_text)), variants)

    def test_dependencies(self):
        self.assertEqual(set(re.findall(r"find_(?:package|dependency)\((\w+)", CMAKE)), set(PACKAGES))
        spack, easybuild = (set(names) - {""} for names in zip(*PACKAGES.values()))
        self.assertEqual({re.match(r"[\w-]+", texts[0])[0] for texts in self.calls["depends_on"]}, spack | TOOLS[0])
        self.assertEqual({name for name, _ in self.eb["builddependencies"] + self.eb["dependencies"]}, easybuild | TOOLS[1])


if __name__ == "__main__":
    unittest.main()
