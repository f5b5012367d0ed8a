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
import weakref
from pathlib import Path

from qkv._qkv import array_names, copy_file

__all__ = ["Recording"]

ENDING = ".safetensors"


class Recording:
    """Queries, keys and values of every layer of one pass of a model, in a file.

    ``Recording(path)`` opens a file that was saved, whose arrays stay on the disk.

    Raises FileNotFoundError or another OSError if it cannot be read, ValueError if it is no recording.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self._path = Path(path)
        self._layers: list[int] | None = None
        self._folder: weakref.finalize | None = None
        self._open()

    @classmethod
    def _to_come(cls, path: str | os.PathLike[str] | None) -> "Recording":
        """A recording whose file is not there yet; for None one in a temporary folder."""
        recording = cls.__new__(cls)
        recording._layers = recording._folder = None
        if path is None:
            folder = tempfile.mkdtemp(prefix="qkv-")
            recording._folder = weakref.finalize(recording, _remove, folder, os.getpid())
            path = Path(folder, f"recording{ENDING}")
        recording._path = _checked(path)
        return recording

    def _open(self) -> None:
        self._layers = _layers(self._path)

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

    def save(self, path: str | os.PathLike[str]) -> None:
        """Copies the file to ``path``, which ends in ``.safetensors``. The copy appears whole or not at all,
        and replaces a file of this name.

        Raises RuntimeError before the recording is finished, ValueError for another ending, OSError where the
        system refuses.
        """
        self._finished()
        copy_file(self._path, _checked(path))

    def close(self) -> None:
        """Deletes the file if it is a temporary one, as happens too when the object is collected."""
        if self._folder is not None:
            self._folder()

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


def _layers(path: Path) -> list[int]:
    """The layers of which a file has queries, keys and values."""
    names = set(array_names(path))
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
