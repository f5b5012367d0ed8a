"""A recording's pictures and its page, as a notebook shows them and as files."""

import html
import os
import webbrowser
from pathlib import Path

from qkv._qkv import Explored, Serving, png, write_file

__all__ = ["Page", "Picture"]

# Of the page in a notebook, in CSS pixels.
HEIGHT = 760


class Picture:
    """A map of one head with axes, tokens and a colour bar; a notebook shows it.

    ``svg`` is the picture as text.
    """

    def __init__(self, svg: str, cells: tuple[int, int]):
        self.svg = svg
        self._cells = cells

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the picture; ``path`` ends in ``.svg`` or ``.png``.

        Raises ValueError for another ending, OSError where the system refuses.
        """
        ending = Path(path).suffix.lower()
        if ending == ".svg":
            write_file(path, self.svg.encode())
        elif ending == ".png":
            write_file(path, bytes(png(self.svg, *self._cells)))
        else:
            raise ValueError(f"path: got {str(path)!r}, want a name that ends in .svg or .png")

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"Picture of {self._cells[0]} × {self._cells[1]} cells"


class Page:
    """The explorer of a recording: a notebook shows it inline, ``open`` opens it in the browser.

    Inline, and as a file, it has one picture of each head and no finer ones; in the browser, where the engine
    answers, it goes down to single weights at any length.
    """

    def __init__(self, explored: Explored):
        self._explored = explored
        self._html: str | None = None
        self._serving: Serving | None = None

    def html(self) -> str:
        """The page as one file, which needs no server and no network. It is made once, which takes a few
        passes over each head; Ctrl-C interrupts."""
        if self._html is None:
            self._html = self._explored.page()
        return self._html

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the page; ``path`` ends in ``.html``.

        Raises ValueError for another ending, OSError where the system refuses.
        """
        if Path(path).suffix.lower() != ".html":
            raise ValueError(f"path: got {str(path)!r}, want a name that ends in .html")
        write_file(path, self.html().encode())

    def open(self, browser: bool = True) -> str:
        """Serves the page on 127.0.0.1 for as long as this object lives, and opens it in the browser.

        Returns its address, which opens once; another call gives a new one.
        """
        self._serving = self._explored.serve()
        if browser:
            webbrowser.open(self._serving.url)
        return self._serving.url

    def _repr_html_(self) -> str:
        # A sandbox without allow-same-origin: scripts of the page are kept from the notebook.
        inside = html.escape(self.html(), quote=True)
        style = f"width: 100%; height: {HEIGHT}px; border: 0"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{inside}"></iframe>'
