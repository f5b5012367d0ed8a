"""The package as such: what importing it brings along, its types, its examples."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import qkv

FOLDER = Path(qkv.__file__).parent


def test_importing_it_imports_nothing_heavy():
    script = """
import sys, qkv
print([library for library in ("torch", "transformers", "onnx", "ml_dtypes") if library in sys.modules])
"""
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd="/"
    )
    assert result.stdout == "[]\n"


@pytest.mark.parametrize("library", ["torch", "transformers", "onnx"])
def test_a_module_without_its_library_says_how_to_get_it(library):
    script = f"import sys; sys.modules[{library!r}] = None\nimport qkv.{library}"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert f"pip install qkv[{library}]" in result.stderr.splitlines()[-1]


def test_every_public_name_is_documented():
    for name in qkv.__all__:
        if name != "__version__":
            documentation = inspect.getdoc(getattr(qkv, name))
            assert documentation and len(documentation) > 40, name
    assert len(qkv.__all__) == len(set(qkv.__all__))


def test_torchs_arguments_come_first_by_their_names():
    names = list(inspect.signature(qkv.scaled_dot_product_attention).parameters)
    assert names[:8] == [
        "query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa",
    ]  # fmt: skip
    assert names[8:] == [
        "causal", "prefix", "query_offset", "key_offset", "softcap", "window", "key_lengths", "segment_ids",
        "alibi_slopes", "sinks", "layout", "return_weights", "return_lse", "seed", "out", "threads",
    ]  # fmt: skip


def test_types_are_those_of_the_compiled_part(tmp_path):
    pytest.importorskip("mypy", reason="mypy compares the stub with the module")
    assert (FOLDER / "py.typed").exists()
    command = [sys.executable, "-m", "mypy.stubtest", "qkv._qkv"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
