# SPDX-License-Identifier: Apache-2.0
"""How Sphinx makes the site: `make docs`. The reference is what help() says."""

import re
from importlib.metadata import version as version_of

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
html_show_copyright = html_show_sphinx = html_copy_source = False
copybutton_exclude = ".linenos, .gp, .go"
copybutton_prompt_text, copybutton_prompt_is_regexp = r">>> |\.\.\. |\$ ", True


def name_files(app, docname, source):
    """A link to a file of the repository that is no page of the site becomes its path."""
    if "/" not in docname:
        source[0] = re.sub(r"\[([^]]+)\]\(\.\./([^)#]+)(#[^)]*)?\)", path_of, source[0])


def path_of(link):
    text, path = link[1], link[2]
    return f"`{path}`" if path.endswith(text.strip("`")) else f"{text} (`{path}`)"


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
    app.connect("source-read", name_files)
    app.connect("autodoc-skip-member", leave_out)
    app.connect("autodoc-process-docstring", show_code, priority=600)  # after numpydoc
