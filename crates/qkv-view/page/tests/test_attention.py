"""The page's own arithmetic, beside what the command prints."""

import math
import re

import pytest
from conftest import golden, modules
from support import numbers

STEPS = ["average", "q", "k", "v", "scores", "scaled", "masked", "weights", "output"]
# Numbers of JavaScript come as they are, infinities and NaN too.
CALL = "async ([module, name, ...given]) => (await import(module))[name](...given)"


@pytest.fixture
def call(open_page):
    page = open_page()
    return lambda module, name, *given: page.evaluate(CALL, [f"/{module}.js", name, *given])


def close(got, wanted):
    if math.isnan(wanted) or math.isinf(wanted):
        return repr(got) == repr(wanted)
    return abs(got - wanted) <= 2e-6 * max(1.0, abs(wanted)) and f"{got:.4f}" == f"{wanted:.4f}"


@pytest.mark.parametrize("name", ["first", "causal", "overflow"])
def test_every_number_is_the_engines(call, name):
    wanted = golden(name)
    steps = call("attention", "attentionSteps", wanted["lesson"])["steps"]
    assert [step["name"] for step in steps] == STEPS
    printed = sorted(wanted["steps"], key=lambda step: STEPS.index(step["name"]))
    for got, step in zip(steps, printed, strict=True):
        assert (got["formula"], got["shape"]) == (step["formula"], step["shape"])
        for row, line in zip(got["values"], numbers(step["values"]), strict=True):
            for x, y in zip(row, line, strict=True):
                # Beyond f32's digits four decimals say nothing.
                assert close(x, y) or (abs(y) > 1e4 and abs(x - y) <= 2e-6 * abs(y)), (
                    name,
                    got["name"],
                    x,
                    y,
                )


def test_a_scale_of_0_is_the_plain_average(call):
    lesson = {**golden("first")["lesson"], "scale": 0, "causal": True}
    steps = {step["name"]: step["values"] for step in call("attention", "attentionSteps", lesson)["steps"]}
    assert steps["weights"][1] == [0.5, 0.5, 0, 0, 0]
    for output, average in zip(steps["output"], steps["average"], strict=True):
        assert all(abs(x - y) < 1e-6 for x, y in zip(output, average, strict=True))


def test_a_row_that_may_attend_nothing_is_0(call):
    hidden = [-math.inf, -math.inf]
    assert call("attention", "softmaxRow", hidden) == [0, 0]
    assert call("attention", "weightedMean", hidden, [[1, math.nan], [math.inf, 2]]) == [0, 0]


def test_nothing_hides_a_nan_but_the_mask(call):
    assert [math.isnan(x) for x in call("attention", "softmaxRow", [0, math.nan, -math.inf])] == [
        True,
        True,
        False,
    ]
    assert all(math.isnan(x) for x in call("attention", "softmaxRow", [math.inf, 0]))
    # A hidden value changes nothing, whatever it holds.
    assert call("attention", "weightedMean", [1, -math.inf], [[3, 4], [math.nan, math.inf]]) == [3, 4]
    assert math.isnan(call("attention", "weightedMean", [1, 1], [[3, 4], [math.nan, 5]])[0])


def test_what_does_not_fit_is_refused_with_its_name(open_page):
    page = open_page()
    changes = [
        {"w_q": [[1, 2, 3], [4, 5, 6]]},
        {"w_k": [[1, 2], [3, 4], [5, 6]]},
        {"w_v": []},
        {"x": [[1, 2, 3], [1, 2]]},
        {"x": [["1", 2, 3]]},
        {"x": [[1, 2, 3]] * 65},
        {"x": None},
        {"scale": "1"},
        {"scale": 1e300},
    ]
    for change in changes:
        told = page.evaluate(
            "async (lesson) => { const { attentionSteps } = await import('/attention.js');"
            " try { attentionSteps(lesson); return ''; } catch (error) { return error.message; } }",
            {**golden("first")["lesson"], **change},
        )
        assert told.startswith(next(iter(change))), (change, told)


def test_numbers_are_written_as_the_command_writes_them(call):
    halfway = {0.03125: "0.0312", 0.09375: "0.0938", -0.03125: "-0.0312", 2.5: "2.5000", 1e-9: "0.0000"}
    for x, text in halfway.items():
        assert call("numbers", "fixed", x, 4) == text == f"{x:.4f}".replace("-0.0000", "0.0000")
    for x, text in {1e-5: "1.000e-5", 123456.0: "1.235e5", 99999.0: "99999.0000", 0.0: "0.0000"}.items():
        assert call("numbers", "printed", x) == text
    typed = {
        "−1,5": -1.5,
        " 2e3 ": 2000,
        ".5": 0.5,
        "1e39": None,
        "": None,
        "1;2": None,
        "Infinity": None,
        "0x1": None,
    }
    for text, x in typed.items():
        assert call("numbers", "parseNumber", text) == x


def test_what_the_scale_does_is_measured_as_the_command_does(call):
    recorded = golden("unscaled")
    for golden_steps, side in [(golden("first"), "with"), (recorded, "without")]:
        masked = next(step["values"] for step in golden_steps["steps"] if step["name"] == "masked")
        measured = call("measure", "measureRows", masked)
        wanted = recorded["scale"][0][side]
        for what in ["variance", "entropy", "gradient"]:
            assert abs(measured[what] - wanted[what]) < 1e-6, (side, what)
    assert call("measure", "measureRows", [[-math.inf, -math.inf], [1, 1]]) == {
        "variance": 0,
        "entropy": pytest.approx(math.log(2)),
        "gradient": 0.5,
    }


def test_random_numbers_are_normal_and_the_same_each_time(call):
    rows = call("measure", "normalRows", 64, 512, 1)
    assert rows == call("measure", "normalRows", 64, 512, 1) != call("measure", "normalRows", 64, 512, 2)
    numbers_drawn = [x for row in rows for x in row]
    count = len(numbers_drawn)
    moments = [sum(x**power for x in numbers_drawn) / count for power in (1, 2, 3, 4)]
    for moment, wanted, spread in zip(moments, [0, 1, 0, 3], [1, 2, 15, 96], strict=True):
        assert abs(moment - wanted) < 4 * math.sqrt(spread / count)


def test_modules_can_be_put_into_one_script(call):
    """Static imports of one line without renaming, no cycles, and each name at the top of one module only."""
    top = {}
    place = {name: at for at, name in enumerate(modules())}
    for name, text in modules().items():
        assert len(text.splitlines()) < 300, name
        assert "await import" not in text and not re.search(r"^await ", text, re.M), name
        for line in text.splitlines():
            if line.startswith("import "):
                found = re.fullmatch(r"import \{ ([\w, ]+) \} from '\./([\w-]+\.js)';", line)
                assert found and " as " not in line and place[found[2]] < place[name], line
            if line.startswith("export "):
                assert re.fullmatch(r"export \{ [\w, ]+ \};", line), line
            declared = re.match(r"(?:async )?(?:const|let|class|function)\*? (\w+)", line)
            if declared:
                assert top.setdefault(declared[1], name) == name, declared[1]
