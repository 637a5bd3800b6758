#!/usr/bin/env python3
"""Writes unicode_tables.hpp from Python's unicodedata: python3 make_unicode_tables.py > unicode_tables.hpp

What BERT's tokenizer asks of Unicode: which characters are punctuation, spaces, control characters or marks, and what a
character becomes in lower case without its marks. Syllables of Hangul are computed, not listed (unicode.cpp); the
compatibility ideographs of CJK stay as they are.
"""
import unicodedata

ALL = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
NOT_LISTED = set(range(0xAC00, 0xD7A4)) | set(range(0xF900, 0xFB00)) | set(range(0x2F800, 0x2FA20))


def folded(c):
    decomposed = unicodedata.normalize("NFD", chr(c).lower())
    return "".join(x for x in decomposed if unicodedata.category(x) != "Mn")


def ranges(belongs):
    out = []
    for c in ALL:
        if not belongs(c):
            continue
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def runs(single):
    """Runs of characters, each `step` after the one before, that all move by the same difference."""
    keys, out, i = sorted(single), [], 0
    while i < len(keys):
        best, best_step = i, 1
        for step in (1, 2):
            j = i
            while j + 1 < len(keys) and keys[j + 1] == keys[j] + step and single[keys[j + 1]] == single[keys[j]] + step:
                j += 1
            if j > best:
                best, best_step = j, step
        out.append((keys[i], keys[best], best_step, single[keys[i]] - keys[i]))
        i = best + 1
    return out


def printed(name, type_, rows):
    print(f"\ninline constexpr {type_} {name}[] = {{")
    line = "   "
    for row in rows:
        text = " {" + ", ".join(str(x) for x in row) + "},"
        if len(line) + len(text) > 119:
            print(line)
            line = "   "
        line += text
    print(line)
    print("};")


single, several = {}, {}
for c in ALL:
    if c in NOT_LISTED:
        continue
    to = folded(c)
    if len(to) == 1 and to != chr(c):
        single[c] = ord(to)
    elif len(to) > 1:
        several[c] = [ord(x) for x in to]

print("#pragma once")
print()
print(f"// Unicode {unicodedata.unidata_version}, written by make_unicode_tables.py.")
print("// clang-format off")
print()
print("#include <cstdint>")
print()
print("namespace bert_data::tables {")
print()
print("struct Range {")
print("  std::uint32_t first, last;")
print("};")
print("/// Each `step`th character from `first` to `last` becomes the one `moved` after it.")
print("struct Run {")
print("  std::uint32_t first, last, step;")
print("  std::int32_t moved;")
print("};")
print("struct Several {")
print("  std::uint32_t from, to[3];  // ends with 0 where there are fewer")
print("};")
printed("kPunctuation", "Range", ranges(lambda c: unicodedata.category(chr(c)).startswith("P")))
printed("kMarks", "Range", ranges(lambda c: unicodedata.category(chr(c)) == "Mn"))
printed("kControl", "Range", ranges(lambda c: unicodedata.category(chr(c)) in ("Cc", "Cf")))
printed("kSpaces", "Range", ranges(lambda c: unicodedata.category(chr(c)) == "Zs"))
printed("kFolded", "Run", runs(single))
printed("kFoldedToSeveral", "Several",
        [(c, "{" + ", ".join(str(x) for x in to) + "}") for c, to in sorted(several.items())])
print("\n}  // namespace bert_data::tables")
