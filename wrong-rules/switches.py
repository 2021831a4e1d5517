"""Switches of wrong rules: where each stands, by function and expression, and how it is put there.

A switch says: within the function of this name (`Type::name` where the name alone is not enough), in any file of a folder,
this code becomes that. What is compared is tokens: white space, comments, and commas before a closing bracket do not matter.
It must be there exactly once, among all functions of that name. Where a function stands, and what is beside the code, does not
matter. Without a function, all of one file is looked through: a module's declaration, an import.
"""

import re
import tomllib
from difflib import SequenceMatcher
from typing import NamedTuple

TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\n]*|/\*.*?\*/)
    |b?r(?P<hashes>\#*)".*?"(?P=hashes)|[bc]?"(?:\\.|[^"\\])*"
    |b?'(?:\\(?:u\{[^}]*\}|x..|.)|[^'\\])'|'[A-Za-z_]\w*
    |\d\w*(?:\.\d\w*)?|(?:r\#)?[A-Za-z_]\w*
    |::|->|=>|==|!=|<=|>=|&&|\|\||[-+*/%^&|]=|\.\.=|\.\.|.""",
    re.X | re.S,
)
OPEN, CLOSED = {"(": ")", "[": "]", "{": "}"}, {")", "]", "}"}


class Token(NamedTuple):
    text: str
    start: int
    end: int


def all_tokens(text):
    """What stands in it, without comments."""
    return [Token(m[0], m.start(), m.end()) for m in TOKEN.finditer(text) if m.lastgroup != "skip"]


def tokens(text):
    """Also without commas before a closing bracket."""
    found = all_tokens(text)
    is_last = lambda i: found[i].text == "," and i + 1 < len(found) and found[i + 1].text in CLOSED
    return [token for i, token in enumerate(found) if not is_last(i)]


def pairs(code):
    """Of each opening bracket the closing one, and the other way round."""
    match, stack = {}, []
    for i, token in enumerate(code):
        if token.text in OPEN:
            stack.append(i)
        elif token.text in CLOSED and stack:
            match[i] = stack.pop()
            match[match[i]] = i
    return match


class Function(NamedTuple):
    name: str
    owner: str
    # Tokens, from what stands before `fn` on.
    start: int
    end: int


def functions(code):
    """All functions with bodies, and whose they are: the type or trait of the impl around them."""
    match, found, owners = pairs(code), [], []
    for i, token in enumerate(code):
        owners = [(owner, end) for owner, end in owners if i < end]
        before = code[i - 1].text if i else ";"
        if token.text in ("impl", "trait") and before in {";", "{", "}", "]", "unsafe", "pub", ")"}:
            body = next((j for j in range(i, len(code)) if code[j].text == "{"), None)
            if body in match:
                owners.append((owner_of([t.text for t in code[i + 1 : body]]), match[body]))
        elif token.text == "fn" and i + 1 < len(code) and re.match(r"\w", code[i + 1].text):
            body = i + 1
            while body < len(code) and code[body].text not in ("{", ";"):
                body = match.get(body, body) + 1
            if body < len(code) and code[body].text == "{" and body in match:
                start = i
                while start and code[start - 1].text not in (";", "{", "}", "]"):
                    start -= 1
                found.append(Function(code[i + 1].text, owners[-1][0] if owners else "", start, match[body] + 1))
    return found


def owner_of(header):
    """`<T> Trait for a::Type<T> where ...` is `Type`."""
    depth, parts = 0, []
    for text in header:
        depth += (text == "<") - (text == ">")
        if depth == 0 and text != ">":
            if text == "where":
                break
            parts = [] if text == "for" else parts + [text]
    parts = parts[: parts.index(":")] if ":" in parts else parts
    return next((text for text in reversed(parts) if re.match(r"[A-Za-z_]", text)), "")


def places(code, wanted, spans):
    """Where these tokens stand within the spans."""
    texts, size, found = [token.text for token in code], len(wanted), set()
    for start, end in spans:
        found.update(i for i in range(start, end - size + 1) if texts[i] == wanted[0] and texts[i : i + size] == wanted)
    return sorted(found)


class Misplaced(Exception):
    """A switch that does not fit."""


class Source:
    """A file, into which switches are put."""

    def __init__(self, name, text):
        self.name, self.text = name, text
        self.code = tokens(text)
        self.functions = functions(self.code)
        # Ranges of the text, with what they become.
        self.edits = []

    def find(self, function, wanted):
        if not function:
            return places(self.code, wanted, [(0, len(self.code))])
        return places(self.code, wanted, self.spans(function))

    def spans(self, function):
        *owner, name = function.split("::")
        is_it = lambda f: f.name == name and (not owner or f.owner == owner[0])
        return [(f.start, f.end) for f in self.functions if is_it(f)]

    def edit(self, place, size, put):
        start, end = self.code[place].start, self.code[place + size - 1].end
        # Comments before the code that are within the new code stand there.
        before = with_comments(self.text, start)
        comments = [line.strip() for line in self.text[before:start].split("\n") if line.strip()]
        if comments and set(comments) <= {line.strip() for line in put.split("\n")}:
            start = before
        clash = next((edit for edit in self.edits if edit[0] < end and start < edit[1]), None)
        if clash:
            raise Misplaced(f"in {self.name} another switch changes the same code: make them one")
        self.edits.append((start, end, indented(put, indent_at(self.text, start))))

    def edited(self, use):
        """The text with all switches; `use`: what imports them."""
        text = self.text
        for start, end, put in sorted(self.edits, reverse=True):
            text = text[:start] + put + text[end:]
        asks = use and any(re.search(r"\bmutant\(", put) for _, _, put in self.edits)
        return with_import(text, use) if asks else text


def with_comments(text, at):
    """Where the comments begin that stand directly before a place, on lines of their own."""
    line = text.rfind("\n", 0, at) + 1
    if text[line:at].strip():
        return at
    while line:
        above = text.rfind("\n", 0, line - 1) + 1
        if not text[above:line].lstrip().startswith("//"):
            break
        line = above
    return line + len(text[line:]) - len(text[line:].lstrip()) if line < at else at


def indent_at(text, at):
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip())]


def indented(text, indent):
    first, *rest = text.split("\n")
    return "\n".join([first] + [indent + line if line else line for line in rest])


def dedented(text, indent):
    first, *rest = text.split("\n")
    return "\n".join([first] + [line.removeprefix(indent) for line in rest])


def with_import(text, use):
    """The line among the first ones of its kind, or behind the file's head."""
    lines = text.split("\n")
    first = next((i for i, line in enumerate(lines) if line.startswith("use ")), None)
    if first is None:
        first = next(i for i, line in enumerate(lines) if not re.match(r"//!|#!|$", line))
        return "\n".join(lines[:first] + [use, ""] + lines[first:])
    at = first
    while at < len(lines) and lines[at].startswith("use ") and lines[at] < use:
        at += 1
        # One that goes over several lines.
        while at < len(lines) and not lines[at - 1].endswith(";"):
            at += 1
    return "\n".join(lines[:at] + [use] + lines[at:])


def without_import(text, use):
    lines = text.split("\n")
    if use in lines:
        at = lines.index(use)
        lone = at and not lines[at - 1] and at + 1 < len(lines) and not lines[at + 1]
        del lines[at : at + 1 + bool(lone)]
    return "\n".join(lines)


def known_as(switch):
    """How people find it: the rules that it breaks, and where it is."""
    names = ", ".join(re.findall(r"Mutant::(\w+)\)", switch.get("put", switch.get("append", "")))) or "(no rule)"
    return f"{names}: {switch['in']}: {switch.get('function', 'the file')}"


def rules(switch):
    return re.findall(r"Mutant::(\w+)\)", switch.get("put", ""))


def put(switch, sources):
    """Puts a switch into one of these files, and returns which. Raises `Misplaced`, with what is wrong."""
    near = [source for source in sources if source.name == switch["in"] or source.name.startswith(switch["in"] + "/")]
    if "append" in switch:
        source = next((source for source in near if source.name == switch["in"]), None)
        if not source:
            raise Misplaced("there is no such file")
        source.edits.append((len(source.text), len(source.text), "\n" + switch["append"] + "\n"))
        return source.name
    function, wanted = switch.get("function"), [token.text for token in tokens(switch["find"])]
    if function and not any(source.spans(function) for source in near):
        raise Misplaced(f"there is no function {function}")
    found = [(source, place) for source in near for place in source.find(function, wanted)]
    if len(found) != 1:
        times = f"{len(found)} times" if found else "nowhere"
        raise Misplaced(f"this code is there {times}, and must be exactly once:\n    " + switch["find"].replace("\n", "\n    "))
    source, place = found[0]
    source.edit(place, len(wanted), switch["put"])
    return source.name


# -- from two texts to switches ------------------------------------------------------------------------------------------


def differences(name, old, new, near):
    """The switches that make the one text of the file the other one. `near`: all files that are looked through for the
    function, the old one of this file among them."""
    folder = re.match(r"crates/\w+/src", name)
    near = [s for s in near if (folder and s.name.startswith(folder[0] + "/")) or s.name == name]
    code, other, found = all_tokens(old), all_tokens(new), []
    known, match, new_match = functions(code), pairs(code), pairs(other)
    changes = changed(old, new, code, other)
    if changes and changes[-1][0] == len(code) and "{" in [t.text for t in other[changes[-1][2] :]]:
        # Items behind everything that there was, with the comments before them.
        end = changes.pop()[2]
        found.append({"in": name, "append": new[other[end - 1].end :].strip("\n")})
    begins, ends = mapped(changes, len(code))
    ranges = [grown(code, match, a, b) for a, b, _, _ in changes]

    def fits(lo, hi):
        return whole(match, lo, hi) and whole(new_match, begins[lo], ends[hi])

    def last(hi):
        """Is it a comma before a closing bracket, which is not compared?"""
        return hi < len(code) and code[hi - 1].text == "," and code[hi].text in CLOSED

    def text_of(lo, hi):
        return old[code[lo].start : code[hi - 1].start if last(hi) else code[hi - 1].end]

    def named(lo, hi):
        """The function, as `put` finds it, if that finds exactly this code; else nothing."""
        wanted = [t.text for t in tokens(text_of(lo, hi))]
        return unique(near, name, function_of(known, lo, hi), wanted)

    def settle(i):
        """Grows a range until its brackets are whole, and it is found. Or it needs the next one for that: false."""
        while not fits(*ranges[i]) or not named(*ranges[i]):
            lo, hi = before = ranges[i]
            if not whole(match, lo, hi):
                lo, hi = grown(code, match, *around(match, lo, hi))
            elif not fits(lo, hi) and i + 1 < len(ranges) and function_of(known, lo, ranges[i + 1][1]):
                # A bracket's other one is further on.
                ranges[i : i + 2] = [(lo, ranges[i + 1][1])]
                return False
            else:
                lo, hi = further(code, match, lo, hi, function_of(known, lo, hi))
            if (lo, hi) == before:
                raise Misplaced(f"{name}: a change cannot be said by function and expression: {text_of(lo, hi)}")
            ranges[i] = lo, hi
        return True

    done = None
    while done != ranges:
        ranges = joined(ranges)
        done, i = list(ranges), 0
        while i < len(ranges):
            i += settle(i)
    for lo, hi in ranges:
        c, d, where = begins[lo], ends[hi], function_of(known, lo, hi)
        find = dedented(text_of(lo, hi), indent_at(old, code[lo].start))
        begin, at = other[c].start, code[lo].start
        if new[with_comments(new, begin) : begin] != old[with_comments(old, at) : at]:
            # It brings comments of its own.
            begin = with_comments(new, begin)
        put = dedented(new[begin : other[d - 1].end], indent_at(new, begin)) if d > c else ""
        put = put.removesuffix(",") if last(hi) else put
        function = {"function": named(lo, hi)} if where else {}
        found.append({"in": folder[0] if folder and where else name, **function, "find": without_comments(find), "put": put})
    return found


def changed(old, new, code, other):
    """What differs, by lines and then without what is the same at both ends: ranges of tokens."""
    lines, new_lines = old.splitlines(keepends=True), new.splitlines(keepends=True)
    at, new_at = [place(lines, code), place(new_lines, other)]
    changes = []
    for tag, i, j, k, l in SequenceMatcher(None, lines, new_lines, autojunk=False).get_opcodes():
        pairs = [(i, j, k, l)]
        if j - i == l - k:
            # A line for a line.
            pairs = [(i + n, i + n + 1, k + n, k + n + 1) for n in range(j - i)]
        for i, j, k, l in pairs if tag != "equal" else []:
            a, b, c, d = at[i], at[j], new_at[k], new_at[l]
            while a < b and c < d and code[a].text == other[c].text:
                a, c = a + 1, c + 1
            while a < b and c < d and code[b - 1].text == other[d - 1].text:
                b, d = b - 1, d - 1
            if a < b or c < d:
                changes.append((a, b, c, d))
    return changes


def place(lines, code):
    """Of each line the number of the first token that begins in it or behind it."""
    result, start, i = [], 0, 0
    for line in lines + [""]:
        while i < len(code) and code[i].start < start:
            i += 1
        result.append(i)
        start += len(line)
    return result


def mapped(changes, size):
    """Of each place between old tokens, where it is among the new ones: before and behind what was changed there."""
    begins, ends, moved, at = {}, {}, 0, 0
    for a, b, c, d in changes + [(size, size, None, None)]:
        for i in range(at, a + 1):
            begins.setdefault(i, i + moved)
            ends[i] = i + moved
        if c is not None:
            assert begins[a] == c, "lines that are equal have other tokens"
            ends[b], at, moved = d, b, d - b
            begins.setdefault(b, d)
    return begins, ends


def whole(match, start, end):
    """Is each bracket there with its other one?"""
    return all(start <= match[i] < end for i in range(start, end) if i in match)


def without_comments(text):
    lines = [line for line in text.split("\n") if not line.lstrip().startswith("//")]
    return "\n".join(lines)


def function_of(known, lo, hi):
    """The innermost function around these tokens."""
    around = [f for f in known if f.start <= lo and hi <= f.end]
    return max(around, key=lambda f: f.start, default=None)


def unique(near, name, function, wanted):
    """The name of the function by which the code is found once; none if it is not."""
    if not wanted:
        return None
    if not function:
        source = next(source for source in near if source.name == name)
        return "file" if len(source.find(None, wanted)) == 1 else None
    for known in [function.name] + [f"{function.owner}::{function.name}"] * bool(function.owner):
        if sum(len(source.find(known, wanted)) for source in near) == 1:
            return known
    return None


BOUNDS = {";", "{", "}", ",", "=>"}


def grown(code, match, lo, hi):
    """To a whole condition, expression, argument or statement."""
    if lo == hi:
        # Something new between two statements: it is found by the one behind it, or the one before it.
        behind = lo < len(code) and code[lo].text not in CLOSED
        between = lo == 0 or code[lo - 1].text in BOUNDS
        if between and behind:
            hi = lo + 1 if lo not in match else match[lo] + 1
        elif lo:
            lo = lo - 1 if lo - 1 not in match or code[lo - 1].text in OPEN else match[lo - 1]
    while lo and code[lo - 1].text not in BOUNDS and code[lo - 1].text not in OPEN:
        lo = match[lo - 1] if code[lo - 1].text in CLOSED else lo - 1
    while hi < len(code) and code[hi].text not in BOUNDS and code[hi].text not in CLOSED:
        hi = match[hi] + 1 if code[hi].text in OPEN else hi + 1
    return lo, hi


def around(match, lo, hi):
    """With the other bracket of each."""
    ends = [match[i] for i in range(lo, hi) if i in match]
    return min([lo] + ends), max([hi] + [end + 1 for end in ends])


def further(code, match, lo, hi, function):
    """A statement more, or what is around."""
    first, last = (function.start, function.end) if function else (0, len(code))
    if lo - 1 > first and code[lo - 1].text in CLOSED | {";", ",", "=>"}:
        lo -= 1 + (code[lo - 1].text == ";" and code[lo - 2].text in CLOSED)
        lo = match.get(lo, lo) if code[lo].text in CLOSED else lo
    elif lo > first and code[lo - 1].text in OPEN:
        lo, hi = lo - 1, max(hi, match[lo - 1] + 1)
    elif lo > first:
        lo -= 1
    elif hi < last:
        hi += 1
    return grown(code, match, lo, hi)


def joined(ranges):
    """Those that touch each other are one."""
    all_of_them = []
    for lo, hi in sorted(ranges):
        if all_of_them and lo <= all_of_them[-1][1]:
            all_of_them[-1] = (all_of_them[-1][0], max(hi, all_of_them[-1][1]))
        else:
            all_of_them.append((lo, hi))
    return all_of_them


# -- files ---------------------------------------------------------------------------------------------------------------


def read(path):
    """What imports the switches of a file, and the switches, each with where it is looked for."""
    return parsed(path.read_text())


def parsed(text):
    table = tomllib.loads(text)
    return table.get("use"), [{**({"in": table["in"]} if "in" in table else {}), **switch} for switch in table.get("switch", [])]


def written(title, use, folder, switches):
    """The text of such a file."""
    lines = [f"# {title}"] + [""] * bool(folder or use)
    lines += [f"{field} = {quoted(value)}" for field, value in (("in", folder), ("use", use)) if value]
    order = lambda switch: (switch["in"], switch.get("function", ""), switch.get("find", ""), switch.get("append", ""))
    for switch in sorted(switches, key=order):
        lines += ["", "[[switch]]"]
        fields = ["in"] * (switch["in"] != folder) + ["function", "find", "put", "append"]
        lines += [f"{field} = {quoted(switch[field])}" for field in fields if field in switch]
    return "\n".join(lines) + "\n"


def quoted(text):
    if "'" not in text and "\n" not in text:
        return f"'{text}'"
    assert "'''" not in text, text
    return f"'''\n{text}'''"
