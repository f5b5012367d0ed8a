"""The peers that are Python packages, one a process: `python peers.py NAME THREADS`, spoken to by compare.py.

The line protocol is that of rust/src/lib.rs. A peer is a function from a case and its arrays to a `Loaded`, which raises
`Cannot` for what the engine has no way to compute. Arrays are laid out as the engine wants them before time is taken.
"""

import ctypes
import json
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
from safetensors.numpy import load_file, save_file

from cases import window_mask


class Cannot(Exception):
    pass


@dataclass
class Loaded:
    how: str
    call: Callable[[], object]
    # What `call` gave as (batch, heads, len_query, dim_value), f32; with other results, if they are looked at, by name.
    result: Callable[[object], np.ndarray | dict[str, np.ndarray]]


def dense_mask(case, arrays) -> np.ndarray | None:
    if case.window:
        return window_mask(case.len_query, case.len_key, case.window)
    return arrays.get("mask")


def by_len(array: np.ndarray) -> np.ndarray:
    """(batch, heads, len, dim) to (batch, len, heads · dim)."""
    batch, _, length, _ = array.shape
    return np.ascontiguousarray(array.transpose(0, 2, 1, 3)).reshape(batch, length, -1)


def torch_tensors(case, threads):
    import torch
    from safetensors.torch import load_file as load_tensors

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    # Copies, since these are views of the mapped file, aligned as chance has it.
    return torch, {name: tensor.clone() for name, tensor in load_tensors(case.file).items()}


def package(case, arrays, threads) -> Loaded:
    """This engine, called from Python on torch's tensors."""
    import qkv

    _, tensors = torch_tensors(case, threads)
    qkv.set_num_threads(threads)
    options = {"enable_gqa": True} if case.heads != case.key_heads else {}
    # A stored mask is what the case is about, but where lengths say the same.
    if case.key_lengths:
        options["key_lengths"] = list(case.key_lengths)
    elif case.mask or case.bias:
        options["attn_mask"] = tensors["mask" if case.mask else "bias"]
    if case.causal:
        options["is_causal"] = True
    if case.window:
        options["window"] = (case.window - 1, 0)
    if case.softcap:
        options["softcap"] = case.softcap
    if case.lse:
        options["return_lse"] = True
    inputs = [tensors[name] for name in ("query", "key", "value")]

    def result(given):
        if not case.lse:
            return given.float().numpy()
        return {"output": given.output.float().numpy(), "lse": given.lse.numpy()}

    how = ", ".join(("qkv.scaled_dot_product_attention", *options))
    return Loaded(how, lambda: qkv.scaled_dot_product_attention(*inputs, **options), result)


def torch_sdpa(case, arrays, threads) -> Loaded:
    torch, tensors = torch_tensors(case, threads)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    options = {}
    mask = dense_mask(case, arrays)
    if mask is not None:
        options["attn_mask"] = torch.from_numpy(mask)
    elif case.causal:
        options["is_causal"] = True
    if case.heads != case.key_heads:
        options["enable_gqa"] = True
    inputs = [tensors[name] for name in ("query", "key", "value")]
    how = ", ".join(("scaled_dot_product_attention", *options))
    return Loaded(how, lambda: sdpa(*inputs, **options), lambda output: output.float().numpy())


def torch_flex(case, arrays, threads) -> Loaded:
    # Compiling in this process leaves no helpers behind.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    torch, tensors = torch_tensors(case, threads)
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    if not case.window:
        raise Cannot("only windows are put to flex_attention")
    window = case.window

    def visible(_batch, _head, query, key):
        return (query >= key) & (query - key < window)

    block_mask = create_block_mask(visible, None, None, case.len_query, case.len_key, device="cpu")
    compiled = torch.compile(flex_attention)
    inputs = [tensors[name] for name in ("query", "key", "value")]

    def call():
        return compiled(*inputs, block_mask=block_mask)

    return Loaded("compiled flex_attention, block mask", call, lambda output: output.float().numpy())


@dataclass
class Node:
    """One operator of ONNX Runtime: its attributes, the names of its inputs in order, the arrays behind them."""

    kind: str
    options: dict
    names: list[str]
    inputs: dict[str, np.ndarray]
    in_place: dict[str, str]  # outputs that are written over an input


def onnx_node(case, arrays) -> Node:
    if case.dtype == "bf16":
        raise Cannot("its kernels on the CPU take f32 and f16")
    if case.softcap or case.lse or case.mask == "window":
        raise Cannot("it has no fused kernel on the CPU for this")
    names = ["query", "key", "value"]
    inputs = {name: by_len(arrays[name]) for name in names}
    options = {"num_heads": case.heads}
    if not case.causal and case.heads == case.key_heads:
        if case.key_lengths:
            names += ["", "lengths"]
            inputs["lengths"] = np.array(case.key_lengths, np.int32)
        return Node("MultiHeadAttention", options, names, inputs, {})

    # Always causal, and faster at it than MultiHeadAttention.
    in_place = {}
    options["kv_num_heads"] = case.key_heads
    if case.window:
        options["local_window_size"] = case.window
    names += ["", "", "lengths", "total"]
    inputs["lengths"] = np.full(case.batch, case.len_key - 1, np.int32)
    inputs["total"] = np.array(case.len_key, np.int32)
    if case.len_query == 1:
        # The last key and value come with the query; the others are in the cache, to which they are added in place.
        names[3:5] = ["past_key", "past_value"]
        in_place = {"present_key": "past_key", "present_value": "past_value"}
        for name in ("key", "value"):
            inputs[f"past_{name}"] = arrays[name]
            inputs[name] = by_len(arrays[name][:, :, -1:])
    elif not case.causal:
        raise Cannot("it has no fused kernel on the CPU for grouped heads that are not causal")
    return Node("GroupQueryAttention", options, names, inputs, in_place)


def onnxruntime(case, arrays, threads) -> Loaded:
    import onnxruntime as ort
    from onnx import helper

    node = onnx_node(case, arrays)
    types = {name: helper.np_dtype_to_tensor_dtype(a.dtype) for name, a in node.inputs.items()}
    outputs = ["output", *node.in_place]
    graph = helper.make_graph(
        [helper.make_node(node.kind, node.names, outputs, domain="com.microsoft", **node.options)],
        "attention",
        [helper.make_tensor_value_info(name, types[name], a.shape) for name, a in node.inputs.items()],
        [helper.make_tensor_value_info(name, types["query"], None) for name in outputs],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = threads
    session = ort.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])

    shape = (case.batch, case.len_query, case.heads, case.dim_value)
    flat = (case.batch, case.len_query, case.heads * case.dim_value)
    values = {name: ort.OrtValue.ortvalue_from_numpy(a) for name, a in node.inputs.items()}
    values["output"] = ort.OrtValue.ortvalue_from_numpy(np.zeros(flat, node.inputs["query"].dtype))
    binding = session.io_binding()
    for name in node.inputs:
        binding.bind_ortvalue_input(name, values[name])
    for name in outputs:
        binding.bind_ortvalue_output(name, values[node.in_place.get(name, name)])
    return Loaded(
        node.kind + (" with a cache" if node.in_place else ""),
        lambda: session.run_with_iobinding(binding),
        lambda _: values["output"].numpy().reshape(shape).transpose(0, 2, 1, 3).astype(np.float32),
    )


def openvino(case, arrays, threads) -> Loaded:
    import openvino as ov
    from openvino import opset13

    if case.softcap or case.lse:
        raise Cannot("its operator has no such option")
    type_ = {"f32": ov.Type.f32, "f16": ov.Type.f16, "bf16": ov.Type.bf16}[case.dtype]
    query, key, value = (arrays[name] for name in ("query", "key", "value"))
    how = "ScaledDotProductAttention"
    group = case.heads // case.key_heads
    if group > 1 and case.len_query == 1:
        # Without an order among them, the query heads of a group are as good as queries.
        query = query.reshape(case.batch, case.key_heads, group, case.dim)
        how += ", query heads of a group as queries"
    elif group > 1:
        key, value = key.repeat(group, 1), value.repeat(group, 1)
        how += ", keys and values repeated beforehand"
    mask = dense_mask(case, arrays)
    inputs = [query, key, value] + ([] if mask is None else [mask])
    types = [type_] * 3 + [ov.Type.boolean] * (len(inputs) - 3)
    parameters = [opset13.parameter(a.shape, t) for a, t in zip(inputs, types, strict=True)]
    causal = case.causal and mask is None
    model = ov.Model([opset13.scaled_dot_product_attention(*parameters, causal=causal)], parameters)
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    if case.dtype == "f32":
        settings["INFERENCE_PRECISION_HINT"] = "f32"
    request = ov.Core().compile_model(model, "CPU", settings).create_infer_request()
    for i, (array, type_) in enumerate(zip(inputs, types, strict=True)):
        tensor = ov.Tensor(type_, ov.Shape(array.shape))
        tensor.data[...] = array.view(tensor.data.dtype)  # bits: NumPy shows bf16 as f16
        request.set_input_tensor(i, tensor)
    output = request.get_output_tensor()
    shape = (case.batch, case.heads, case.len_query, case.dim_value)

    def result(_) -> np.ndarray:
        return output.data.view(arrays["query"].dtype).astype(np.float32).reshape(shape)

    return Loaded(how, request.infer, result)


def ggml(case, arrays, threads) -> Loaded:
    import ggml as g

    if case.lse:
        raise Cannot("its operator has no such option")
    # Queries and output are f32 whatever the cache is, masks f16.
    mask = dense_mask(case, arrays)
    if case.causal and mask is None:
        mask = window_mask(case.len_query, case.len_key, case.len_key)
    type_ = {"f32": g.GGML_TYPE_F32, "f16": g.GGML_TYPE_F16, "bf16": g.GGML_TYPE_BF16}[case.dtype]
    inputs = [
        (arrays["query"].astype(np.float32), g.GGML_TYPE_F32),
        (arrays["key"], type_),
        (arrays["value"], type_),
    ]
    if mask is not None:
        mask = np.broadcast_to(mask, (*mask.shape[:2], case.len_query, case.len_key))
        inputs.append((np.where(mask, 0, -np.inf).astype(np.float16), g.GGML_TYPE_F16))
    shape = (case.batch, case.len_query, case.heads, case.dim_value)
    room = sum(a.nbytes for a, _ in inputs) + 4 * math.prod(shape) + (16 << 20)
    context = g.ggml_init(g.ggml_init_params(mem_size=room, mem_buffer=None, no_alloc=False))
    tensors = []
    for array, of in inputs:
        array = np.ascontiguousarray(array)
        tensor = g.ggml_new_tensor_4d(context, of, *reversed(array.shape))
        ctypes.memmove(g.ggml_get_data(tensor), array.ctypes.data, array.nbytes)
        tensors.append(tensor)
    tensors += [None] * (4 - len(tensors))
    scale, no_alibi, softcap = 1 / math.sqrt(case.dim), 0.0, case.softcap or 0.0
    output = g.ggml_flash_attn_ext(context, *tensors, scale, no_alibi, softcap)
    g.ggml_flash_attn_ext_set_prec(output, g.GGML_PREC_F32)
    graph = g.ggml_new_graph(context)
    g.ggml_build_forward_expand(graph, output)
    g.ggml_cpu_init()
    plan = g.ggml_graph_plan(graph, threads, None)
    work = (ctypes.c_uint8 * max(1, plan.work_size))()
    plan.work_data = ctypes.cast(work, ctypes.POINTER(ctypes.c_uint8))
    reference = ctypes.byref(plan)

    def call():
        if g.ggml_graph_compute(graph, reference) != 0:
            raise RuntimeError("ggml_graph_compute failed")

    def result(_) -> np.ndarray:
        array = np.empty(shape, np.float32)
        ctypes.memmove(array.ctypes.data, g.ggml_get_data(output), array.nbytes)
        return array.transpose(0, 2, 1, 3)

    how = "flash_attn_ext" + ("" if case.dtype == "f32" else f", {case.dtype} keys and values, f32 queries")
    result.keep = work  # ggml holds no reference to it
    return Loaded(how + ("" if mask is None else ", dense mask"), call, result)


PEERS = {
    "torch": torch_sdpa,
    "flex": torch_flex,
    "package": package,
    "onnxruntime": onnxruntime,
    "openvino": openvino,
    "ggml": ggml,
}


def fastest(call, seconds: float) -> float:
    """Seconds of the fastest call among as many as fill the time: two at least, one if it takes a second.

    The first wakes threads and fills caches that others have used meanwhile.
    """
    best, calls, start = math.inf, 0, time.perf_counter()
    while True:
        before = time.perf_counter()
        call()
        now = time.perf_counter()
        best, calls = min(best, now - before), calls + 1
        if (calls > 1 and now - start >= seconds) or now - start >= 1:
            return best


def main() -> None:
    name, threads = sys.argv[1], int(sys.argv[2])
    # What libraries print goes to stderr; replies keep the pipe for themselves.
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    loaded = None
    for line in sys.stdin:
        ((request, detail),) = json.loads(line).items()
        try:
            if request == "load":
                case = SimpleNamespace(**detail)
                loaded = PEERS[name](case, load_file(case.file), threads)
                reply = loaded.how
            elif request == "time":
                reply = fastest(loaded.call, detail["seconds"])
            else:
                results = loaded.result(loaded.call())
                results = results if isinstance(results, dict) else {"output": results}
                results = {name: np.ascontiguousarray(array) for name, array in results.items()}
                save_file(results, detail["file"])
                reply = None
            answer = {"ok": reply}
        except Cannot as why:
            answer = {"cannot": str(why)}
        except ImportError as error:
            answer = {"cannot": f"not installed: {error}"}
        except Exception as error:  # noqa: BLE001, whatever an engine raises is why it cannot
            answer = {"cannot": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=replies)


if __name__ == "__main__":
    main()
