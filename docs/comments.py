#!/usr/bin/env python3
"""A header as Doxygen is to read it (INPUT_FILTER): what our comments mean without a word of markup. Lines stay where they are.

- The comment that a header opens with is the file's, and that of the class by the file's name (nn/module.h: Module) if that
  has none of its own.
- Indented lines of a comment are a listing: C++ where the last ends as C++ does, else a table.
- A line that ends with its sentence, where more would fit, ends there; "Errors:" stands out.
- `Tensor a, b;  ///< text`: the text is of both.
- What follows without a blank line and has the name of what is documented above it is its overload.
- A function of one line and no comment is told by what it calls.
- What is private is left out.
- Defaulted members and destructors need no words, deleted ones have them here, and formatters are fmt's.
"""

import re
import sys

NAME = re.compile(r"(operator *(?:\(\)|\[\]|[^\w\s(]+|[\w:]+(?= *\())|~?\w+) *\(")


def is_comment(line):
    return line.lstrip().startswith("///")


def opening(lines):
    """Makes the first comment of a header the file's; returns its lines."""
    end = next((i for i, line in enumerate(lines) if not line.startswith("//")), 0)
    if end and lines[end] == "#pragma once":
        lines[:end] = ["/" + line for line in lines[:end]]
        lines[end] = "/// @file"
        return lines[:end]
    return []


def listings(lines):
    """<pre> or @code around indented lines of comments."""
    block = re.compile(r"( *///)   +\S")
    i = 0
    while i < len(lines):
        if not block.match(lines[i]):
            i += 1
            continue
        begin, margin = i, block.match(lines[i])[1]
        end = begin
        while i < len(lines) and (block.match(lines[i]) or lines[i].rstrip() == margin):
            end = i if block.match(lines[i]) else end
            i += 1
        texts = [line[len(margin) + 3 :] for line in lines[begin : end + 1]]
        is_code = re.search(r"[;{}]( *//.*)?$", texts[-1])
        if not is_code:
            texts = [text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") for text in texts]
        first, last = ("@code{.cpp}", "@endcode") if is_code else ("<pre>", "</pre>")
        texts[-1] += last
        lines[begin : end + 1] = [f"{margin} {text}" for text in texts]
        if is_code and lines[begin - 1] == margin:
            lines[begin - 1] += " " + first  # else the first line is set in
        else:
            lines[begin] = f"{margin} {first}{texts[0]}"


def sentences(lines):
    for i, line in enumerate(lines[:-1]):
        if is_comment(line) and not line.lstrip().startswith("///<"):
            lines[i] = re.sub(r"(?<=[.;] )(Errors?)\b(?=[:,])|(?<=/// )(Errors?)\b(?=[:,])", r"<b>%\1\2</b>", line)
            next_word = re.match(r" */// (\w\S*)", lines[i + 1])
            if line.endswith(".") and next_word and len(line) + 1 + len(next_word[1]) < 98:
                lines[i] += "<br/>"


def shared_notes(lines):
    """One declaration each, so that each has the words."""
    for i, line in enumerate(lines):
        found = re.match(r"( *)((?:const )?[\w:]+(?:<[\w:, ]+>)?) ([\w= .<>{},/-]+, [^()]*); +///< (.*)", line)
        if found:
            indent, kind, names, words = found.groups()
            names = re.split(r", (?![^{]*\})", names)
            lines[i] = indent + " ".join(f"/** {words} */ {kind} {name};" for name in names)


def declared(lines, i):
    """The name of the function that is declared at line i, if any."""
    while i < len(lines) and lines[i].lstrip().startswith("template <"):
        i += 1
    found = NAME.search(re.sub(r"\[\[\w+\]\]", "", lines[i])) if i < len(lines) else None
    return found and found[1]


def overloads(lines):
    """`name` is that of the function above, `indent` its own."""
    name = indent = None
    for i, line in enumerate(lines):
        if is_comment(line):
            name, indent = None, len(line) - len(line.lstrip())
            if i + 1 < len(lines) and not is_comment(lines[i + 1]):
                name = declared(lines, i + 1)
        elif not line.strip():
            name = None
        elif name and not is_comment(lines[i - 1]) and len(line) - len(line.lstrip()) == indent and declared(lines, i) == name:
            if not lines[i - 1].lstrip().startswith("template <"):
                lines[i] = line[:indent] + "/** @overload */ " + line[indent:]


def untold(lines):
    """What nobody would write a comment for."""
    one_line = re.compile(r"( *)([^/{}]*\w.*\)(?: const)?) \{ (?:return )?([^;]*\w\(.*\));? \}$")
    for i, line in enumerate(lines):
        if line.startswith("struct fmt::formatter"):
            begin = i - 1  # template <>
            while is_comment(lines[begin - 1]):
                begin -= 1
            lines[begin : i + 1] = [""] * (i + 1 - begin)
        if i and (is_comment(lines[i - 1]) or "/**" in line or "///<" in line):
            continue
        found = one_line.match(line)
        if found and not re.search(r"\w_\b(?!\()|\b(impl|dense|detail|std)\b", found[3]):
            lines[i] = f"{found[1]}/** `{found[3]}` */ {line.lstrip()}"
        if re.search(r"\) (noexcept )?= default;$", line) or re.match(r" *(virtual )?~\w+\(\)", line):
            lines[i] = "/** @private */ " + line
        elif line.endswith(" = delete;"):
            lines[i] += "  ///< Deleted: " + ("it is not assigned." if "operator=" in line else "it is not copied.")


def without_private(lines):
    is_open = False
    for i, line in enumerate(lines):
        if line == " private:":
            lines[i], is_open = line + "  /// @cond", True
        elif is_open and (line in (" public:", " protected:") or line.startswith("}")):
            lines[i], is_open = "/** @endcond */ " + line, False


def class_comment(text, path, comment):
    """The opening comment once more, at the end, for the class that has the file's name."""
    stem = path.rsplit("/", 1)[-1].removesuffix(".h").replace("_", "")
    space = re.search(r"^namespace ([\w:]+) \{", text, re.M)
    for found in re.finditer(r"^(.*)\n(?:template <.*>\n)?(?:class|struct) (\w+)[^;\n]*\{", text, re.M):
        if space and found[2].lower() == stem and not is_comment(found[1]):
            return [*comment, f"/// @class {space[1]}::{found[2]}"]
    return []


def filtered(text, path):
    lines = text.splitlines()
    lines += class_comment(text, path, opening(lines))
    sentences(lines)
    listings(lines)
    shared_notes(lines)
    overloads(lines)
    untold(lines)
    without_private(lines)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        sys.stdout.write(filtered(file.read(), sys.argv[1]))
