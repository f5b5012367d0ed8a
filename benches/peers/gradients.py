"""Forward and backward together against PyTorch, f32: the same tensors, the same threads, alternating.

    python -m venv venv && venv/bin/pip install -r benches/peers/requirements.txt ./crates/qkv-python
    venv/bin/python benches/peers/gradients.py                # prints the table in BENCHMARKS.md, "Gradients"
    venv/bin/python benches/peers/gradients.py --cases 'mask-*' --rounds 11

A turn is as many calls as fill half a second, two at least; its time is that of the fastest. What is shown is the median over rounds,
of times and of PyTorch's time by qkv's. Gradients are compared first. Memory is what a process's peak grows by in one call, beyond
the output and the gradients (Linux only).
"""

import argparse
import subprocess
import sys
import time
from dataclasses import dataclass
from fnmatch import fnmatch
from statistics import median

import qkv
import torch
from torch.nn.functional import scaled_dot_product_attention as torch_sdpa

SECONDS = 0.5
# Of the largest number of a gradient.
CLOSE = 1e-4


@dataclass(frozen=True)
class Case:
    name: str
    heads: int
    length: int
    dim: int
    dim_value: int
    causal: bool = False
    mask: tuple[int, ...] | None = None  # added, and needs its gradient

    def given(self) -> list[torch.Tensor]:
        torch.manual_seed(0)
        dims = (self.dim, self.dim, self.dim_value)
        given = [torch.randn(1, self.heads, self.length, dim) for dim in dims]
        if self.mask:
            given.append(torch.randn(self.mask))
        return [x.requires_grad_() for x in given]

    @property
    def shape(self) -> str:
        dims = f"{self.dim}" if self.dim == self.dim_value else f"{self.dim}/{self.dim_value}"
        mask = f", mask {self.mask}" if self.mask else ", causal" if self.causal else ""
        return f"1, {self.heads}, {self.length}, {dims}{mask}"


CASES = [
    Case("causal-1024", 8, 1024, 64, 64, causal=True),
    Case("causal-4096", 8, 4096, 64, 64, causal=True),
    Case("full-2048", 8, 2048, 64, 64),
    Case("mask-shared", 8, 2048, 64, 64, mask=(2048, 2048)),
    Case("mask-per-head", 8, 2048, 64, 64, mask=(8, 2048, 2048)),
    Case("value-64", 8, 2048, 128, 64),
    Case("long-16384", 8, 16384, 64, 64, causal=True),
]


def train(sdpa, case: Case, given: list[torch.Tensor], d_output: torch.Tensor) -> tuple[torch.Tensor, ...]:
    query, key, value, *mask = given
    output = sdpa(query, key, value, *mask, is_causal=case.causal)
    return torch.autograd.grad(output, given, d_output)


def turn(sdpa, *call) -> float:
    """Seconds of the fastest call."""
    times, start = [], time.perf_counter()
    while len(times) < 2 or time.perf_counter() - start < SECONDS:
        before = time.perf_counter()
        train(sdpa, *call)
        times.append(time.perf_counter() - before)
    return min(times)


def compare(case: Case, rounds: int) -> tuple[float, float, float]:
    """The medians of milliseconds of both, and of the ratio."""
    given = case.given()
    d_output = torch.randn(1, case.heads, case.length, case.dim_value)
    engines = (qkv.scaled_dot_product_attention, torch_sdpa)
    results = zip(*(train(engine, case, given, d_output) for engine in engines), strict=True)
    if not all((one - other).abs().max() <= CLOSE * other.abs().max() for one, other in results):
        sys.exit(f"{case.name}: gradients differ")
    times = ([], [])
    for number in range(rounds):
        for engine in (0, 1) if number % 2 == 0 else (1, 0):
            times[engine].append(turn(engines[engine], case, given, d_output))
            # Threads that spin while they wait come to rest.
            time.sleep(0.1)
    ours, theirs = (1e3 * median(own) for own in times)
    return ours, theirs, median(their / our for our, their in zip(*times, strict=True))


def megabytes(of: str) -> float:
    """Of this process: ``VmHWM`` at most, ``VmRSS`` now."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(of)) / 1e3


def memory(case: Case) -> float:
    """Megabytes of this process's peak beyond inputs, output and gradients."""
    given = case.given()
    # A small call first, so that what is there for all calls is there.
    small = Case("", case.heads, 512, case.dim, case.dim_value, case.causal)
    for own, tensors in ((small, small.given()), (case, given)):
        d_output = torch.ones(1, own.heads, own.length, own.dim_value)
        before = megabytes("VmRSS")
        gradients = train(qkv.scaled_dot_product_attention, own, tensors, d_output)
    # The output is as large as its gradient.
    return max(0.0, megabytes("VmHWM") - before - sum(x.nbytes for x in (d_output, *gradients)) / 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", default="*", help="names or patterns, by commas; all by default")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory", action="store_true", help="of one case alone, measured in this process")
    options = parser.parse_args()
    if options.rounds < 1 or options.threads < 1:
        parser.error("rounds and threads are at least 1")
    torch.set_num_threads(options.threads)
    qkv.set_num_threads(options.threads)
    chosen = [case for case in CASES if any(fnmatch(case.name, name) for name in options.cases.split(","))]
    if not chosen or (options.memory and len(chosen) > 1):
        parser.error(
            f"cases: want {'one' if options.memory else 'some'} of {', '.join(c.name for c in CASES)}"
        )
    if options.memory:
        print(memory(*chosen))
        return
    print("| case | shape | qkv | PyTorch | PyTorch/qkv | memory |\n| --- | --- | --- | --- | --- | --- |")
    for case in chosen:
        # In a process of its own, whose peak is its own.
        command = [
            sys.executable,
            __file__,
            "--memory",
            "--cases",
            case.name,
            "--threads",
            str(options.threads),
        ]
        extra = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        shown = f"{extra:.1f} MB" if extra >= 1 else "below 1 MB"
        ours, theirs, ratio = compare(case, options.rounds)
        print(f"| `{case.name}` | {case.shape} | {ours:.1f} ms | {theirs:.1f} ms | {ratio:.2f} | {shown} |")


if __name__ == "__main__":
    main()
