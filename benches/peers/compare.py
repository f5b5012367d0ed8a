"""Attention engines on the CPU against this one: the same numbers, the same threads, interleaved.

    python -m venv venv && venv/bin/pip install -r benches/peers/requirements.txt ./crates/qkv-python
    venv/bin/python benches/peers/compare.py                      # all cases; prints the tables
    venv/bin/python benches/peers/compare.py --write              # puts them into BENCHMARKS.md
    venv/bin/python benches/peers/compare.py --cases 'decode-*,tiny' --peers torch,ggml --rounds 9

It builds the engine and candle with cargo, and needs a Unix and a C++ compiler (for ggml and for PyTorch's compiler). ggml
and candle are compiled for the machine's own instruction set, as their users are told to; the engine is not.

Each peer is a process of its own. In a round each takes its turn, the first of one round being the last of the next; the
others are stopped (SIGSTOP) meanwhile, so that threads that spin while they wait slow their own engine alone. A turn is as
many calls as fill 50 ms, two at least, one if it takes a second; its time is that of the fastest, since other work on the
machine can only add to it. What is shown is the median over rounds of the peer's time by the engine's. A result is compared with f64 first,
and not timed if it is wrong; an error beyond what the type explains is shown. Nothing but the call is timed: every engine
has its arrays in the layout it wants.

A “–” is a peer that is not installed or cannot do a case; standard error says why.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from fnmatch import fnmatch
from pathlib import Path
from statistics import median

from safetensors.numpy import load_file

import cases
from cases import ACCURACY, CASES, Case

HERE = Path(__file__).resolve().parent
BENCHMARKS = HERE.parents[1] / "BENCHMARKS.md"
BEGIN = "<!-- benches/peers/compare.py writes from here -->"
END = "<!-- to here -->"
SECONDS = 0.05
COLUMNS = {
    "package": "qkv from Python",
    "torch": "PyTorch",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    "ggml": "ggml",
    "candle": "candle",
}
TITLES = {"qkv": "qkv", **COLUMNS, "flex": "flex_attention"}
PACKAGES = {
    "package": "qkv",
    "torch": "torch",
    "onnxruntime": "onnxruntime",
    "openvino": "openvino",
    "ggml": "ggml-python",
}


class Cannot(Exception):
    pass


class Process:
    """A peer in a process of its own, which runs only while it is asked something."""

    def __init__(self, command: list[str], threads: int):
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS", "CANDLE_NUM_THREADS")
        self.child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | dict.fromkeys(names, str(threads)),
            start_new_session=True,  # so that a signal reaches helpers of the peer too, and Ctrl-C does not
        )

    def ask(self, request: dict):
        self.signal(signal.SIGCONT)
        try:
            print(json.dumps(request), file=self.child.stdin, flush=True)
            line = self.child.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise Cannot(f"its process ended: {self.child.wait()}")
        self.signal(signal.SIGSTOP)
        reply = json.loads(line)
        if "cannot" in reply:
            raise Cannot(reply["cannot"])
        return reply["ok"]

    def signal(self, number: int) -> None:
        try:
            os.killpg(self.child.pid, number)
        except ProcessLookupError:
            pass

    def end(self) -> None:
        self.signal(signal.SIGKILL)
        self.child.wait()


def build() -> dict[str, list[str] | str]:
    """How each peer is started, or why it cannot be."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", HERE / "rust" / "target")).resolve()
    cargo = ["cargo", "build", "--release", "--locked", "--manifest-path", str(HERE / "rust" / "Cargo.toml")]
    subprocess.run([*cargo, "--bin", "qkv-peer", "--target-dir", target], check=True)
    commands = {name: [sys.executable, str(HERE / "peers.py"), name] for name in (*PACKAGES, "flex")}
    commands["qkv"] = [str(target / "release" / "qkv-peer")]
    native = target / "native"
    made = subprocess.run(
        [*cargo, "--bin", "candle-peer", "--features", "candle", "--target-dir", native],
        env=os.environ | {"RUSTFLAGS": "-C target-cpu=native"},
        check=False,
    )
    commands["candle"] = (
        [str(native / "release" / "candle-peer")] if made.returncode == 0 else "it was not built"
    )
    return commands


class Comparison:
    def __init__(self, commands: dict, folder: Path, threads: int, rounds: int):
        self.commands, self.folder, self.threads, self.rounds = commands, folder, threads, rounds
        self.ways = defaultdict(lambda: defaultdict(list))  # peer, how it computes: the cases

    def measure(self, case: Case, peers: list[str]) -> tuple[dict, dict]:
        """Seconds of each round and errors against f64, by peer."""
        arrays = cases.draw(case)
        asked = {"qkv": case} | {name: case for name in case.peers if name in peers}
        wanted = {"qkv": cases.reference(case, arrays)}
        files = {"qkv": cases.store(arrays, self.folder / "case.safetensors")}
        if case.against_plain:
            asked["plain"] = case.plain()
            bare = {name: arrays[name] for name in ("query", "key", "value")}
            wanted["plain"] = cases.reference(asked["plain"], bare)
            files["plain"] = cases.store(bare, self.folder / "plain.safetensors")
        started, ready, errors = [], {}, {}
        try:
            for name, question in asked.items():
                file, want = files.get(name, files["qkv"]), wanted.get(name, wanted["qkv"])
                try:
                    process = self.start(name, started)
                    how = process.ask(question.request(file))
                    errors[name] = self.check(process, question, want)
                    self.ways[name][how].append(case.name)
                    ready[name] = process
                except Cannot as why:
                    self.tell(case, name, why)
            return {} if case in ACCURACY else self.time(case, ready), errors
        finally:
            for process in started:
                process.end()

    def tell(self, case: Case, name: str, why: Cannot) -> None:
        print(f"{case.name}: {TITLES.get(name, name)}: {why}", file=sys.stderr)

    def start(self, name: str, started: list[Process]) -> Process:
        command = self.commands["qkv" if name == "plain" else name]
        if isinstance(command, str):
            raise Cannot(command)
        threads = [] if name in ("qkv", "plain", "candle") else [str(self.threads)]
        started.append(Process([*command, *threads], self.threads))
        return started[-1]

    def check(self, process: Process, case: Case, want) -> tuple[float, float]:
        file = self.folder / "result.safetensors"
        process.ask({"write": {"file": str(file)}})
        got = load_file(file)
        file.unlink()
        if got["output"].shape != want[0].shape:
            raise Cannot(f"its result is {got['output'].shape}, not {want[0].shape}")
        largest, relative = cases.errors(got["output"], want[0])
        if case.lse:
            relative = max(relative, cases.errors(got["lse"], want[1])[1])
        if not relative <= cases.WRONG:  # also if it is NaN
            raise Cannot(f"its result is wrong: ‖y−ref‖/‖ref‖ = {relative:.2g}")
        return largest, relative

    def time(self, case: Case, ready: dict[str, Process]) -> dict[str, list[float]]:
        seconds = {name: [] for name in ready}
        names = list(ready)
        for turn in range(self.rounds):
            first = turn % max(1, len(names))
            for name in names[first:] + names[:first]:
                if name not in seconds:
                    continue
                try:
                    seconds[name].append(ready[name].ask({"time": {"seconds": SECONDS}}))
                except Cannot as why:
                    self.tell(case, name, why)
                    del seconds[name]
        shown = ", ".join(f"{TITLES.get(n, n)} {human(median(s))}" for n, s in seconds.items())
        print(f"{case.name}: {shown}", file=sys.stderr)
        return seconds


def human(seconds: float) -> str:
    unit, scale = next(
        (u, s) for u, s in (("s", 1), ("ms", 1e3), ("µs", 1e6)) if seconds * s >= 1 or u == "µs"
    )
    number = seconds * scale
    return f"{number:.{max(0, 3 - len(str(int(number))))}f} {unit}"


def ratio(seconds: dict[str, list[float]], name: str, by: str) -> str:
    if name not in seconds or by not in seconds:
        return "–"
    return f"{median(a / b for a, b in zip(seconds[name], seconds[by], strict=True)):.2f}"


def cell(case: Case, seconds, errors, name: str) -> str:
    text = ratio(seconds, name, "qkv")
    if text != "–" and errors[name][1] > cases.LARGEST_ERROR[case.dtype]:
        text += f" (error {errors[name][1]:.0e})"
    return text


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n" if rows else ""


def version(name: str) -> str:
    if name == "candle":
        locked = (HERE / "rust" / "Cargo.lock").read_text()
        return re.search(r'name = "candle-nn"\nversion = "([^"]+)"', locked)[1]
    try:
        return importlib.metadata.version(PACKAGES[name])
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    name = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    best = next(
        (title for flag, title in (("avx512f", "AVX-512"), ("avx2", "AVX2")) if flag in flags), "no AVX2"
    )
    return f"{name}, {best}" if flags else name


def report(comparison: Comparison, chosen: list[Case], peers: list[str]) -> str:
    load = os.getloadavg()[0]
    against_peers, own, accuracy = [], [], []
    shown = [name for name in COLUMNS if name in peers]
    for case in chosen:
        seconds, errors = comparison.measure(case, peers)
        if case in ACCURACY:
            cells = [f"{e:.1e}" for name in ("qkv", "torch") for e in errors.get(name, ())]
            accuracy.append([case.dtype, *cells, *["–"] * (4 - len(cells))])
        elif case.against_plain:
            with_, plain = (human(median(seconds[n])) if n in seconds else "–" for n in ("qkv", "plain"))
            python = [cell(case, seconds, errors, "package")] if "package" in peers else []
            own.append([f"`{case.name}`", with_, plain, ratio(seconds, "qkv", "plain"), *python])
        else:
            cells = [cell(case, seconds, errors, name) if name in case.peers else "" for name in shown]
            if "flex" in seconds and "torch" in shown:
                cells[shown.index("torch")] += f"; flex_attention {cell(case, seconds, errors, 'flex')}"
            time = human(median(seconds["qkv"])) if "qkv" in seconds else "–"
            against_peers.append([f"`{case.name}`", case.shape, time, *cells])
    versions = ", ".join(f"{COLUMNS[name]} {version(name)}" for name in shown if name != "package")
    counts = f"{comparison.threads} threads; {comparison.rounds} rounds"
    parts = [
        f"{processor()}; {counts}; load average before the start {load:.1f}; {versions}.\n",
        table(
            ["case", "batch, heads/key heads, queries, keys, dim", "qkv", *(COLUMNS[n] for n in shown)],
            against_peers,
        ),
        table(
            ["qkv against itself", "with", "without", "with/without"]
            + ([COLUMNS["package"]] if "package" in peers else []),
            own,
        ),
        table(
            ["accuracy", "qkv, largest", "qkv, relative", "PyTorch, largest", "PyTorch, relative"], accuracy
        ),
        ways(comparison),
    ]
    return "\n".join(part for part in parts if part)


def ways(comparison: Comparison) -> str:
    lines = []
    for name, hows in comparison.ways.items():
        if name not in ("qkv", "plain"):
            told = "; ".join(f"{how} ({', '.join(f'`{c}`' for c in names)})" for how, names in hows.items())
            lines.append(f"- {TITLES[name]}: {told}\n")
    return "".join(lines)


def write(text: str) -> None:
    page = BENCHMARKS.read_text()
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        sys.exit(f"{BENCHMARKS} has not the lines {BEGIN} and {END}")
    BENCHMARKS.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", default="*", help="names or patterns, by commas; all by default")
    parser.add_argument(
        "--peers", default=",".join((*COLUMNS, "flex")), help="names, by commas; all by default"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="put the tables into BENCHMARKS.md")
    given = parser.parse_args()
    if given.rounds < 1 or given.threads < 1:
        parser.error("rounds and threads are at least 1")
    given.peers = given.peers.split(",")
    unknown = set(given.peers) - {*COLUMNS, "flex"}
    if unknown:
        parser.error(f"no such peer: {', '.join(sorted(unknown))}; there are {', '.join((*COLUMNS, 'flex'))}")
    patterns = given.cases.split(",")
    every = CASES + ACCURACY
    for pattern in patterns:
        if not any(matches(case, pattern) for case in every):
            parser.error(f"no such case: {pattern}; there are {', '.join(case.name for case in every)}")
    given.cases = [case for case in every if any(matches(case, pattern) for pattern in patterns)]
    return given


def matches(case: Case, pattern: str) -> bool:
    return fnmatch(case.name, pattern) or (pattern == "accuracy" and case in ACCURACY)


def main() -> None:
    given = arguments()
    # Processes that are stopped would outlive this one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    commands = build()
    with tempfile.TemporaryDirectory() as folder:
        comparison = Comparison(commands, Path(folder), given.threads, given.rounds)
        text = report(comparison, given.cases, given.peers)
    if given.write:
        write(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
