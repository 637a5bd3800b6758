"""shape.py ROOT: fails where README.md's table "Header-mostly" is not true.

A row is | `component` lines, `component` lines, … | headers or compiled | why |. Lines are those of include/autopar/<component> and
src/<component>, which may differ by 10 % or 50 lines. A component of headers has no sources. Each folder of both is in the table.
"""

import pathlib
import re
import sys

PART, FEW = 0.10, 50
SUFFIXES = {".cpp", ".hpp", ".cu", ".cuh"}


def folders(root, name):
    return [folder for folder in (root / "include/autopar" / name, root / "src" / name) if folder.is_dir()]


def lines_of(folder):
    return sum(path.read_bytes().count(b"\n") for path in folder.rglob("*") if path.suffix in SUFFIXES)


def rows(page):
    """(component, lines, form) of the table."""
    section = page.read_text().split("## Header-mostly")[-1].split("\n## ")[0]
    for components, form in re.findall(r"^\| (`.*?) \| (\w+) \|", section, re.MULTILINE):
        for name, lines in re.findall(r"`(\w+)` ([\d,]+\d|\d)", components):
            yield name, int(lines.replace(",", "")), form


def faults(root):
    told = {}
    for name, lines, form in rows(root / "README.md"):
        told[name] = lines
        counted = sum(map(lines_of, folders(root, name)))
        if abs(lines - counted) > max(PART * counted, FEW):
            yield f"README.md says that {name} has {lines} lines; it has {counted}"
        if form == "headers" and (root / "src" / name).is_dir():
            yield f"README.md says that {name} is headers, but there is src/{name}"
        if form not in ("headers", "compiled"):
            yield f"README.md says that {name} is '{form}'; say headers or compiled"
    there = {path.name for top in ("include/autopar", "src") for path in (root / top).iterdir() if path.is_dir()}
    for name in sorted(there - told.keys()):
        yield f"README.md leaves out {name}"


def main():
    root = pathlib.Path(sys.argv[1])
    found = list(faults(root))
    for fault in found:
        print(fault)
    print(f"{len(list(rows(root / 'README.md')))} components, {len(found)} faults")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
