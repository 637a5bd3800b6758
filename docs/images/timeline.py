#!/usr/bin/env python3
"""timeline.py PAGE.html > timeline.svg: the drawing alone of a page that `autopar simulate --html` has written.

The words that appear under the mouse are left out: they are most of the page, and an image shows none."""
import re
import sys

page = open(sys.argv[1], encoding="utf-8").read()
style = re.search(r"<style>(.*?)</style>", page, re.S).group(1)
title = re.search(r"<title>(.*?)</title>", page, re.S).group(1)
width, height, body = re.search(r'<svg width="([^"]+)" height="([^"]+)"[^>]*>\n(.*?)</svg>', page, re.S).groups()
body = re.sub(r"<title>.*?</title>", "", body, flags=re.S)
print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{title}">')
print(f"<style>{style}</style>")
print(f'<rect width="{width}" height="{height}" fill="#fff" stroke="none"/>')
print(body + "</svg>")
