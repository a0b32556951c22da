#!/usr/bin/env python3
"""The pages as a site (tools/site.sh): every page is there, every link and anchor in it leads somewhere, and it needs nothing of the network.

usage: site_test.py PYTHON, whose environment has what docs/site/requirements.txt names
"""

import html.parser
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from stage_diffs import pages  # noqa: E402

WITHOUT_END = {"area", "br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"}
LEFT_OUT = shutil.ignore_patterns(".*", "build", "build-*", "__pycache__", "corpus")


def site(root, folder):
    environment = {**os.environ, "PATH": f"{pathlib.Path(PYTHON).parent.absolute()}:{os.environ['PATH']}"}
    return subprocess.run([root / "tools/site.sh", folder], check=False, text=True, capture_output=True, timeout=240, env=environment)


class Page(html.parser.HTMLParser):
    """What a page has, and what it points to."""

    def __init__(self, path):
        super().__init__()
        self.ids, self.links, self.loaded, self.crossed, self.open = set(), [], [], [], []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids.add(given.get("id"))
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag in ("link", "use") and "href" in given and given.get("rel") != "canonical":
            self.loaded.append(given["href"])
        self.loaded += [given[name].split()[0] for name in ("src", "srcset") if given.get(name)]
        if tag not in WITHOUT_END:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in WITHOUT_END:
            self.open.pop()

    def handle_endtag(self, tag):
        if self.open and self.open[-1] == tag:
            self.open.pop()
        elif tag not in WITHOUT_END:
            self.crossed.append((tag, self.open[-3:], self.getpos()[0]))


class Site(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory(prefix="ddp-site-")
        cls.addClassCleanup(scratch.cleanup)
        cls.folder = pathlib.Path(scratch.name).resolve() / "site"
        result = site(ROOT, cls.folder)
        if result.returncode != 0:
            raise AssertionError(f"exit code {result.returncode}\n{result.stdout}{result.stderr}")
        cls.pages = {path: Page(path) for path in cls.folder.rglob("*.html")}

    def test_every_page_is_there(self):
        written = [page.relative_to(ROOT) for page in [*pages(), *ROOT.glob("docs/exercises/*.md")]]
        self.assertGreater(len(written), 40)
        first = self.pages[self.folder / "index.html"]
        for page in written:
            with self.subTest(str(page)):
                self.assertIn(self.folder / page.with_suffix(".html"), self.pages)
                self.assertIn("#" if str(page) == "README.md" else str(page.with_suffix(".html")), first.links, "not in the contents")

    def test_every_link_leads_somewhere(self):
        count = anchors = 0
        for path, page in self.pages.items():
            for link in page.links + page.loaded:
                url = urllib.parse.urlsplit(link)
                if url.scheme or link in ("#", ""):
                    continue
                target = (path.parent / urllib.parse.unquote(url.path)).resolve() if url.path else path
                count += 1
                with self.subTest(f"{path.relative_to(self.folder)}: {link}"):
                    self.assertTrue(target.is_file(), "no such file")
                    if url.fragment and target in self.pages:
                        anchors += 1
                        self.assertIn(urllib.parse.unquote(url.fragment), self.pages[target].ids, "no such anchor")
        self.assertGreater(count, 2000)
        self.assertGreater(anchors, 400)

    def test_a_link_to_a_source_shows_it(self):
        source = ROOT / "03_ddp_spawn/by_hand.cpp"
        shown = (self.folder / "source/03_ddp_spawn/by_hand.cpp.html").read_text()
        block = re.search(r"<pre>(.*?)</pre>", shown, re.DOTALL)[1]
        self.assertEqual(html.unescape(re.sub(r"<[^>]+>", "", block)).strip(), source.read_text().strip())
        self.assertIn("source/03_ddp_spawn/by_hand.cpp.html", self.pages[self.folder / "index.html"].links)

    def test_a_picture_is_that_of_the_theme(self):
        first = (self.folder / "index.html").read_text()
        for theme in "light", "dark":
            self.assertRegex(first, rf'<img [^>]*class="only-{theme}[^>]*src="_images/stages_{theme}.svg"')
        for path in self.pages:
            self.assertNotIn("<picture>", path.read_text(), path)

    def test_folds_and_sections_do_not_cross(self):
        folds = 0
        for path, page in self.pages.items():
            folds += path.read_text().count("<details>")
            self.assertEqual(page.crossed, [], path.relative_to(self.folder))
        self.assertGreater(folds, 5)

    def test_what_a_page_loads_is_there_and_not_on_the_network(self):
        for path, page in self.pages.items():
            for link in page.loaded:
                url = urllib.parse.urlsplit(link)
                self.assertFalse(url.netloc, f"{path.relative_to(self.folder)} loads {link}")
                self.assertTrue(url.scheme == "data" or (path.parent / urllib.parse.unquote(url.path)).exists(),
                                f"{path.relative_to(self.folder)} loads {link}, which is not there")
        sheets = list(self.folder.rglob("*.css"))
        self.assertGreater(len(sheets), 3)
        for path in sheets:
            self.assertNotRegex(path.read_text(), r"@import|url\(['\"]?(?:https?:)?//", path)

    def test_a_wrong_page_is_named(self):
        with tempfile.TemporaryDirectory(prefix="ddp-site-") as scratch:
            copy = pathlib.Path(scratch).resolve() / "copy"
            shutil.copytree(ROOT, copy, ignore=LEFT_OUT)
            (copy / "docs/lost.md").write_text("# In no list\n")
            (copy / "docs/exercises/99_new.md").write_text("# 99 New\n\n[gone](../gone.md) [source](../../common/gone.hpp) [slurm](../../slurm)\n"
                                                           "[anchor](../bench.md#gone) ![picture](gone.svg)\n")
            result = site(copy, copy / "build/site")
            self.assertEqual(result.returncode, 1, result.stderr)
            for page, said in (("docs/lost.md", "isn't included in any toctree"), ("docs/exercises/99_new.md", "../gone.md"),
                               ("docs/exercises/99_new.md", "common/gone.hpp"), ("docs/exercises/99_new.md", "'docs/bench': 'gone'"),
                               ("docs/exercises/99_new.md", "gone.svg")):
                self.assertRegex(result.stderr, rf"(?m)^.*{re.escape(page)}.*{re.escape(said)}")
            self.assertEqual(len(re.findall("WARNING", result.stderr)), 5, result.stderr)
            self.assertIn("05_multinode.sh.html", (copy / "build/site/source/slurm.html").read_text())


if __name__ == "__main__":
    PYTHON = sys.argv.pop(1)
    unittest.main()
