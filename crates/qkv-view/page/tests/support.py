"""What tests of the lesson read off the page."""

from conftest import numbers

PAIRS = ["scores", "scaled", "masked", "weights"]


def at(figure, row, column):
    return f'#matrix-{figure} td[data-row="{row}"][data-column="{column}"]'


def text(page, figure):
    """Numbers as cells show them; minus signs and ∞ as the command writes them."""
    plain = "(one) => (one.querySelector('input')?.value ?? one.textContent)"
    shown = f"(line) => Array.from(line.querySelectorAll('td'), {plain})"
    rows = page.evaluate(f"Array.from(document.querySelectorAll('#matrix-{figure} tbody tr'), {shown})")
    return [[cell.replace("−", "-").replace("∞", "inf") for cell in row] for row in rows]


def shown(values, digits=4):
    return [[f"{x:.{digits}f}" for x in row] for row in numbers(values)]


def rows_on(page, figure):
    heads = f"#matrix-{figure} tbody tr"
    return page.eval_on_selector_all(
        heads, "(all) => all.map((one, at) => one.classList.contains('on') ? at : -1).filter((at) => at >= 0)"
    )


def settled(page, fragment):
    page.wait_for_function("(wanted) => location.hash === wanted", arg=fragment, timeout=3000)


def strip(page):
    return page.inner_text(".strip").replace("−", "-").replace("\n", " ")
