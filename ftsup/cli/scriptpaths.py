"""Where a script writes, read from its text: an expression for a path -> a glob, with `*` for what only a run knows.

Follows names through assignments, function parameters, `with open(...) as`, defaults of options and a rename at the end. Runs nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

UNKNOWN = "*"
_DEEP = 12
"""Names that are followed from one to the next."""
_SAME = {"str", "Path", "PurePath", "fspath", "abspath", "realpath", "expanduser", "expandvars", "resolve", "absolute", "normpath"}
"""What these make of a path is the same place."""
_MODULES = {"io", "os", "gzip", "fsspec"}
_MOVES = {"replace", "rename", "renames", "move"}


class Names:
    """What the names of one file stand for."""

    def __init__(self, tree: ast.AST, *, options: Mapping[str, ast.expr | str]) -> None:
        self._values: dict[str, ast.expr] = {}
        self._options = options
        self._functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        self._calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        for name, value in _assigned(tree):
            self._values.setdefault(name, value)
        for function in self._functions:
            for name, value in self._parameters(function):
                self._values.setdefault(name, value)

    def glob(self, node: ast.expr) -> str:
        """The path as a glob."""
        return re.sub(r"\*[*]+", "*", self._text(node, _DEEP))

    def final(self, glob: str) -> str:
        """What the file is called in the end, where a temporary one is renamed."""
        for call in self._calls:
            if tail(call) in _MOVES and isinstance(call.func, ast.Attribute) and len(call.args) in {1, 2}:
                old = call.func.value if len(call.args) == 1 else call.args[0]
                new = self.glob(call.args[-1])
                if self.glob(old) == glob and new.strip("*/"):
                    return new
        return glob

    def _parameters(self, function: ast.FunctionDef) -> Iterator[tuple[str, ast.expr]]:
        """Each parameter with what the first call of the function gives it, else with its default."""
        names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
        bound = names[1:] if names[:1] in (["self"], ["cls"]) else names
        for call in self._calls:
            if ast.unparse(call.func) in {function.name, f"self.{function.name}"}:
                yield from zip(bound, call.args, strict=False)
                yield from ((word.arg, word.value) for word in call.keywords if word.arg)
                break
        yield from zip(reversed(names), reversed(function.args.defaults), strict=False)

    def _text(self, node: ast.expr | str | None, deep: int) -> str:
        if isinstance(node, str):
            return node
        if node is None or deep == 0:
            return UNKNOWN
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else UNKNOWN
        if isinstance(node, ast.JoinedStr):
            return "".join(self._text(part.value if isinstance(part, ast.FormattedValue) else part, deep - 1) for part in node.values)
        if isinstance(node, ast.BinOp):
            return self._both(node, deep)
        if isinstance(node, ast.NamedExpr):
            return self._text(node.value, deep - 1)
        if isinstance(node, ast.Name):
            return self._text(self._values.get(node.id), deep - 1)
        if isinstance(node, ast.Attribute):
            return self._attribute(node, deep)
        if isinstance(node, ast.Call):
            return self._called(node, deep)
        return UNKNOWN

    def _both(self, node: ast.BinOp, deep: int) -> str:
        left = self._text(node.left, deep - 1)
        if isinstance(node.op, ast.Mod):
            return re.sub(r"%[-+ #0-9.]*[a-zA-Z]", UNKNOWN, left)
        middle = {ast.Add: "", ast.Div: "/"}.get(type(node.op))
        return UNKNOWN if middle is None else left.rstrip(middle or "\0") + middle + self._text(node.right, deep - 1)

    def _attribute(self, node: ast.Attribute, deep: int) -> str:
        if node.attr in self._options:  # args.output_dir
            return self._text(self._options[node.attr], deep - 1)
        return self._text(self._values.get(ast.unparse(node)), deep - 1)

    def _called(self, node: ast.Call, deep: int) -> str:
        name = tail(node)
        if name in {"join", "joinpath"}:
            first = [node.func.value] if name == "joinpath" and isinstance(node.func, ast.Attribute) else []
            return "/".join(self._text(part, deep - 1).rstrip("/") for part in [*first, *node.args])
        if name == "format" and isinstance(node.func, ast.Attribute):
            return re.sub(r"\{[^{}]*\}", UNKNOWN, self._text(node.func.value, deep - 1))
        if name == "open":  # with open(path) as file, with path.open() as file
            if isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) not in _MODULES:
                return self._text(node.func.value, deep - 1)
            return self._text(node.args[0] if node.args else None, deep - 1)
        if name in _SAME:
            inner = node.args[0] if node.args else node.func.value if isinstance(node.func, ast.Attribute) else None
            return self._text(inner, deep - 1)
        return UNKNOWN


def _assigned(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Names, and dotted names, with what they are made of."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            yield from ((ast.unparse(target), node.value) for target in node.targets if isinstance(target, ast.Name | ast.Attribute))
        elif isinstance(node, ast.AnnAssign) and node.value is not None and isinstance(node.target, ast.Name | ast.Attribute):
            yield ast.unparse(node.target), node.value
        elif isinstance(node, ast.NamedExpr):
            yield node.target.id, node.value
        elif isinstance(node, ast.With):
            yield from ((item.optional_vars.id, item.context_expr) for item in node.items if isinstance(item.optional_vars, ast.Name))


def tail(call: ast.Call) -> str:
    """The last word of what is called: `save` of `torch.save(...)`."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id if isinstance(call.func, ast.Name) else ""
