# SPDX-License-Identifier: Apache-2.0
"""How Sphinx makes the site: `make docs`. The reference is what help() says."""

import re
import tomllib
from functools import partial
from importlib.metadata import version as version_of
from pathlib import Path

ROOT = Path(__file__).parent.parent
HOME = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]

project = "pinning"
version = release = version_of("pinning")
extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc", "sphinx_copybutton"]

default_role = "py:obj"
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

autodoc_default_options = {
    "members": True,
    "member-order": "groupwise",
    "inherited-members": "Exception,tuple,Enum,ndarray",
}
autodoc_mock_imports = ["cuda", "cupy", "distributed", "nixl", "numba", "ray", "torch"]
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
maximum_signature_line_length = 80
numpydoc_show_class_members = False

html_theme = "furo"
html_title = f"pinning {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_copyright = html_show_sphinx = html_copy_source = False
copybutton_exclude = ".linenos, .gp, .go"
copybutton_prompt_text, copybutton_prompt_is_regexp = r">>> |\.\.\. |\$ ", True


def link_files(app, docname, source):
    """A link to a file of the repository leads to its home or, while that is a placeholder, to a copy in the site."""
    up = "../" * (docname.count("/") + 1)
    source[0] = re.sub(rf"\[([^]]+)\]\({re.escape(up)}(?!\.\./)([^)#]+)(#[^)]*)?\)", partial(link_to, up), source[0])


def link_to(up, link):
    text, path, place = link[1], link[2], link[3] or ""
    if ".invalid/" not in HOME:
        return f"[{text}]({HOME}/blob/main/{path}{place})"
    if (ROOT / path).is_dir():
        return f"{text} (`{path}`)"
    return f"{{download}}`{text.replace('`', '')} <{up}{path}>`"


def show_code(app, what, name, thing, options, lines):
    """The indented blocks of a module's text are code."""
    if what == "module":
        for i in range(len(lines) - 1, 0, -1):
            if lines[i].startswith("    ") and not lines[i - 1]:
                lines[i:i] = ["::", ""]


def leave_out(app, what, name, thing, skip, options):
    """What Python's own classes have, and a tuple's fields, whose text stands with the class."""
    owner = getattr(thing, "__objclass__", None)
    if getattr(owner, "__module__", None) == "builtins" or type(thing).__name__ == "_tuplegetter":
        return True
    return None


def leave_out_signature(app, what, name, thing, options, signature, returns):
    """The signature of a class that is not called, such as a protocol."""
    return ("", returns) if signature == "(*args, **kwargs)" else None


def setup(app):
    app.connect("autodoc-process-signature", leave_out_signature)
    app.connect("source-read", link_files)
    app.connect("autodoc-skip-member", leave_out)
    app.connect("autodoc-process-docstring", show_code, priority=600)  # after numpydoc
