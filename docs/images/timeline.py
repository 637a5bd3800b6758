#!/usr/bin/env python3
"""timeline.py PAGE.html > timeline.svg: the timeline of a page of `autopar report`, as README shows it.

It is drawn anew at README's width, 830 pixels, in which all text is at least 12 pixels high. What appears under the mouse
is left out: an image shows none."""
import html
import re
import sys

WIDTH, LEFT, RIGHT, ROW, TOP = 830, 138, 66, 44, 62  # pixels
COMPUTE, WIRES = 22, 8
PLOT = WIDTH - LEFT - RIGHT

page = open(sys.argv[1], encoding="utf-8").read()
title = re.search(r"<h1>(.*?)</h1>", page).group(1)
section = re.search(r'<section id="timeline">(.*?)</section>', page, re.S).group(1)
step = re.search(r"predicted to take ([^.]*\.?\d* \w+)\.", section).group(1)
keys = re.findall(r'<span class="key"><i style="background:(#\w+)"></i>(.*?)</span>', section)
ranks = re.findall(r'<div style="height:\d+px">(rank [^<]*)<small>(waits .*?)</small>', section)
lanes = re.findall(r'<g class="lane predicted">(.*?)</g>\n', section, re.S)
axis = re.findall(r'<g><line class="axis" x1="([\d.]+)%".*?>([^<]*)</text></g>', section)


def x_of(percent):
    return LEFT + PLOT * float(percent) / 100


out = [
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {TOP + ROW * len(lanes) + 4}" role="img" '
    f'aria-label="{title}: {step} a step">',
    "<style>text{font:13px sans-serif;fill:#1d2430}.dim{font-size:12px;fill:#5b6470}"
    ".num{font-size:12px;fill:#fff;text-anchor:middle}.axis{stroke:#d9dde3}</style>",
    f'<rect width="{WIDTH}" height="{TOP + ROW * len(lanes) + 4}" fill="#fff"/>',
]
x = 8
for colour, word in keys:
    out.append(f'<rect x="{x}" y="8" width="12" height="12" rx="2" fill="{colour}"/><text x="{x + 17}" y="19">{word}</text>')
    x += 17 + 7 * len(html.unescape(word)) + 16
for percent, text in axis:
    at = f"{x_of(percent):.1f}"
    out.append(f'<line class="axis" x1="{at}" x2="{at}" y1="{TOP - 12}" y2="{TOP + ROW * len(lanes)}"/>'
               f'<text class="dim" text-anchor="middle" x="{at}" y="{TOP - 17}">{text}</text>')
for row, ((name, waits), lane) in enumerate(zip(ranks, lanes)):
    y = TOP + ROW * row
    out.append(f'<text x="8" y="{y + 16}">{name}</text><text class="dim" x="{WIDTH - RIGHT + 8}" y="{y + 16}">{waits}</text>')
    for bar in re.finditer(r'<rect class="bar ([\w-]+)" x="([\d.]+)%" width="([\d.]+)%" y="\d+" height="(\d+)" fill="(#\w+)">', lane):
        _, begin, width, height, colour = bar.groups()
        wide = height == "18"
        length = PLOT * float(width) / 100
        out.append(f'<rect x="{x_of(begin):.1f}" y="{y if wide else y + COMPUTE + 2}" width="{max(0.3, length - 0.4 * wide):.1f}" '
                   f'height="{COMPUTE if wide else WIRES}" fill="{colour}"/>')
    for number in re.finditer(r'<text class="num[^"]*" x="([\d.]+)%" y="\d+">(\d+)</text>', lane):
        percent, text = number.groups()
        inside = [float(w) for b, w in re.findall(r'<rect class="bar [\w-]+" x="([\d.]+)%" width="([\d.]+)%"', lane)
                  if float(b) <= float(percent) <= float(b) + float(w)]
        if inside and PLOT * max(inside) / 100 >= 5 + 7.5 * len(text):
            out.append(f'<text class="num" x="{x_of(percent):.1f}" y="{y + 16}">{text}</text>')
print("\n".join(out) + "\n</svg>")
