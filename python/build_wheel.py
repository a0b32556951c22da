"""Build backend of `pip install ./python`: CMake builds ddp_cpp for the torch of the Python that runs pip."""

import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    # -E: pip builds in an environment without torch, which it names in PYTHONPATH.
    said = subprocess.check_output([sys.executable, "-E", "-c", "import torch; print(torch.__version__, torch.__path__[0])"], text=True)
    torch_version, torch_folder = said.rstrip("\n").split(" ", 1)
    version = re.search(r"^project\(\w+ VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE)[1]
    python, platform = f"cp{sys.version_info[0]}{sys.version_info[1]}", re.sub("[-.]", "_", sysconfig.get_platform())
    tag, info = f"{python}-{python}-{platform}", f"ddp_cpp-{version}.dist-info"
    with tempfile.TemporaryDirectory() as build:
        subprocess.check_call(["cmake", "-G", "Ninja", "-S", ROOT, "-B", build, "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_TESTING=OFF", "-DDDP_PYTHON=ON",
                               f"-DDDP_TORCH_PYTHON={sys.executable}", f"-DLIBTORCH={torch_folder}"])
        subprocess.check_call(["cmake", "--build", build, "--target", "ddp_python"])
        with zipfile.ZipFile(pathlib.Path(wheel_directory, f"ddp_cpp-{version}-{tag}.whl"), "w", zipfile.ZIP_DEFLATED) as wheel:
            for file in pathlib.Path(build, "python/ddp_cpp").iterdir():
                wheel.write(file, f"ddp_cpp/{file.name}")
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: ddp_cpp\nVersion: {version}\nRequires-Dist: torch=={torch_version}\n")
            wheel.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: build_wheel\nRoot-Is-Purelib: false\nTag: {tag}\n")
            wheel.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in [*wheel.namelist(), f"{info}/RECORD"]))
    return pathlib.Path(wheel.filename).name
