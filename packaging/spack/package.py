import os

from spack_repo.builtin.build_systems.cmake import CMakePackage

from spack.package import *


class DdpCpp(CMakePackage):
    """Data-parallel training in C++ on LibTorch, in five stages, tested and measured.

    Spack takes the archive from the folder that you are in or from a mirror. A clone makes it:
    git archive --prefix=ddp_cpp-0.2.0/ --output=ddp_cpp-0.2.0.tar.gz HEAD"""

    url = f"file://{os.getcwd()}/ddp_cpp-0.2.0.tar.gz"
    manual_download = True
    license("BSD-3-Clause")

    # No file can hold the checksum of an archive that it is part of: spack install --no-checksum.
    version("0.2.0")

    variant("shared", default=True, description="Build one shared library")
    variant("programs", default=True, description="Install the stages, bench and ddp-env")
    variant("mpi", default=True, description="Build the module for the MPI backend")
    variant("cuda", default=False, description="Build the module for NVIDIA GPUs")

    requires("platform=linux")
    conflicts("%gcc@:11")
    conflicts("%clang@:13")

    with default_args(type="build"):
        depends_on("c")
        depends_on("cxx")
        depends_on("cmake@3.25:")
        depends_on("cli11")
        depends_on("nlohmann-json")
        depends_on("xxhash")
        depends_on("benchmark", when="+programs")
    depends_on("py-torch@2.11:2.15+distributed+gloo")  # Gloo is off by default there
    depends_on("py-torch+cuda+nccl", when="+cuda")
    depends_on("fmt")
    depends_on("zlib-api")
    depends_on("mpi", when="+mpi")

    def cmake_args(self):
        return [
            self.define_from_variant("BUILD_SHARED_LIBS", "shared"),
            self.define_from_variant("DDP_PROGRAMS", "programs"),
            self.define_from_variant("DDP_MPI", "mpi"),
            self.define_from_variant("DDP_CUDA", "cuda"),
            self.define("DDP_PYTHON", False),
            self.define("DDP_WARNINGS_AS_ERRORS", False),
            self.define("BUILD_TESTING", False),
        ]

    def test_epoch(self):
        """one process trains for an epoch"""
        if self.spec.satisfies("~programs"):
            raise SkipTest("installed with ~programs")
        program = which(join_path(self.prefix.bin, "01_single_gpu"), required=True)
        assert "moved" in program("1", "1", output=str.split, error=str.split)
