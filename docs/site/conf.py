"""Settings of the documentation site: Sphinx over the repository's own Markdown pages.

The pages are plain Markdown that reads well without the site. What the site adds (navigation, drawings, the
reference of the Python API) is made by ``pages.py`` beside this file. Nothing is fetched when a page is viewed.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from ftcore import __version__  # noqa: E402

project = "ftcore"
author = "The ftcore authors"
project_copyright = "The ftcore authors"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "pages"]

root_doc = "README"
include_patterns = [
    "*.md",
    "docs/*.md",
    "docs/**/*.md",
    "integrations/*/README.md",
    "tests/golden/README.md",
    "benchmarks/RESULTS.md",
]
exclude_patterns = ["**/.*", "build", "dist", "examples", "ftcore", "docs/site"]

myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
suppress_warnings = ["myst.header"]  # release notes and help texts skip levels of headings

smartquotes = False  # a flag in plain text keeps its two hyphens
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
maximum_signature_line_length = 80
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"
napoleon_numpy_docstring = False
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"ftcore {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_domain_indices = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "friendly"
pygments_dark_style = "monokai"
