"""Recordings: the queries, keys and values of every layer of one pass of a model, in one file.

``qkv.transformers.record`` makes one; ``Recording(path)`` opens one that was saved. The file is a
``.safetensors`` file that any reader of these reads, the command ``qkv`` among them:

- arrays ``layers.N.q (batch, heads, queries, dim)``, ``layers.N.k`` and ``layers.N.v (batch, key heads, keys,
  dim)``, after position encoding, as attention is computed with them; key heads are not repeated;
- metadata, each a text, and only where it applies: ``scale``, ``causal`` ("top-left", "bottom-right" or
  "false"), ``window`` ("LEFT,RIGHT", with "-" for no bound), ``softcap``, ``padding`` (a JSON list of
  [start, end], the positions of each batch's real tokens), ``tokens`` (a JSON list of lists of texts, one
  for each key). ``layers.N.scale`` and so on hold for one layer, those without the prefix for all that have
  none of their own;
- ``model``, the model's name.
"""

import os
import re
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from qkv._page import Page, Picture
from qkv._qkv import ArrayFile, Explored

__all__ = ["Page", "Picture", "Recording"]

ENDING = ".safetensors"


class Recording:
    """Queries, keys and values of every layer of one pass of a model, in a file.

    ``Recording(path)`` opens a file that was saved, whose arrays stay on the disk. It stays the file that was
    opened if another takes its name, as ``save`` makes it; no other program may change it in place.

    What is odd about its layers is warned of when they are first looked at.

    Raises FileNotFoundError or another OSError if it cannot be read, ValueError if it is no recording.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self._path = Path(path)
        self._layers: list[int] | None = None
        self._folder: weakref.finalize | None = None
        self._file: ArrayFile | None = None
        self._explored: Explored | None = None
        self._open()

    @classmethod
    def _to_come(cls, path: str | os.PathLike[str] | None) -> "Recording":
        """A recording whose file is not there yet; for None one in a temporary folder."""
        recording = cls.__new__(cls)
        recording._layers = recording._folder = recording._file = recording._explored = None
        if path is None:
            folder = tempfile.mkdtemp(prefix="qkv-")
            recording._folder = weakref.finalize(recording, _remove, folder, os.getpid())
            path = Path(folder, f"recording{ENDING}")
        recording._path = _checked(path)
        return recording

    def _open(self) -> None:
        self._file = ArrayFile(self._path)
        self._layers = _layers(self._path, self._file.names())

    @property
    def path(self) -> Path:
        """Where the file is, or is to appear."""
        return self._path

    @property
    def layers(self) -> list[int]:
        """The numbers of the layers, in order.

        Raises RuntimeError before the recording is finished, which it is at the end of its ``with`` block.
        """
        return list(self._finished())

    def heads(self, *, batch: int = 0, first_keys: int = 1) -> list[dict[str, Any]]:
        """All heads of all layers, a dict for each: what ``pandas.DataFrame`` makes a table of.

        ``layer``, ``head``, and means over the queries that attend something: ``entropy`` of the weights in
        nats, ``effective_keys`` (of exp(entropy)), ``distance`` in positions, and the weight of the ``first``
        key (of the first ``first_keys``), of the query's own position (``self``), of the ``previous`` one, of
        the ``same`` token elsewhere, and of what followed the token earlier (``after``); None where there is
        no mean or there are no tokens. ``empty`` queries attend nothing, those of ``nan`` have weights that
        are NaN.

        Raises ValueError for a batch that there is not, TypeError for what is no whole number. Ctrl-C
        interrupts.
        """
        return self._opened().heads(batch, first_keys)

    def top(
        self,
        layer: int,
        head: int,
        query: int | None = None,
        *,
        key: int | None = None,
        count: int = 10,
        batch: int = 0,
    ) -> dict[str, Any]:
        """Whom a query attends, or who attends a key: exact weights, and influence, which is how far the
        query's output would move without the key.

        Of a query: ``mass`` (1, less with a sink, 0 if it attends nothing), ``entropy``, ``effective_keys``,
        ``distance``, the weight of the ``rest``, and up to ``count`` keys ``by_weight`` and ``by_influence``.
        Of a key: the weight ``received``, from how many ``queries``, and those ``by_weight``.

        Raises ValueError for a layer, head, batch, query or key that there is not, TypeError unless one of
        ``query`` and ``key`` is given, or for what is no whole number.
        """
        if (query is None) == (key is None):
            raise TypeError("query, key: want one of them")
        place = (layer, head, batch)
        if query is not None:
            return self._opened().query(place, query, count)
        return self._opened().key(place, key, count)

    def map(
        self,
        layer: int,
        head: int,
        *,
        of: str = "weights",
        pool: str = "max",
        size: int = 1024,
        queries: tuple[int, int] | None = None,
        keys: tuple[int, int] | None = None,
        batch: int = 0,
        picture: bool = False,
    ) -> np.ndarray | Picture:
        """One head's matrix, pooled to at most ``size`` rows of queries and columns of keys: float64 numbers,
        or with ``picture`` a picture.

        ``of`` is "mask", "scores", "scaled", "weights" or "influence"; ``pool`` "max" (of scores, the number
        farthest from 0), "mean" or "sum"; ``queries`` and ``keys`` are (start, end), end not included.

        Raises ValueError for what there is not, TypeError for what is no number, name or pair. Ctrl-C
        interrupts.
        """
        place = (layer, head, batch)
        numbers, svg = self._opened().map(place, of, pool, size, queries, keys, bool(picture))
        return numbers if svg is None else Picture(svg, numbers.shape)

    def view(self) -> Page:
        """The explorer of this recording: a notebook shows it inline, ``open`` opens it in the browser."""
        return Page(self._opened())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Copies the file, as it was opened, to ``path``, which ends in ``.safetensors``. The copy appears
        whole or not at all, and replaces a file of this name.

        Raises RuntimeError before the recording is finished, ValueError for another ending, OSError where the
        system refuses.
        """
        self._finished()
        self._opened_file().copy(_checked(path))

    def close(self) -> None:
        """Deletes the file if it is a temporary one, as happens too when the object is collected."""
        self._file = self._explored = None
        if self._folder is not None:
            self._folder()

    def _opened_file(self) -> ArrayFile:
        # One that was closed is opened again, if it is still there.
        if self._file is None:
            self._file = ArrayFile(self._path)
        return self._file

    def _opened(self) -> Explored:
        self._finished()
        if self._explored is None:
            self._explored = Explored(self._opened_file())
            for warning in self._explored.warnings:
                warnings.warn(warning, stacklevel=3)
        return self._explored

    def _finished(self) -> list[int]:
        if self._layers is None:
            raise RuntimeError(f"{self._path}: is not recorded yet, want the end of its with block")
        return self._layers

    def __repr__(self) -> str:
        if self._layers is None:
            return f"Recording({str(self._path)!r}, not recorded yet)"
        count = len(self._layers)
        return f"Recording({str(self._path)!r}, {count} layer{'s' * (count != 1)})"


def _checked(path: str | os.PathLike[str]) -> Path:
    path = Path(path)
    if path.suffix.lower() != ENDING:
        raise ValueError(f"path: got {str(path)!r}, want a name that ends in {ENDING}")
    return path


def _layers(path: Path, names: Iterable[str]) -> list[int]:
    """The layers of which a file has queries, keys and values."""
    names = set(names)
    found = (re.fullmatch(r"layers\.(\d+)\.q", name) for name in names)
    numbers = (match.group(1) for match in found if match)
    layers = [int(n) for n in numbers if {f"layers.{n}.k", f"layers.{n}.v"} <= names]
    if not layers:
        raise ValueError(f"{path}: is no recording, want arrays layers.N.q, layers.N.k and layers.N.v")
    return sorted(layers)


def _remove(folder: str, process: int) -> None:
    # A forked child has the object too, but not the file.
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
