"""Sphinx's settings for the pages as a site, see tools/site.sh.

The pages are written for GitHub and read as they stand. What GitHub does and Sphinx does not is here: README.md comes first, a link to
a folder shows its README.md, a link to a source shows it, and a <picture> is the one of the theme.
"""

import pathlib
import re
import shutil

from docutils import nodes
from pygments import highlight, lexers
from pygments.formatters import HtmlFormatter
from pygments.util import ClassNotFound
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

ROOT = pathlib.Path(__file__).resolve().parents[2]

project = "Data-parallel training in C++"
html_title = project
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
root_doc = "README"
# Any other .md is a page, and has to be in contents.txt.
exclude_patterns = [".*", "build*", "docs/site"]
myst_heading_anchors = 6
myst_enable_extensions = ["html_image"]
smartquotes = False  # two dashes begin an option
html_theme = "furo"
html_static_path = ["style.css"]
html_css_files = ["style.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False

PICTURE = re.compile(r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="([^"]+)">\s*<img ([^>]*)src="([^"]+)"([^>]*)>\s*</picture>')
shown = set()  # sources and folders that a page links to


def read(app, docname, source):
    if docname == root_doc:
        source[0] += "\n" + (ROOT / "docs/site/contents.txt").read_text()
    # The reader chooses the theme on the page, which the browser's preference does not know.
    source[0] = PICTURE.sub(r'<img class="only-dark" \2src="\1"\4><img class="only-light" \2src="\3"\4>', source[0])


def is_text(path):
    try:
        return path.suffix != ".svg" and bool(path.read_text())
    except UnicodeDecodeError:
        return False


def files_of(folder):
    return [path for path in sorted(folder.iterdir()) if path.is_file() and is_text(path)]


class Links(SphinxTransform):
    """Of the links, those to what is no page."""

    default_priority = 5

    def apply(self):
        for link in list(self.document.findall(lambda node: isinstance(node, (addnodes.download_reference, addnodes.pending_xref)))):
            target, _, anchor = link["reftarget"].partition("#")
            path = pathlib.Path(self.env.relfn2path(target)[1]).resolve()
            if link.get("refdomain") or not target or not path.is_relative_to(ROOT):
                continue
            if (path / "README.md").exists():
                link.attributes.update(refdomain="doc", reftarget=str((path / "README").relative_to(ROOT)), reftargetid=anchor or None)
            elif path.is_dir() or path.is_file() and is_text(path):
                shown.update([path, *(files_of(path) if path.is_dir() else [])])
                uri = self.app.builder.get_relative_uri(self.env.docname, name_of(path))
                link.replace_self(nodes.reference("", "", *link.children, refuri=uri, internal=True))


def name_of(path):
    return f"source/{path.relative_to(ROOT)}"


def source_pages(app):
    """The name, context and template of each page that shows a source, or a folder."""
    for path in sorted(shown):
        title = str(path.relative_to(ROOT))
        if path.is_dir():
            title += "/"
            uri = app.builder.get_relative_uri
            items = [f'<li><a href="{uri(name_of(path), name_of(file))}">{file.name}</a></li>' for file in files_of(path)]
            body = f"<ul>{''.join(items)}</ul>"
        else:
            text = path.read_text()
            try:
                lexer = lexers.guess_lexer_for_filename(path.name, text)
            except ClassNotFound:
                lexer = lexers.TextLexer()
            body = f'<div class="highlight"><pre>{highlight(text, lexer, HtmlFormatter(nowrap=True))}</pre></div>'
        yield name_of(path), {"title": title, "body": f"<h1>{title}</h1>{body}"}, "page.html"


def first_page(app, error):
    if not error:
        shutil.copyfile(app.outdir / f"{root_doc}.html", app.outdir / "index.html")


def setup(app):
    app.connect("source-read", read)
    app.connect("html-collect-pages", source_pages)
    app.connect("build-finished", first_page)
    app.add_transform(Links)
