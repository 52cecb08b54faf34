"""What the demo trainer trains on: the docstrings of this project's own packages.

They are real English text that is at hand wherever the project is installed. Read from source files, as
text: nothing is imported or executed.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Sequence
from importlib import resources
from importlib.resources.abc import Traversable

PACKAGES = ("runtime", "sync")


def docstrings(packages: Sequence[str] = PACKAGES) -> list[str]:
    """Every docstring of the packages' modules, classes and functions, in order of file name, cleaned of
    indentation.

    Raises ValueError if there is none (an installation without sources has nothing to train on).
    """
    found = [text for package in packages for text in _package_docstrings(resources.files(package))]
    if not found:
        raise ValueError(f"no docstrings in the sources of the packages {', '.join(packages)}")
    return found


def token_windows(token_ids: Sequence[int], length: int) -> list[list[int]]:
    """Cuts ``token_ids`` into consecutive windows of exactly ``length`` tokens; a shorter rest is left out.

    Raises ValueError if there are not enough tokens for one window.
    """
    windows = [list(token_ids[i : i + length]) for i in range(0, len(token_ids) - length + 1, length)]
    if not windows:
        raise ValueError(f"training needs at least {length} tokens of text, found {len(token_ids)}")
    return windows


def _package_docstrings(folder: Traversable) -> Iterator[str]:
    for entry in sorted(folder.iterdir(), key=lambda item: item.name):
        if entry.is_dir():
            yield from _package_docstrings(entry)
        elif entry.name.endswith(".py"):
            for node in ast.walk(ast.parse(entry.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    text = ast.get_docstring(node, clean=False)
                    if text:
                        yield inspect.cleandoc(text)
