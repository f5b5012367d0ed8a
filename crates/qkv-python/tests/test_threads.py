"""Threads: Python runs on while qkv computes, results do not depend on how many there are, a forked child has
its own, and Ctrl-C interrupts.
"""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import qkv
from support import grid, same_bits


def arrays(length=512):
    return [grid((1, 4, length, 64), seed) for seed in range(3)]


@pytest.fixture(autouse=True)
def threads_as_they_were():
    before = qkv.get_num_threads()
    yield
    qkv.set_num_threads(before)


def test_no_bit_depends_on_threads():
    options = {"is_causal": True, "return_weights": True, "return_lse": True}
    expected = qkv.scaled_dot_product_attention(*arrays(300), threads=1, **options)
    for threads in (2, 3, 8):
        for one, other in zip(
            qkv.scaled_dot_product_attention(*arrays(300), threads=threads, **options), expected, strict=True
        ):
            same_bits(one, other)
    qkv.set_num_threads(5)
    assert qkv.get_num_threads() == 5
    same_bits(qkv.scaled_dot_product_attention(*arrays(300), **options).output, expected.output)


@pytest.mark.parametrize("number", [0, -1, 1025])
def test_how_many_threads_there_may_be(number):
    with pytest.raises(ValueError, match=f"n: got {number}, want 1 to 1024"):
        qkv.set_num_threads(number)


def test_many_python_threads_compute_at_once_and_python_runs_on():
    inputs = arrays(1024)
    expected = qkv.scaled_dot_product_attention(*inputs)
    done, ticks, results = threading.Event(), [], []

    def tick():
        while not done.wait(0.002):
            ticks.append(time.monotonic())

    def compute():
        results.append(qkv.scaled_dot_product_attention(*inputs))

    ticker = threading.Thread(target=tick)
    workers = [threading.Thread(target=compute) for _ in range(8)]
    ticker.start()
    start = time.monotonic()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    took = time.monotonic() - start
    done.set()
    ticker.join()
    assert len(results) == 8
    for result in results:
        same_bits(result, expected)
    # Were the interpreter held, no tick would come before the calls are done.
    assert len(ticks) >= min(5, took / 0.02)


def test_small_calls_from_many_threads():
    inputs = [grid((2, 4, 5, 8), seed) for seed in range(3)]
    expected = qkv.scaled_dot_product_attention(*inputs)
    wrong = []

    def compute():
        for _ in range(500):
            if not np.array_equal(qkv.scaled_dot_product_attention(*inputs), expected):
                wrong.append(1)

    workers = [threading.Thread(target=compute) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def run(script, **environment):
    """Runs a script of its own, with this process's arrays at hand."""
    prelude = f"import sys; sys.path[:0] = {sys.path!r}\nfrom support import grid, same_bits\n"
    return subprocess.run(
        [sys.executable, "-c", prelude + script],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_has_threads_of_its_own():
    result = run("""
import os, qkv
inputs = [grid((1, 4, 512, 64), seed) for seed in range(3)]
mask = grid((512, 512), 3) > -1.9
expected = [qkv.scaled_dot_product_attention(*inputs, mask, threads=n) for n in (None, 2, 3)]
for generation in range(2):
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status))
for n, before in zip((None, 2, 3), expected):
    same_bits(qkv.scaled_dot_product_attention(*inputs, mask, threads=n), before)
    merged = qkv.merge(qkv.partial(*inputs), return_lse=True)
    qkv.reference(inputs[0][:, :, :2], *inputs[1:])
    qkv.plan(*inputs).to_dict()
os._exit(7)
""")
    assert (result.returncode, result.stderr) == (7, "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_pool_of_processes():
    result = run("""
import multiprocessing, qkv
def compute(seed):
    return qkv.scaled_dot_product_attention(*(grid((1, 2, 512, 64), seed + i) for i in range(3)))
if __name__ == "__main__":
    expected = [compute(seed) for seed in range(4)]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for one, other in zip(pool.map(compute, range(4)), expected):
            same_bits(one, other)
""")
    assert (result.returncode, result.stderr) == (0, "")


CALLS = {
    "output": "qkv.scaled_dot_product_attention(x, x, x)",
    "lse": "qkv.scaled_dot_product_attention(x, x, x, return_lse=True)",
    "partial": "qkv.partial(x, x, x)",
    "reference": "qkv.reference(x, x, x)",
}


@pytest.mark.parametrize("call", CALLS)
def test_ctrl_c_interrupts(call):
    script = f"""
import numpy as np, qkv, signal, threading, os, time
x = np.ones((32, 16384, 64), np.float32)
threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
start = time.monotonic()
try:
    {CALLS[call]}
except KeyboardInterrupt:
    print("interrupted", time.monotonic() - start < 20)
small = qkv.scaled_dot_product_attention(x[:1, :600], x[:1, :600], x[:1, :600])
print(small.shape)
"""
    result = run(script)
    assert result.stdout.splitlines() == ["interrupted True", "(1, 600, 64)"], result.stderr


def test_a_handler_that_does_not_raise_does_not_interrupt():
    handled = []
    before = signal.signal(signal.SIGUSR1, lambda *_: handled.append(threading.current_thread()))
    try:
        timer = threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGUSR1))
        timer.start()
        x = np.ones((8, 2048, 64), np.float32)
        while not handled:
            assert qkv.scaled_dot_product_attention(x, x, x).shape == x.shape
        timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert handled == [threading.main_thread()]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("sse9", 'QKV_SIMD: got "sse9", want one of avx512, avx2, portable'),
        ("avx512", "QKV_SIMD: this machine has no avx512"),
    ],
)
def test_an_instruction_set_that_is_not_there(value, message):
    if qkv.simd() == "avx512" and value == "avx512":
        pytest.skip("this machine has it")
    result = run(
        f"""
import numpy as np, qkv
x = np.ones((2, 2), np.float32)
for call in (qkv.simd, lambda: qkv.scaled_dot_product_attention(x, x, x), lambda: qkv.plan(x, x, x)):
    try:
        call()
    except ValueError as error:
        assert str(error).startswith({message!r}), error
    else:
        raise AssertionError("no error")
""",
        QKV_SIMD=value,
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_the_instruction_set_does_not_matter():
    x = grid((2, 65, 24))
    expected = qkv.scaled_dot_product_attention(x, x, x, softcap=3.0)
    result = run(
        """
import qkv
x = grid((2, 65, 24))
print(qkv.simd())
print(qkv.scaled_dot_product_attention(x, x, x, softcap=3.0).tobytes().hex())
""",
        QKV_SIMD="portable",
    )
    name, numbers = result.stdout.splitlines()
    assert name == "portable" and numbers == expected.tobytes().hex()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_no_call_leaves_threads_that_a_child_would_wait_for():
    """Small calls with a large mask, which many threads sort."""
    result = run("""
import os, numpy as np, qkv
x, mask = grid((400, 2)), np.ones((400, 400), bool)
def all_calls():
    qkv.scaled_dot_product_attention(x, x, x, mask, return_weights=True)
    qkv.explain(x, x, x, mask, row=1, print=False)
    qkv.reference(x[:2], x, x, mask[:2])
    qkv.reference(x, x, x, mask)
    qkv.plan(x, x, x, mask)
    qkv.scores(x, x, x, mask)
    qkv.merge(qkv.partial(x, x, x, mask))
    qkv.attention(x, x, x, mask)
all_calls()
child = os.fork()
if child:
    _, status = os.waitpid(child, 0)
    os._exit(os.waitstatus_to_exitcode(status))
all_calls()
os._exit(7)
""")
    assert (result.returncode, result.stderr) == (7, "")
