#!/usr/bin/env python3
"""ratios.py README > ratios.svg: the measured ratios of two tables of benchmarks/README.md as bars.

    python3 docs/images/ratios.py benchmarks/README.md > docs/images/ratios.svg

Every row of both tables is drawn, also those where autopar is slower."""
import math
import re
import sys

LEFT, WIDTH, ROW, LEAST, MOST = 190, 620, 20, 0.5, 20


def rows_under(text, header):
    """The cells of the rows of the table that begins with `header`."""
    lines = text[text.index(header):].split("\n")[2:]
    for line in lines:
        if not line.startswith("|"):
            return
        yield [cell.strip() for cell in line.strip("|").split("|")]


def middle(cell):
    """Of "1.03 x to 1.05 x"."""
    numbers = [float(number) for number in re.findall(r"\d+\.\d+", cell)]
    return sum(numbers) / len(numbers)


def groups_of(text):
    one = [(row[0], row[1]) for row in rows_under(text, "| work | samples/s | in a loop |")]
    groups = [("1 H200: samples/s, unwrapped libtorch = 1", one)]
    for links, work, *_, ratio in rows_under(text, "| links | work | plan |"):
        if links:
            groups.append((f"2 H200, {links}: speed, PyTorch's best setting = 1", []))
        groups[-1][1].append((work, ratio))
    return groups


def x_of(ratio):
    return LEFT + WIDTH * math.log(ratio / LEAST) / math.log(MOST / LEAST)


def draw(groups):
    height = 44 + sum(30 + ROW * len(rows) for _, rows in groups)
    yield (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 70} {height}" role="img" '
           'aria-label="measured speed of autopar against PyTorch">')
    yield ("<style>text{font:12px sans-serif;fill:#222}.name,.tick{fill:#555}.group{font-weight:bold}"
           ".faster{fill:#2f9e6e}.slower{fill:#c0603a}.axis{stroke:#ccc;stroke-width:.7}.one{stroke:#222}</style>")
    yield f'<rect width="{LEFT + WIDTH + 70}" height="{height}" fill="#fff"/>'
    for tick in (0.5, 1, 2, 5, 10, 20):
        kind = "axis one" if tick == 1 else "axis"
        yield f'<line class="{kind}" x1="{x_of(tick):.1f}" x2="{x_of(tick):.1f}" y1="8" y2="{height - 26}"/>'
        yield f'<text class="tick" text-anchor="middle" x="{x_of(tick):.1f}" y="{height - 10}">{tick:g} x</text>'
    y = 8
    for title, rows in groups:
        yield f'<text class="group" x="8" y="{y + 18}">{title}</text>'
        y += 26
        for work, stated in rows:
            ratio = middle(stated)
            left, right = sorted((x_of(1), x_of(ratio)))
            kind = "faster" if ratio >= 1 else "slower"
            yield f'<text class="name" text-anchor="end" x="{LEFT - 8}" y="{y + 13}">{work}</text>'
            yield f'<rect class="{kind}" x="{left:.1f}" y="{y + 3}" width="{right - left:.1f}" height="{ROW - 7}"/>'
            yield f'<text x="{max(right, x_of(1)) + 5:.1f}" y="{y + 13}">{stated.replace(" x", "")}</text>'
            y += ROW
        y += 4
    yield "</svg>"


print("\n".join(draw(groups_of(open(sys.argv[1], encoding="utf-8").read()))))
