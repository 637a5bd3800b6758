"""class_sizes.py ROOT: fails where a class of src has over 30 member functions or 14 fields.

Such a class is two classes. Where it is not, its comment gives the reason in a sentence that begins with "Size:". Nested classes,
constants, deleted and defaulted members do not count.
"""

import pathlib
import re
import sys

METHODS, FIELDS = 30, 14
CLASS = re.compile(r"\b(?:class|struct)\s+([\w:]+)(?:\s+final)?\s*(?::[^;{()]*)?\{")
OTHER = re.compile(r"(using|typedef|friend|static_assert|enum|class|struct|template\s*<[^>]*>\s*(?:class|struct|using))\b")


def without_text(text):
    """The same code, of the same lines, without comments, strings and directives."""
    text = re.sub(r'R"\((.|\n)*?\)"', lambda raw: '""' + "\n" * raw.group(0).count("\n"), text)
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r'"(\\.|[^"\\\n])*"', '""', text)
    text = re.sub(r"'(\\.|[^'\\\n])'", "' '", text)
    return re.sub(r"^[ \t]*#[^\n]*$", "", text, flags=re.MULTILINE)


def block_end(text, begin):
    """The place behind the brace that closes the one before `begin`."""
    depth = 1
    while depth and begin < len(text):
        depth += {"{": 1, "}": -1}.get(text[begin], 0)
        begin += 1
    return begin


def members(text, begin):
    """Declarations of a class body, with {} for blocks."""
    found, statement = [], ""
    while begin < len(text):
        char = text[begin]
        if char == "}":
            return found
        begin += 1
        if char == "{":
            begin = block_end(text, begin)
            is_function = re.search(r"\)\s*(const|noexcept|override|final|->[\w:<>,&*\s]+|:[^:].*|\s)*$", statement, re.DOTALL)
            if is_function:
                found.append(statement)
                statement = ""
            elif re.match(r"\s*(class|struct|enum|union)\b", statement):
                begin = text.index(";", begin) + 1
                statement = ""
            else:
                statement += "{}"
        elif char == ";":
            found.append(statement)
            statement = ""
        elif char == ":" and re.match(r"\s*(public|private|protected)\s*$", statement):
            statement = ""
        else:
            statement += char
    return found


def count(declarations):
    methods = fields = 0
    for declaration in declarations:
        declaration = declaration.strip()
        if not declaration or OTHER.match(declaration) or re.search(r"=\s*(delete|default)$", declaration):
            continue
        for _ in range(4):
            declaration = re.sub(r"<[^<>]*>", "", declaration)
        declared = declaration.replace("{}", "").split("=")[0]
        if "operator" in declaration or "(" in declared:
            methods += 1
        elif not re.match(r"(inline |constexpr |const )*static\b", declared):
            fields += 1 + declared.count(",")
    return methods, fields


def faults(path, root):
    text = path.read_text()
    code = without_text(text)
    lines = text.split("\n")
    for match in CLASS.finditer(code):
        if re.search(r"enum\s*$", code[:match.start()]):
            continue
        methods, fields = count(members(code, match.end()))
        if methods <= METHODS and fields <= FIELDS:
            continue
        line = code.count("\n", 0, match.start())
        comment = line
        while comment > 0 and lines[comment - 1].lstrip().startswith("//"):
            comment -= 1
        if not any("Size:" in each for each in lines[comment:line]):
            yield f"{path.relative_to(root)}:{line + 1}: {match.group(1)} has {methods} member functions and {fields} fields"


def main():
    root = pathlib.Path(sys.argv[1])
    files = sorted(path for kind in ("*.hpp", "*.cpp", "*.cuh") for path in (root / "src").rglob(kind))
    found = [fault for path in files for fault in faults(path, root)]
    for fault in found:
        print(fault)
    print(f"{len(files)} files, {len(found)} classes with over {METHODS} member functions or {FIELDS} fields")
    return 1 if found or not files else 0


sys.exit(main())
