"""ONNX's Attention: its backend cases, then what they leave open, against ONNX's reference and float64."""

import re
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
import qkv
import qkv.onnx
from onnx import helper
from onnx.backend.test.case.node import collect_testcases
from onnx.backend.test.runner import Runner
from onnx.reference import ReferenceEvaluator
from support import grid, same_bits, textbook

pytestmark = pytest.mark.onnx

INPUTS = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
OUTPUTS = ("Y", "present_key", "present_value", "qk_matmul_output")
HALVES = (np.float16, ml_dtypes.bfloat16)


def backend_cases():
    """Those with the operator itself; the others are the same, with its function body in its place."""
    with np.errstate(all="ignore"):
        cases = collect_testcases("Attention")
    return [case for case in cases if any(node.op_type == "Attention" for node in case.model.graph.node)]


CASES = backend_cases()


@pytest.fixture
def engine_calls(monkeypatch):
    """The options of each call of the engine."""
    calls = []
    engine = qkv.scaled_dot_product_attention

    def recorded(*args, **options):
        calls.append(options)
        return engine(*args, **options)

    monkeypatch.setattr(qkv, "scaled_dot_product_attention", recorded)
    return calls


def model(inputs, outputs=("Y",), opset=25, **attributes):
    """One node; inputs are arrays by name."""
    names = [name if name in inputs else "" for name in INPUTS]
    node = helper.make_node("Attention", names, outputs, **attributes)
    tensor = helper.make_tensor_value_info
    of_dtype = helper.np_dtype_to_tensor_dtype
    given = [tensor(name, of_dtype(array.dtype), array.shape) for name, array in inputs.items()]
    wanted = [tensor(name, of_dtype(inputs["Q"].dtype), None) for name in outputs if name]
    graph = helper.make_graph([node], "attention", given, wanted)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def of_qkv(model, inputs):
    return ReferenceEvaluator(model, new_ops=[qkv.onnx.Attention]).run(None, inputs)


def of_onnx(model, inputs):
    return ReferenceEvaluator(model).run(None, inputs)


def arrays(heads=4, key_heads=2, len_query=3, len_key=5, dim=8, dim_value=6, batch=2, dtype=np.float32):
    return {
        "Q": grid((batch, heads, len_query, dim), 1).astype(dtype),
        "K": grid((batch, key_heads, len_key, dim), 2).astype(dtype),
        "V": grid((batch, key_heads, len_key, dim_value), 3).astype(dtype),
    }


def with_cache(kind):
    """Arrays with seven keys; in a whole cache fewer of the first batch's count than it has queries."""
    if kind == "past":
        past = arrays(len_key=4)
        return {**arrays(len_key=3), "past_key": past["K"], "past_value": past["V"]}
    inputs = arrays(len_key=7)
    return inputs if kind == "none" else {**inputs, "nonpad_kv_seqlen": np.array([2, 6])}


def as_packed(array):
    batch, heads, length, dim = array.shape
    return np.ascontiguousarray(array.swapaxes(1, 2)).reshape(batch, length, heads * dim)


def near(own, expected):
    """Asserts that numbers are those of float64, to a step of their own type or a few of float32."""
    rtol = max(1e-5, float(ml_dtypes.finfo(own.dtype).eps))
    np.testing.assert_allclose(own.astype(np.float64), expected, rtol=rtol, atol=1e-6)


def grouped(inputs):
    """Keys and values repeated for the query heads that share them."""
    group = inputs["Q"].shape[1] // inputs["K"].shape[1]
    return inputs["Q"], np.repeat(inputs["K"], group, axis=1), np.repeat(inputs["V"], group, axis=1)


# The backend cases.


def test_there_are_93_backend_cases():
    assert len(CASES) == len({case.name for case in CASES}) == 93


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_backend_case(case, engine_calls):
    evaluator = ReferenceEvaluator(case.model, new_ops=[qkv.onnx.Attention])
    assert [type(node) for node in evaluator.rt_nodes_] == [qkv.onnx.Attention]
    assert case.data_sets
    for inputs, expected in case.data_sets:
        outputs = evaluator.run(None, dict(zip(evaluator.input_names, inputs, strict=True)))
        assert engine_calls
        # With the case's tolerance, as ONNX applies it: bfloat16, whose steps are wider, may be off by two.
        Runner.assert_similar_outputs(expected, outputs, case.rtol, case.atol)


# What the cases leave open.


@pytest.mark.parametrize("mask", ["none", "bool", "float"])
@pytest.mark.parametrize("window", [(-1, -1), (1, -1), (-1, 0), (0, 2)], ids=str)
@pytest.mark.parametrize("is_causal", [0, 1])
@pytest.mark.parametrize("cache", ["none", "past", "whole"])
def test_masks_compose_as_in_the_reference(cache, is_causal, window, mask):
    inputs = with_cache(cache)
    if mask != "none":
        inputs["attn_mask"] = grid((4, 3, 7), 9)
    if mask == "bool":
        inputs["attn_mask"] = inputs["attn_mask"] > 0
    attributes = {"is_causal": is_causal, "left_window_size": window[0], "right_window_size": window[1]}
    for mode in (2, 3):
        asked = model(inputs, OUTPUTS, **attributes, qk_matmul_output_mode=mode, softcap=3.0)
        for own, expected in zip(of_qkv(asked, inputs), of_onnx(asked, inputs), strict=True):
            np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("cache", ["none", "past", "whole"])
def test_inputs_of_three_axes_give_the_bits_of_four(cache):
    inputs = with_cache(cache)
    options = {"is_causal": 1, "qk_matmul_output_mode": 3, "return_qk_matmul_output": True}
    of_four = qkv.onnx.attention(**inputs, **options)
    packed = {name: as_packed(array) if name in ("Q", "K", "V") else array for name, array in inputs.items()}
    of_three = qkv.onnx.attention(**packed, **options, q_num_heads=4, kv_num_heads=2)
    same_bits(of_three.Y, as_packed(of_four.Y))
    for own, expected in zip(of_three[1:], of_four[1:], strict=True):
        same_bits(own, expected)


def test_head_counts_beside_four_axes_may_say_what_is_so():
    inputs = arrays()
    same_bits(qkv.onnx.attention(**inputs, q_num_heads=4, kv_num_heads=2).Y, qkv.onnx.attention(**inputs).Y)


def test_present_is_past_and_new():
    inputs = with_cache("past")
    outputs = qkv.onnx.attention(**inputs)
    same_bits(outputs.present_key, np.concatenate((inputs["past_key"], inputs["K"]), axis=2))
    same_bits(outputs.present_value, np.concatenate((inputs["past_value"], inputs["V"]), axis=2))


def test_present_without_past_is_no_copy():
    inputs = arrays()
    outputs = qkv.onnx.attention(**inputs)
    assert np.shares_memory(outputs.present_key, inputs["K"])
    assert np.shares_memory(outputs.present_value, inputs["V"])


@pytest.mark.parametrize("is_causal", [0, 1])
def test_a_past_of_no_keys_is_none(is_causal):
    inputs = arrays()
    past = {"past_key": inputs["K"][:, :, :0], "past_value": inputs["V"][:, :, :0]}
    outputs = qkv.onnx.attention(**inputs, **past, is_causal=is_causal)
    expected = qkv.onnx.attention(**inputs, is_causal=is_causal)
    for own, other in zip(outputs[:3], expected[:3], strict=True):
        same_bits(own, other)


def test_keys_that_do_not_count_are_not_read():
    inputs = with_cache("whole")
    expected = qkv.onnx.attention(**inputs, is_causal=1).Y
    for batch, length in enumerate(inputs["nonpad_kv_seqlen"]):
        inputs["K"][batch, :, length:] = np.nan
        inputs["V"][batch, :, length:] = np.inf
    same_bits(qkv.onnx.attention(**inputs, is_causal=1).Y, expected)


@pytest.mark.parametrize("dtype", [np.bool_, np.float32, *HALVES])
def test_a_short_mask_closes_the_keys_after_it(dtype):
    inputs = arrays()
    short = grid((3, 4), 4) > 0 if dtype == np.bool_ else grid((3, 4), 4).astype(dtype)
    whole = np.full((3, 5), False if dtype == np.bool_ else -np.inf, dtype)
    whole[:, :4] = short
    options = {"qk_matmul_output_mode": 2, "return_qk_matmul_output": True}
    own, expected = (qkv.onnx.attention(**inputs, attn_mask=mask, **options) for mask in (short, whole))
    same_bits(own.Y, expected.Y)
    same_bits(own.qk_matmul_output, expected.qk_matmul_output)
    assert np.all(own.qk_matmul_output[..., 4] == -np.inf)


def test_a_mask_of_one_column_is_repeated_in_opset_23_alone():
    inputs = {**arrays(), "attn_mask": np.array([[True], [False], [True]])}
    for opset, keys_of_row_0 in ((23, 5), (24, 1), (25, 1)):
        asked = model(inputs, ("Y", "", "", "weights"), opset, qk_matmul_output_mode=3)
        weights = of_qkv(asked, inputs)[1]
        assert np.all((weights > 0).sum(-1) == [keys_of_row_0, 0, keys_of_row_0])


@pytest.mark.parametrize("mask_dtype", [np.float32, np.float64])
def test_a_mask_keeps_its_own_width(mask_dtype):
    inputs = arrays(dtype=np.float16)
    # 2048 in float16.
    mask = np.array([2048, 2049, 2048, 2049, 2048], mask_dtype)
    expected, _ = textbook(*grouped(inputs), bias=mask)
    np.testing.assert_allclose(qkv.onnx.attention(**inputs, attn_mask=mask).Y, expected, rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64])
def test_whole_numbers_are_added(dtype):
    inputs = arrays()
    mask = np.array([0, 1, 0, 2, 1], dtype)
    expected = qkv.onnx.attention(**inputs, attn_mask=mask.astype(np.float32)).Y
    np.testing.assert_allclose(qkv.onnx.attention(**inputs, attn_mask=mask).Y, expected, rtol=1e-6, atol=1e-6)
    asked = {**inputs, "attn_mask": mask}
    np.testing.assert_allclose(of_onnx(model(asked), asked)[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", HALVES)
def test_16_bits_are_no_further_from_float64_than_the_reference(dtype):
    inputs = arrays(len_query=16, len_key=32, dtype=dtype)
    expected, _ = textbook(*grouped(inputs))
    own, of_reference = qkv.onnx.attention(**inputs).Y, of_onnx(model(inputs), inputs)[0]
    assert own.dtype == dtype
    error, error_of_reference = (np.abs(Y.astype(np.float64) - expected).max() for Y in (own, of_reference))
    assert error <= error_of_reference


@pytest.mark.parametrize(
    ("dtype", "value_dtype"),
    [
        (np.float32, np.float16),
        (np.float16, np.float32),
        (ml_dtypes.bfloat16, np.float16),
        (np.float32, np.float64),
        (np.float64, np.float32),
    ],
)
def test_values_may_have_another_type(dtype, value_dtype):
    inputs = arrays(dtype=dtype)
    inputs["V"] = inputs["V"].astype(value_dtype)
    expected, _ = textbook(*grouped(inputs))
    outputs = qkv.onnx.attention(**inputs)
    assert outputs.Y.dtype == dtype and outputs.present_value.dtype == value_dtype
    near(outputs.Y, expected)


def test_double_precision_is_float64_rounded_once():
    inputs = arrays()
    wide = {name: array.astype(np.float64) for name, array in inputs.items()}
    options = {"qk_matmul_output_mode": 3, "return_qk_matmul_output": True}
    own = qkv.onnx.attention(**inputs, **options, softmax_precision=11)
    expected = qkv.onnx.attention(**wide, **options)
    same_bits(own.Y, expected.Y.astype(np.float32))
    same_bits(own.qk_matmul_output, expected.qk_matmul_output.astype(np.float32))


@pytest.mark.parametrize("precision", [1, 10, 16])
def test_precision_is_never_less_than_float32(precision):
    inputs = arrays(dtype=np.float16)
    same_bits(qkv.onnx.attention(**inputs, softmax_precision=precision).Y, qkv.onnx.attention(**inputs).Y)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, *HALVES])
@pytest.mark.parametrize("scale", [None, 0.25, -0.5, 0.0])
def test_the_stages_are_in_the_order_of_computation(scale, dtype):
    inputs = arrays(dtype=dtype)
    query, key, value = grouped(inputs)
    mask = grid((3, 5), 4)
    mask[0] = -np.inf
    query, key = query.astype(np.float64), key.astype(np.float64)
    scaled = query @ key.swapaxes(2, 3) * (1 / np.sqrt(8) if scale is None else scale)
    capped = 2 * np.tanh(scaled / 2)
    weights = textbook(np.zeros_like(query), key, value, bias=capped + mask)[1]
    for mode, expected in enumerate((scaled, capped, capped + mask, weights)):
        options = {"scale": scale, "softcap": 2.0, "qk_matmul_output_mode": mode}
        outputs = qkv.onnx.attention(**inputs, attn_mask=mask, **options, return_qk_matmul_output=True)
        assert outputs.qk_matmul_output.dtype == dtype
        near(outputs.qk_matmul_output, expected)


@pytest.mark.parametrize("mode", range(4))
def test_scores_are_there_only_if_asked_for(mode):
    assert qkv.onnx.attention(**arrays(), qk_matmul_output_mode=mode).qk_matmul_output is None


@pytest.mark.parametrize("cache", ["none", "past", "whole"])
def test_options_do_not_become_matrices(cache, engine_calls):
    length = 2048
    inputs = arrays(heads=1, key_heads=1, len_query=length, len_key=length, batch=1)
    if cache == "past":
        inputs |= {"past_key": inputs["K"][:, :, :16], "past_value": inputs["V"][:, :, :16]}
    if cache == "whole":
        inputs["nonpad_kv_seqlen"] = np.array([length - 16])

    def peak(**options):
        tracemalloc.start()
        try:
            qkv.onnx.attention(**inputs, is_causal=1, left_window_size=100, right_window_size=0, **options)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak() < length * length / 8
    assert engine_calls[0]["attn_mask"] is None
    # What is measured is NumPy's memory; a mask that is too short is copied.
    assert peak(attn_mask=np.ones((length, length - 1), np.bool_)) > length * length


# The evaluator.


def test_outputs_without_a_name_are_left_out():
    inputs = arrays()
    asked = model(inputs, ("Y", "", "present_value"))
    Y, present_value = of_qkv(asked, inputs)
    same_bits(Y, qkv.onnx.attention(**inputs).Y)
    same_bits(present_value, inputs["V"])


def test_an_output_without_a_name_is_no_input_of_the_next_node():
    inputs = arrays(heads=2, dim_value=8)
    first = helper.make_node("Attention", ["Q", "K", "V"], ["Y", "", "", "scores"])
    second = helper.make_node("Attention", ["Y", "K", "V", "", "", "", ""], ["Z"])
    asked = model(inputs, ("Z",))
    del asked.graph.node[:]
    asked.graph.node.extend([first, second])
    once = qkv.onnx.attention(**inputs).Y
    same_bits(of_qkv(asked, inputs)[0], qkv.onnx.attention(once, inputs["K"], inputs["V"]).Y)


# Bad input.


PAST = {"past_key": arrays(len_key=4)["K"], "past_value": arrays(len_key=4)["V"]}
PACKED = {name: as_packed(array) for name, array in arrays().items()}
BAD_TYPES = [
    ({"Q": grid((2, 4, 3, 8)).astype(np.int32)}, "Q: got dtype int32, want one of float32, float64, float16"),
    ({"V": grid((2, 2, 5, 6)) > 0}, "V: got dtype bool, want one of float32"),
    ({"K": grid((2, 2, 5, 8)).astype(np.float16)}, "K: got dtype float16, want float32, as Q has"),
    (
        {**PAST, "past_key": grid((2, 2, 4, 8)).astype(np.float16)},
        "past_key: got dtype float16, want float32",
    ),
    ({"nonpad_kv_seqlen": np.array([5.0, 5.0])}, "nonpad_kv_seqlen: got dtype float64, want int64"),
    ({"attn_mask": np.zeros((3, 5), np.complex64)}, "attn_mask: got dtype complex64, want bool, or numbers"),
]
BAD_VALUES = [
    ({"Q": grid((3, 8))}, "Q: got shape (3, 8), want (batch, heads, len, dim) or (batch, len, heads · dim)"),
    (PACKED, "q_num_heads: got none, want how many heads the last axis of Q holds"),
    ({**PACKED, "q_num_heads": 4}, "kv_num_heads: got none, want how many heads the last axis of K holds"),
    ({**PACKED, "q_num_heads": 5}, "q_num_heads: got 5, want a divisor of 32, the last axis of Q"),
    ({**PACKED, "q_num_heads": 0}, "q_num_heads: got 0, want a divisor of 32"),
    (
        {**PACKED, "q_num_heads": 4, "kv_num_heads": 8},
        "kv_num_heads: got 8, want a divisor of 12, the last axis of V",
    ),
    ({"Q": PACKED["Q"], "q_num_heads": 4}, "K: got 4 axes, want 3, as Q has"),
    ({"V": PACKED["V"], "kv_num_heads": 2}, "V: got 3 axes, want 4, as Q has"),
    ({"q_num_heads": 2}, "q_num_heads: got 2, want 4, as Q has"),
    ({"kv_num_heads": 4}, "kv_num_heads: got 4, want 2, as K has"),
    ({"Q": grid((2, 3, 3, 8))}, "K: got 2 heads, want a number that divides the 3 heads of Q"),
    ({"K": grid((1, 2, 5, 8))}, "K: got shape (1, 2, 5, 8), want (2, heads, len, 8), as Q has"),
    ({"K": grid((2, 2, 5, 4))}, "K: got shape (2, 2, 5, 4), want (2, heads, len, 8), as Q has"),
    ({"V": grid((2, 2, 4, 6))}, "V: got shape (2, 2, 4, 6), want (2, 2, 5, dim), as K has"),
    ({"past_key": PAST["past_key"]}, "past_value: got none beside past_key, want both or neither"),
    ({"past_value": PAST["past_value"]}, "past_key: got none beside past_value, want both or neither"),
    ({**PAST, "past_key": grid((2, 4, 4, 8))}, "past_key: got shape (2, 4, 4, 8), want (2, 2, len_past, 8)"),
    (
        {**PAST, "past_value": grid((2, 2, 4, 8))},
        "past_value: got shape (2, 2, 4, 8), want (2, 2, len_past, 6)",
    ),
    ({**PAST, "past_value": grid((2, 2, 3, 6))}, "past_value: got 3 values, want 4, as past_key has"),
    ({**PAST, "nonpad_kv_seqlen": np.array([5, 5])}, "nonpad_kv_seqlen: got lengths beside a past, want one"),
    ({"nonpad_kv_seqlen": np.array([5])}, "nonpad_kv_seqlen: got shape (1,), want (2,), one for each batch"),
    ({"nonpad_kv_seqlen": np.array([5, 6])}, "nonpad_kv_seqlen: got [5, 6], want 0 to 5, the number of keys"),
    (
        {"nonpad_kv_seqlen": np.array([-1, 5])},
        "nonpad_kv_seqlen: got [-1, 5], want 0 to 5, the number of keys",
    ),
    (
        {"nonpad_kv_seqlen": np.array([2, 4]), "attn_mask": grid((3, 3))},
        "attn_mask: got 3 columns, want at least 4",
    ),
    ({"attn_mask": grid((3, 6))}, "attn_mask: got shape (3, 6), want (2, 4, 3, 5)"),
    ({"attn_mask": grid((2, 5))}, "attn_mask: got shape (2, 5), want (2, 4, 3, 5)"),
    ({"is_causal": 2}, "is_causal: got 2, want 0 or 1"),
    ({"qk_matmul_output_mode": 4}, "qk_matmul_output_mode: got 4, want 0, 1, 2 or 3"),
    ({"qk_matmul_output_mode": -1}, "qk_matmul_output_mode: got -1, want 0, 1, 2 or 3"),
    ({"softcap": -1.0}, "softcap: got -1.0, want a number above 0, or 0 for none"),
    ({"softcap": float("nan")}, "softcap: got nan, want a number above 0, or 0 for none"),
    ({"softmax_precision": 2}, "softmax_precision: got 2, want one of 1 (FLOAT), 10 (FLOAT16), 11 (DOUBLE)"),
    ({"scale": float("inf")}, "scale: got inf, want a finite"),
    ({"left_window_size": -2}, "left_window_size: got -2, want a number of positions, or -1 for no bound"),
    ({"right_window_size": -2}, "right_window_size: got -2, want a number of positions, or -1 for no bound"),
]


@pytest.mark.parametrize(
    ("error", "wrong", "message"),
    [(TypeError, *bad) for bad in BAD_TYPES] + [(ValueError, *bad) for bad in BAD_VALUES],
    ids=[message for _, message in BAD_TYPES + BAD_VALUES],
)
def test_bad_input_is_named(error, wrong, message):
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        qkv.onnx.attention(**{**arrays(), **wrong})
