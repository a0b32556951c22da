#!/usr/bin/env python3
"""The library as others build it: in their project, shared, against a LibTorch of theirs, and linked by CMake, by pkg-config and beside it.

usage: install_test.py BUILD_DIR CMAKE LIBTORCH
LIBTORCH is made up into a prefix as a computing centre has it: without NVIDIA's wheels, without fmt, with a TorchConfig.cmake that fails.
"""

import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUTER = f"""project(outer LANGUAGES C CXX)
find_package(CLI11 REQUIRED)
set(CMAKE_DISABLE_FIND_PACKAGE_CLI11 ON)
add_subdirectory("{ROOT}" ddp_cpp)
add_executable(your_model "${{OBJECT}}" include.cpp)
target_link_libraries(your_model PRIVATE ddp_cpp::parallel ddp_cpp::compiled)
"""
LINKED = """project(linked LANGUAGES C CXX)
find_package(ddp_cpp 0.2 REQUIRED)
add_executable(linked "${OBJECT}" include.cpp)
target_link_libraries(linked PRIVATE ddp_cpp::parallel)
"""


def run(*command, cwd=None, **variables):
    result = subprocess.run(list(map(str, command)), check=False, text=True, capture_output=True, cwd=cwd, env=os.environ | variables)
    if result.returncode != 0:
        raise AssertionError(f"{command}: exit code {result.returncode}\n{result.stdout}\n{result.stderr}")
    return result.stdout


class Installation(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        build_dir, cls.cmake, libtorch = map(pathlib.Path, ARGUMENTS)
        # Always the same folder, so that ccache finds earlier objects.
        cls.folder = build_dir.resolve() / "tests/installed"
        shutil.rmtree(cls.folder, ignore_errors=True)
        cls.torch, cls.prefix = cls.folder / "torch", cls.folder / "prefix"
        for file in {*(libtorch / "include").iterdir(), *(libtorch / "lib").glob("*.so*")} - {libtorch / "include/fmt"}:
            link = cls.torch / file.parent.name / file.name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(file.resolve())
        config = cls.write("torch/share/cmake/Torch/TorchConfig.cmake", 'message(FATAL_ERROR "found no CUDA toolkit")\n')
        for name, text in ("outer", OUTER), ("linked", LINKED):
            cls.write(f"{name}/CMakeLists.txt", "cmake_minimum_required(VERSION 3.25)\n" + text)
            cls.write(f"{name}/include.cpp", "#include <ddp_cpp/launch/spawn.hpp>\n")
        cls.static = build_dir / "tests/outside"  # of your_model's test, which has compiled main.cpp
        cls.object = next(cls.static.resolve().rglob("main.cpp.o"))
        # The machines that run programs have CUDA's libraries, which LibTorch's own needs.
        cls.run_time = {"LD_LIBRARY_PATH": ":".join(map(str, libtorch.resolve().parent.glob("nvidia/*/lib")))}
        cls.configure("outer", "build", f"-DCMAKE_PREFIX_PATH={config.parents[1]}", "-DCMAKE_CXX_FLAGS=-O0",
                      f"-DCMAKE_INSTALL_PREFIX={cls.prefix}", f"-DCMAKE_INSTALL_LIBDIR={cls.prefix}/lib",
                      "-DBUILD_SHARED_LIBS=ON", "-DDDP_INSTALL=ON", "-DDDP_MPI=OFF", "-DDDP_CUDA=OFF")
        run(cls.cmake, "--build", cls.folder / "build")
        run(cls.cmake, "--install", cls.folder / "build")

    @classmethod
    def write(cls, name, text):
        (path := cls.folder / name).parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    @classmethod
    def configure(cls, source, build, *options, **variables):
        return run(cls.cmake, "-G", "Ninja", "-S", cls.folder / source, "-B", cls.folder / build, f"-DOBJECT={cls.object}", *options, **variables)

    def pkg_config(self, prefix, *words):
        return run("pkg-config", *words, "ddp_cpp", PKG_CONFIG_PATH=str(prefix / "lib/pkgconfig")).split()

    def test_your_model_links_by_each_way_and_trains_alike(self):
        programs = {"add_subdirectory": self.folder / "build/your_model", "find_package": self.folder / "link/linked"}
        self.configure("linked", "link", f"-DCMAKE_PREFIX_PATH={self.prefix}")
        run(self.cmake, "--build", self.folder / "link")
        self.assertNotIn("LIBTORCH", (self.folder / "link/CMakeCache.txt").read_text())
        for name, prefix in ("pkg-config", self.prefix), ("pkg-config static", self.static / "prefix"):
            programs[name] = self.folder / name
            run("c++", self.object, "-o", programs[name], *self.pkg_config(prefix, "--libs"))
        printed = {name: run(program, ROOT / "data/digits.safetensors", 1, **self.run_time) for name, program in programs.items()}
        for name, program in programs.items():
            with self.subTest(name):
                self.assertRegex(printed[name], r"accuracy 0\.[1-9]")
                self.assertEqual(printed[name], printed["find_package"])
                dynamic = run("readelf", "-d", program)
                self.assertEqual("[libddp_cpp.so.0]" in dynamic, "static" not in name)
                self.assertRegex(run("nm", program), "B ddp_mask_at_start")
        self.assertIn(str(self.prefix / "lib/libddp_cpp.so.0"), run("ldd", programs["find_package"], **self.run_time))
        self.assertIn("\nlibdir=${prefix}/lib\n", (self.prefix / "lib/pkgconfig/ddp_cpp.pc").read_text())
        self.assertIn("[$ORIGIN/../lib:", run("readelf", "-d", self.static / "prefix/bin/01_single_gpu"))

    def test_the_shared_library_has_only_its_own_symbols(self):
        library = self.prefix / "lib/libddp_cpp.so.0"
        mangled = self.write("symbols", run("nm", "--dynamic", "--defined-only", library))
        symbols = [line.split(maxsplit=2)[2] for line in run("sh", "-c", f"c++filt --no-params <{mangled}").splitlines()]
        self.assertIn("ddp::spawn", symbols)
        declared = set(re.findall(r"\w+", "".join(path.read_text() for path in (self.prefix / "include").rglob("*.hpp"))))
        for symbol in symbols:
            name = re.match(r"(?:(?:typeinfo|typeinfo name|vtable) for )?ddp::((?:\w+::)*~?\w+)", symbol)
            self.assertTrue(name and declared.issuperset(re.findall(r"\w+", name[1])), symbol)

    def test_each_public_header_compiles_alone(self):
        include = self.prefix / "include"
        headers = {path.relative_to(include).as_posix(): path.read_text() for path in include.rglob("*.hpp")}
        # What another header includes first, compiles there.
        first = {found[1] for text in headers.values() if (found := re.search('#include "(ddp_cpp/[^"]+)', text))}
        flags = ["c++", "-std=c++20", *self.pkg_config(self.prefix, "--cflags")]
        # LibTorch's own headers, which the build has compiled, are all that a header may forget.
        commands = json.loads((self.folder / "build/compile_commands.json").read_text())
        command = next(command["command"] for command in commands if command["file"].endswith("torch_header.cpp"))
        compiled = [*shlex.split(re.sub(r".* (?=/\S*c\+\+ )| -o .*", "", command)), f"-I{include}"]

        def compiles(header):
            source = self.write(f"alone/{header.replace('/', '_')}.cpp", f"#include <{header}>\nint main() {{}}\n")
            run(*(flags if re.search("/(base|backends|samples)", header) else compiled), "-fsyntax-only", source, cwd=self.folder / "build")

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            list(pool.map(compiles, sorted(headers.keys() - first)))
        self.assertIn("ddp_cpp/parallel/distributed_data_parallel.hpp", headers)
        self.assertEqual([header for header in headers if re.search("shm|gloo|mpi/|nlohmann", header)], [])

    def test_kernels_compile_for_arm64(self):
        for source in [*ROOT.glob("common/backends/shm/*.cpp"), ROOT / "common/fused/kernels.cpp"]:
            run("aarch64-linux-gnu-g++", "-std=c++20", "-O1", f"-I{ROOT}", f"-isystem{self.folder}/build/ddp_cpp/common/fmt_only", "-c", source,
                "-o", self.folder / "arm64.o")

    def test_in_another_project_warnings_tests_and_installation_are_off(self):
        xxhash = self.write("xx/include/xxhash.h", "")
        self.configure("outer", "defaults", f"-DCMAKE_PREFIX_PATH={self.torch};{xxhash.parents[1]}", "-DDDP_PYTHON=OFF", CI="true")
        commands = json.loads((self.folder / "defaults/compile_commands.json").read_text())
        self.assertEqual([command["file"] for command in commands if re.search(r"-W(all|error)\b|/0\d_", command["command"])], [])
        self.assertFalse((self.folder / "defaults/ddp_cpp/tests").exists())
        self.assertNotIn("file(INSTALL", "".join(path.read_text() for path in (self.folder / "defaults").rglob("cmake_install.cmake")))
        self.assertIn(f"-isystem {xxhash.parent}", "".join(command["command"] for command in commands))
        for option, message in ("LIBTORCH=/none", 'got "/none"'), ("DDP_MPI=off", "DDP_MPI: got off, expected AUTO, ON or OFF"):
            with self.assertRaisesRegex(AssertionError, message):
                self.configure("outer", "defaults", f"-D{option}")


if __name__ == "__main__":
    ARGUMENTS = [sys.argv.pop(1) for _ in range(3)]
    unittest.main()
