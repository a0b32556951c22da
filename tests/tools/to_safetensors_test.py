#!/usr/bin/env python3
"""tools/to_safetensors: images and a table of the same samples train a stage to the same weights, and whatever is wrong with them is one line
that names it. And Python's library reads what common/data/tensor_file writes.

usage: tests/tools/to_safetensors_test.py BIN_DIR
"""

import base64
import contextlib
import errno
import gzip
import io
import os
import pathlib
import re
import runpy
import shutil
import subprocess
import sys
import unittest
import zlib
from unittest import mock

import numpy
import safetensors.numpy
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support.scratch import ROOT, Scratch  # noqa: E402

TOOL = ROOT / "tools/to_safetensors"
sys.path.insert(0, str(TOOL.parent))
BIN_DIR = pathlib.Path(sys.argv.pop(1)).resolve()
PIXELS = numpy.random.default_rng(0).integers(0, 256, (40, 4, 5), "uint8")
LABELS = numpy.arange(40) * 3 // 40  # sorted, as the folders are


def table(rows, header="a,b,label"):
    return "\n".join([header, *rows]) + "\n"


def encoded(image, kind="PNG", **keywords):
    file = io.BytesIO()
    image.save(file, kind, **keywords)
    return file.getvalue()


class ToSafetensors(Scratch):
    def setUp(self):
        super().setUp()
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)

    def run_tool(self, line):
        """Runs the tool within this process, which has loaded its modules."""
        said, wrong, code = io.StringIO(), io.StringIO(), 0
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(wrong):
            sys.argv = [str(TOOL), *line.split()]
            try:
                runpy.run_path(str(TOOL), run_name="__main__")
            except SystemExit as stop:
                code = stop.code
        return subprocess.CompletedProcess(line, code, said.getvalue(), wrong.getvalue())

    def convert(self, line):
        done = self.run_tool(line)
        self.assertEqual((done.returncode, done.stderr), (0, ""), line)
        return safetensors.numpy.load_file(self.folder / "o.safetensors")

    def check_refused(self, line, *parts):
        done = self.run_tool(line)
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), done.stderr)
        for part in parts:
            self.assertIn(part, done.stderr)
        self.assertFalse((self.folder / "o.safetensors").exists())

    def digest(self, dataset):
        done = self.run_here(BIN_DIR / "01_single_gpu", "3", "9", "--quiet", "--hidden", "8", "--dataset", dataset)
        self.assertEqual(done.returncode, 0, done.stderr)
        return re.search("digest ([0-9a-f]{16})", done.stdout)[1]

    def test_every_source_is_the_same_samples(self):
        for number, (pixels, label) in enumerate(zip(PIXELS, LABELS)):
            self.write(f"photos/class {label}/{number:03}.png", encoded(Image.fromarray(pixels)))
        self.write("photos/.hidden", "")
        rows = [",".join(map(repr, [*(pixels.flatten() / numpy.float32(255)).tolist(), int(label)]))
                for pixels, label in zip(PIXELS, LABELS)]
        names = ",".join(f'"p{i}"' for i in range(20)) + ", Label"
        self.write("t.csv", "\ufeff" + table(rows, names).replace("\n", "\r\n"))
        self.write("packed.csv.gz", gzip.compress(table(rows, names).encode()))
        digests = set()
        for source in "photos", "t.csv", "packed.csv.gz":
            written = self.convert(f"{source} o.safetensors")
            numpy.testing.assert_array_equal(written["labels"], LABELS)
            self.assertEqual((written["labels"].dtype, len(written)), (numpy.int64, 2))
            if source == "photos":
                numpy.testing.assert_array_equal(written["features"], PIXELS)
            digests.add(self.digest("o.safetensors"))
        self.assertEqual(len(digests), 1, digests)
        features = written["features"]
        self.write("test.csv", table(rows[30:], names))
        written = self.convert("t.csv o.safetensors --test test.csv")
        for name, expected in {"features": features, "labels": LABELS, "test_features": features[30:], "test_labels": LABELS[30:]}.items():
            numpy.testing.assert_array_equal(written[name], expected)
        self.assertNotIn(self.digest("o.safetensors"), digests)  # no sample is held out
        os.rename("o.safetensors", b"donn\xe9es.safetensors")  # a name in Latin-1
        for more in ["--metrics", "m"], ["--resume", "auto"]:
            subprocess.run([BIN_DIR / "01_single_gpu", "2", "1", "--quiet", "--dataset", b"donn\xe9es.safetensors", *more], cwd=self.folder, check=True)

    def test_the_library_reads_files_of_the_stages(self):
        subprocess.run([BIN_DIR.parent / "tests/data_test", "[.safetensors]"], cwd=self.folder, check=True, stdout=subprocess.DEVNULL)
        path = self.folder / "written.safetensors"
        self.assertEqual(path.read_bytes()[0] % 8, 0)  # the header's size, after which the data begins
        tensors = load_file(path)
        self.assertEqual((tensors.pop("scalar").item(), tensors.pop("none").shape), (7, (0, 3)))
        self.assertEqual(set(tensors), {"w", "layer.0.weight", 'a "quote"', "back\\n", "new\nline", "\u00e9\u2713", "", "__metadata"})
        self.assertEqual(len({tensor.dtype for tensor in tensors.values()}), 8, tensors)
        for name, tensor in tensors.items():
            self.assertTrue(torch.equal(tensor, torch.arange(6).reshape(2, 3).to(tensor.dtype)), (name, tensor))
        with safe_open(path, framework="pt") as opened:
            self.assertEqual(opened.metadata()['"key"\n'], "\u00e9")

    def test_images_are_what_a_viewer_shows(self):
        gray = Image.fromarray(PIXELS[0])
        sideways = Image.Exif()
        sideways[0x0112] = 6  # to be turned clockwise
        self.write("f/a/1.png", encoded(gray.transpose(Image.Transpose.ROTATE_90), exif=sideways))
        clear = gray.convert("LA")
        clear.putpixel((0, 0), (200, 0))
        self.write("f/b/1.png", encoded(clear))
        features = self.convert("f o.safetensors")["features"]
        numpy.testing.assert_array_equal(features[0], PIXELS[0])
        self.assertEqual(features[1, 0, 0], 0)
        numpy.testing.assert_array_equal(features[1].flatten()[1:], PIXELS[0].flatten()[1:])
        for content, *shape in (b"P3 1 1 255 0 9 255", 1, 1, 3), (encoded(gray.convert("1")), 4, 5), (encoded(gray.convert("RGBA")), 4, 5, 3):
            self.write("m/a/1.png", content)
            self.assertEqual(self.convert("m o.safetensors")["features"].shape, (1, *shape))
        # A color that is transparent is black, whether it is a palette's or all pixels' own; a phone's photo has more pictures behind it.
        for mode in "P", "RGB", "L":
            image = Image.fromarray(numpy.full((2, 2), 200, "uint8")).convert(mode)
            image.putpixel((1, 0), 7 if mode != "RGB" else (7, 7, 7))
            self.write("t/a/1.png", encoded(image, transparency=image.getpixel((0, 0))))
            shown = self.convert("t o.safetensors")["features"][0].reshape(2, 2, -1)[..., 0]
            self.assertEqual((shown[0, 0], shown[1, 1], shown[0, 1] > 0), (0, 0, True), mode)
        photo = Image.merge("RGB", [gray] * 3)
        self.write("p/a/1.jpg", encoded(photo.resize((8, 16)), "MPO", save_all=True, append_images=[photo, photo], exif=sideways))
        self.assertEqual(self.convert("p o.safetensors")["features"].shape, (1, 8, 16, 3))

    def test_digits_that_float32_lacks_are_noted(self):
        for rows, lost in [
            ([f"{i},{1700000001 + i},{i % 2}" for i in range(40)], "b"), ([f"{i},{i},{1700000001.5 + i}" for i in range(40)], "label"),
            (["16777216,1,0", "16777217,-1,1"], "a"), (["1e-46,0.1,0", "2e-46,0.10000000001,1"], "a, b"), (["-3e38,1,0", "3e38,2,1"], ""),
            (["0.1,1700000000,0", "0.1,1700000000,1"], ""), (["16777216,16777218,0", "16777220,1,1"], ""),
        ]:
            self.write("t.csv", table(rows))
            done = self.run_tool("t.csv o.safetensors")
            self.assertEqual(done.returncode, 0)
            self.assertRegex(done.stderr, rf"^to_safetensors: note: table t.csv: .* in the columns {lost}\n$" if lost else "^$", rows)

    def test_targets(self):
        for rows, arguments, dtype in [
            (["1,2,0 ", "3,4,1 "], "", "int64"), (["1,2,0.5", "3,4,1"], "", "float32"),
            (["1,2,1.0", "3,4,0.0"], "--labels classes", "int64"), (["1,2,1", "3,4,0"], "--labels values", "float32"),
            (["1,2,1", "0.5,4,1"], "--target a --labels values", "float32"),
        ]:
            self.write("t.csv", table(rows, "# a, b, label"))
            self.write("whole.csv", table(["1,2,3"]))  # has the kind of labels of the other table
            written = self.convert(f"t.csv o.safetensors --test whole.csv {arguments}")
            self.assertEqual((written["labels"].dtype, written["test_labels"].dtype), (dtype, dtype))
            target = 0 if "--target" in arguments else 2
            self.assertIn((rb'\"label\", \"a\"]', b"", rb'\"b\", \"label\"]')[target], pathlib.Path("o.safetensors").read_bytes())
            numpy.testing.assert_array_equal(written["labels"], [float(row.split(",")[target]) for row in rows])
            self.assertEqual(written["features"][1, 0], 4 if target == 0 else float(rows[1].split(",")[0]))

    def test_what_is_wrong_with_a_table_is_said(self):
        for content, *parts in [
            ("", "line 0: column 1 has no name"), ("Unnamed: 0,label\n0,1\n", "column 1 has no name"), ("a,b\n1,2\n", "line 1: got 0 columns label", "--target"),
            (",a,label\n0,1,2\n", "line 1: column 1 has no name", "index=False"), ("1,2\n3,4\n", "line 1: got the number 1"),
            ("a;label\n1;2\n", "line 1: got 1 column,"), ("label,Label\n1,2\n", "got 2 columns label"), (table([]), "line 1: got no line of numbers"),
            (table(["1,2,0", "1,2"]), "line 3: got 2 columns, expected 3"), (table(["1,2,0,9"]), "got 4 columns"), (table(["1,2,0", "", "1,x,0"]), "line 4: column 2 (b): got 'x'"),
            (table(["1,nan,0"]), "line 2: column 2 (b): got 'nan'"), (table(["1,,0"]), "line 2: column 2 (b): got ''"), (table(["1e39,1,0"]), "column 1 (a): got '1e39'"),
            (table(["1_0,1,0"]), "got '1_0'"), (table(["1,2,3", "1,2,-1"]), "line 3: column 3 (label): got -1, expected a class"),
            (table(["1,2,3", "1,2,0.5"]), "got 0.5", "--labels values"), (table(["1,2,1000000"]), "got 1000000, expected a class"), (table(["1,2,1.0"]), "got only whole numbers", "--labels"),
            (table(["1,2,3", "1,2,750000"]), "got whole numbers up to 750000 in 2 samples as label", "--labels"),
            (table(['1,"2,0']), "unexpected end of data"), (b"a,label\n\xff,1\n", "UTF-8"), (b"a,label\nx\x1b\n,1\n", "got 1 columns"),
            (gzip.compress(b"a,label\n" + b"1,2\n" * 99)[:-9], "t.csv cannot be read"), (gzip.compress(b"")[:10] + b"\xff" * 9, "t.csv cannot be read"), (b"\n\n\n", "line 3: column 1 has no name"),
            (table(["1,2,0", "1,2,2"]), "got whole numbers up to 2 in 2 samples"), (gzip.compress(b"a,label\n" + b"1" * (1 << 22)), "line 2: got a line of 4"),
            (gzip.compress(b'"a\n",' * 9), "line 1: got unexpected end"), (gzip.compress(b" " * (1 << 23)), "line 1: got a line of 4"),
        ]:
            self.write("t.csv", content)
            with self.subTest(content):
                self.check_refused("t.csv o.safetensors", "to_safetensors: error: ", "t.csv", *parts)

    def test_what_is_wrong_with_images_is_said(self):
        gray = Image.fromarray(PIXELS[0])
        two = {"save_all": True, "append_images": [gray.point(lambda value: 255 - value)]}
        whole, deep_png, deep_tiff, bitmap = encoded(gray), *(zlib.decompress(base64.b85decode(packed)) for packed in (  # 16 bits per channel, and per pixel
            'c-rd>@N?(olHy`uVBq!ia0vp^j36w)1SAhU@1F~#xIJAQLn`JZConKGFt9T)ZfaZe1t`qm>FVdQ&MBb@0HrDpo&',
            'c-r&y)MDUZU;tr8W(Gze3yhK2Oh7g>kj?{QW+ZVoD4Pk01sPeu>=Garg^Gjph(pEM7$86Z3?Tpjvv~qy', 'c-nLF4Pt-*Cm_}UVkRhNWDsCr2GRlySilbkh6n5n4Dwi{0G|W{as'))
        self.write("f/a/1.png", whole)
        for content, part in [
            (b"", "cannot identify"), (whole[:-30], ""), (encoded(gray.resize((9, 9))), "(9, 9), expected (4, 5)"), (encoded(gray.convert("RGB")), "(4, 5, 3)"),
            (encoded(gray.convert("I;16")), "mode I;16"), (encoded(gray.convert("F"), "TIFF"), "mode F"),
            *((encoded(gray, kind, **two), "2 frames, expected one: take one frame") for kind in ("PNG", "GIF", "WEBP", "TIFF")),
            (deep_png, "mode RGB of 16 bits"), (deep_tiff, "mode RGB of 16 bits"), (b"P6 1 1 65535\n" + bytes(6), "mode RGB of 16 bits"),
            (b"P3 1 1 256\n256 0 1\n", "mode RGB of 16 bits"), (bitmap, "(2, 2, 3), expected"), (deep_tiff[:90], ""),
            *((encoded(gray, kind), "cannot identify") for kind in ("EPS", "ICO", "JPEG2000")),
        ]:
            self.write("f/b/2.png", content)
            with self.subTest(content), mock.patch.object(subprocess, "Popen", side_effect=AssertionError("a program is started")):
                self.check_refused("f o.safetensors", f"image f/b/2.png: got {part}")
        self.write("f/b/2.png", whole)
        for error in IndexError("a"), MemoryError(), RecursionError("c"), subprocess.CalledProcessError(1, "d"):
            with mock.patch.object(Image.Image, "convert", side_effect=error):
                self.check_refused("f o.safetensors", "image f/a/1.png: got ")
        with mock.patch.object(Image, "MAX_IMAGE_PIXELS", 15):
            self.check_refused("f o.safetensors", "image f/a/1.png: got Image size (20 pixels)")
        os.mkdir("f/c")
        self.check_refused("f o.safetensors", "f/c: got nothing in it, expected images of one class")
        self.write("f/b/more/x.png", whole)
        self.check_refused("f o.safetensors", "f/b/more: got a folder, expected in f/b only images of one class")
        self.write("f/labels.csv", "")
        self.check_refused("f o.safetensors", "f/labels.csv: got a file, expected in f only folders")

    def test_what_is_wrong_with_the_command_line_is_said(self):
        self.write("f/a/1.png", encoded(Image.fromarray(PIXELS[0])))
        self.write("low/a/1.png", encoded(Image.fromarray(PIXELS[0, 1:])))
        self.write("t.csv", table(["1,2,0"]))
        self.write("values.csv", table(["1,2,0.5"]))
        self.write("turned.csv", table(["1,2,0"], "b,a,label"))
        for line, *parts in [
            ("no o.safetensors", "no cannot be read"), ("t.csv t.csv o.safetensors", "unrecognized arguments"),
            ("f o.safetensors --test low", "--test low: got samples of another size"),
            ("t.csv o.safetensors --test values.csv", "table values.csv, line 2: column 3 (label): got 0.5, expected a class"),
            ("t.csv o.safetensors --test turned.csv", "--test turned.csv: got"),
            ("$HOME/t.csv o.safetensors", "SOURCE: got \"$HOME/t.csv\", expected a path of this machine"),
            ("t.csv o.bin", "got o.bin as the last name"), ("t.csv", "required: OUT"),
        ]:
            with self.subTest(line):
                self.check_refused(line, *parts)
        done = self.run_tool("f no/such/o.safetensors")
        self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
        # As a command, with any Python first in PATH; other users can read the file.
        done = self.run_here(TOOL, "f", "o.safetensors", options={"umask": 0o022})
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(done.stdout, "o.safetensors: 1 samples of 4 x 5 uint8, classes 0 to 0; none held out: a stage does so with a fifth\n")
        self.assertEqual((self.folder / "o.safetensors").stat().st_mode & 0o777, 0o644)
        self.write("two.csv", table(["1,2,0", "1,2,1"]))
        self.assertIn(": 1 samples of 2 float32, classes 0 to 1; 2 held out\n", self.run_tool("t.csv o.safetensors --test two.csv").stdout)
        for code in errno.EPERM, errno.EINVAL, errno.ENOTSUP, errno.ENOSYS:  # file systems without modes
            with mock.patch.object(os, "chmod", side_effect=OSError(code, "no modes here")):
                self.convert("f o.safetensors")

    def test_a_terminal_that_lacks_a_character_or_has_gone_changes_nothing(self):
        self.write("t.csv", table(["1,2,0"]))
        for encoding, name, shown in [("ascii", "terminal.safetensors", None), ("ascii", "\xfc.safetensors", rb"\xfc"), ("latin-1", "\u5b57.safetensors", rb"\u5b57"),
                                      ("utf-8", "\xe9.safetensors", "\xe9".encode()), ("ascii", b"\xff.safetensors", rb"\udcff"), ("ascii", "gone.safetensors", None)]:
            reader, writer = os.openpty() if name == "terminal.safetensors" else os.pipe()
            if shown is None:
                os.close(reader)
            done = subprocess.run([sys.executable, TOOL, "t.csv", name], stdout=writer, stderr=subprocess.PIPE, env={**os.environ, "PYTHONIOENCODING": encoding})
            os.close(writer)
            self.assertEqual((done.returncode, done.stderr, (self.folder / os.fsdecode(name)).exists()), (0, b"", True), name)
            if shown is not None:
                with open(reader, "rb") as said:
                    self.assertTrue(said.read().startswith(shown), name)
        for words, code, lines in [("t.csv o.safetensors >&-", 0, 0), ("no o.safetensors 2>&-", 2, 0), ("no o.safetensors 2>/dev/full", 2, 0),
                                   ("t.csv o.safetensors >&- 2>&- <&-", 0, 0), ("t.csv o.safetensors >/dev/full", 1, 1), ("t.csv o.safetensors >/dev/full 2>&1", 1, 0),
                                   ("<(cat t.csv) o.safetensors", 0, 0), ("<(gzip -c t.csv) o.safetensors", 0, 0)]:
            done = self.run_here("bash", "-c", f"exec {TOOL} {words}", PYTHONSAFEPATH="1")
            self.assertEqual((done.returncode, done.stderr.count("\n")), (code, lines), (words, done.stderr))

    def test_packages_of_another_python_do_not_matter(self):
        self.write("t.csv", table(["1,2,0"]))
        for wrong in "raise AttributeError('boom')", "import boom", "boom = (", "raise ImportError('long\\ntext') from OSError('boom')":
            self.write("site/numpy.py", wrong)
            for file in TOOL, TOOL.parent / "command_line.py":
                self.write(f"tools/{file.name}", file.read_text())
            def run_copy():
                return self.run_here(sys.executable, "tools/to_safetensors", "t.csv", "o.safetensors", PYTHONPATH=f"{self.folder}/site")

            done = run_copy()
            self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)
            self.assertRegex(done.stderr, r": numpy: got (.*boom.*|'\(' was never closed.*), expected the packages of requirements.txt")
            self.script(".venv/bin/python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
            self.assertEqual(run_copy().returncode, 0, wrong)
            shutil.rmtree(".venv")


if __name__ == "__main__":
    unittest.main(verbosity=2)
