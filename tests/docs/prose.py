"""prose.py ROOT: fails where READMEs and docs/ have sentences that are hard to read.

Of each page at most 10 % of the sentences have over 25 words, and none has over 40. Code blocks, tables, headings and addresses of
links do not count. A page with few sentences may have one long one. Pages that wait for an issue are excepted by name.
"""

import pathlib
import re
import sys

LONG, LONGEST, PART = 25, 40, 0.10

EXCEPTED = {
    "src/torch/OPERATORS.md",  # generated
}


def blocks(text):
    """Paragraphs and items of lists, as lines without breaks."""
    text = re.sub(r"```.*?```", "\n\n", text, flags=re.DOTALL)
    lines = []
    for line in text.split("\n"):
        if re.match(r"\s*[|#]", line):
            line = ""
        item = re.match(r"\s*([-*+]|\d+\.)\s+", line)
        if item:
            lines.append("")
            line = line[item.end():]
        lines.append(line)
    return [" ".join(block.split()) for block in re.split(r"\n\s*\n", "\n".join(lines))]


def sentences(text):
    for block in blocks(text):
        for sentence in re.split(r'(?<=[.!?])["»)*]*\s+', re.sub(r"\]\([^)]*\)", "]", block)):
            words = sum(1 for word in sentence.split() if re.search(r"\w", word))
            if words:
                yield words, sentence


def faults(page, root):
    found = list(sentences(page.read_text()))
    long = [sentence for sentence in found if sentence[0] > LONG]
    too_many = len(long) > max(1, PART * len(found))
    for words, sentence in long:
        if words > LONGEST or too_many:
            yield f"{page.relative_to(root)}: {words} words: {sentence}"


def main():
    root = pathlib.Path(sys.argv[1])
    pages = [page for folder in ("docs", "examples", "benchmarks", "include", "src", "tests") for page in (root / folder).rglob("*.md")]
    pages += root.glob("*.md")
    told = []
    for page in sorted(pages):
        if str(page.relative_to(root)) not in EXCEPTED:
            told += faults(page, root)
    for fault in told:
        print(fault)
    print(f"{len(pages)} pages, {len(told)} sentences to shorten")
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main())
