"""The edits that mutants are made of: small changes of the syntax tree of the marked code.

They avoid the names of the product, so that a rename does not touch them.
An edit that does not fit the marked code raises `Misfit`.
"""

import ast
import builtins
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

Node = TypeVar("Node", bound=ast.AST)


class Misfit(Exception):
    """The edit cannot be made on the marked code."""


class Edit(NamedTuple):
    """A change of the marked node; `code` is Python source that the edit puts in."""

    change: Callable[[ast.AST], ast.AST]
    code: str = ""

    def unknown_names(self, names: Mapping[str, object]) -> list[str]:
        """Return the names in `code` that neither the module `names` nor Python defines."""
        nodes = list(ast.walk(ast.parse(_filled(self.code, "None"), mode="eval"))) if self.code else []
        known = {**vars(builtins), **names}
        unknown = [node.id for node in nodes if isinstance(node, ast.Name) and node.id not in known]
        for node in nodes:
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id in known
            ):
                if not hasattr(known[node.value.id], node.attr):
                    unknown.append(ast.unparse(node))
        return unknown


class SqlEdit(NamedTuple):
    """A replacement by regular expression, which must match once in the marked SQL statement."""

    pattern: str
    replacement: str

    def apply(self, statement: str) -> str:
        found = len(re.findall(self.pattern, statement))
        if found != 1:
            raise Misfit(f"{self.pattern!r} matches {found} times, not once, in: {statement.strip()}")
        return re.sub(self.pattern, self.replacement, statement)


def keeps_column(parameter: int) -> SqlEdit:
    """Make the column that is set to this parameter never decrease, as if the parameter were 0.

    The parameter stays in the statement, because the driver binds it.
    """
    return SqlEdit(rf"(\w+) = \?{parameter}\b", rf"\1 = max(\1, 0 * ?{parameter})")


def replaced(root: ast.AST, old: ast.AST, new: ast.AST) -> ast.AST:
    """Put `new` where `old` is in `root`, with the line numbers of `old`; return the root."""

    class Replace(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return new if node is old else self.generic_visit(node)

    return Replace().visit(root)


def _drop(node: ast.AST) -> ast.AST:
    if not isinstance(node, ast.stmt):
        raise Misfit(f"only a statement can be dropped: {ast.unparse(node)}")
    return ast.copy_location(ast.Pass(), node)


DROP = Edit(_drop)
"""The statement is not executed."""


def _condition_becomes(value: bool) -> Edit:
    def change(node: ast.AST) -> ast.AST:
        test = _condition(node)
        return replaced(node, test, ast.copy_location(ast.Constant(value), test))

    return Edit(change)


NEVER, ALWAYS = _condition_becomes(False), _condition_becomes(True)
"""The condition is always false, or always true."""


def leave_out(*path: int) -> Edit:
    """Leave out one operand of the condition, or one item of the tuple that a `for` goes through.

    The path leads to it through nested `and` and `or`: (1, 0) is the first operand of the second operand.
    """

    def change(node: ast.AST) -> ast.AST:
        whole: ast.expr = node.iter if isinstance(node, ast.For) else _condition(node)
        for index in path[:-1]:
            whole = _parts(whole, index)[index]
        parts = _parts(whole, path[-1])
        rest = [part for part in parts if part is not parts[path[-1]]]
        if isinstance(whole, ast.Tuple):
            return replaced(node, whole, ast.copy_location(ast.Tuple(rest, ast.Load()), whole))
        op = whole.op if isinstance(whole, ast.BoolOp) else ast.And()
        new = rest[0] if len(rest) == 1 else ast.copy_location(ast.BoolOp(op, rest), whole)
        return replaced(node, whole, new)

    return Edit(change)


def compare_with(old: type[ast.cmpop], new: type[ast.cmpop]) -> Edit:
    """Replace one comparison operator of the condition."""

    def change(node: ast.AST) -> ast.AST:
        found = [
            inner
            for inner in ast.walk(_condition(node))
            if isinstance(inner, ast.Compare) and [type(op) for op in inner.ops] == [old]
        ]
        compare = _only(found, f"comparison with {old.__name__}", node)
        return replaced(
            node, compare, ast.copy_location(ast.Compare(compare.left, [new()], compare.comparators), compare)
        )

    return Edit(change)


def _first_term(node: ast.AST) -> ast.AST:
    found = [inner for inner in ast.walk(node) if isinstance(inner, ast.BinOp)]
    inside = {id(inner.left) for inner in found} | {id(inner.right) for inner in found}
    whole = _only([inner for inner in found if id(inner) not in inside], "calculation", node)
    first: ast.expr = whole
    while isinstance(first, ast.BinOp):
        first = first.left
    return replaced(node, whole, first)


FIRST_TERM = Edit(_first_term)
"""Of a sum or difference only the first term is left."""


def value(code: str) -> Edit:
    """The value that is assigned, returned or passed becomes `code`."""

    def change(node: ast.AST) -> ast.AST:
        old = _value(node)
        return replaced(node, old, _parsed(code, old))

    return Edit(change, code)


def otherwise(code: str) -> Edit:
    """The value after `else` of the conditional expression becomes `code`."""

    def change(node: ast.AST) -> ast.AST:
        found = [inner for inner in ast.walk(node) if isinstance(inner, ast.IfExp)]
        old = _only(found, "conditional expression", node).orelse
        return replaced(node, old, _parsed(code, old))

    return Edit(change, code)


def instead_of_call(code: str) -> Edit:
    """The call that is the value becomes `code`, in which {0} is the first argument of the call."""

    def change(node: ast.AST) -> ast.AST:
        call = _value(node)
        if not isinstance(call, ast.Call):
            raise Misfit(f"the value is no call: {ast.unparse(node)}")
        if any(int(index) >= len(call.args) for index in _PLACE.findall(code)):
            raise Misfit(
                f"the call has {len(call.args)} arguments, too few for {code!r}: {ast.unparse(node)}"
            )
        filled = _PLACE.sub(lambda place: f"({ast.unparse(call.args[int(place[1])])})", code)
        return replaced(node, call, _parsed(filled, call))

    return Edit(change, code)


def add_argument(index: int, code: str) -> Edit:
    """The marked call gets one more positional argument, at this index."""

    def change(node: ast.AST) -> ast.AST:
        if not isinstance(node, ast.Call) or len(node.args) < index:
            raise Misfit(f"not a call with {index} or more arguments: {ast.unparse(node)}")
        args = [*node.args[:index], _parsed(code, node), *node.args[index:]]
        return ast.copy_location(ast.Call(node.func, args, node.keywords), node)

    return Edit(change, code)


_PLACE = re.compile(r"\{(\d+)\}")


def _filled(code: str, text: str) -> str:
    return _PLACE.sub(text, code)


def _parsed(code: str, like: ast.AST) -> ast.expr:
    body = ast.parse(code, mode="eval").body
    for node in ast.walk(body):
        ast.copy_location(node, like)
    return body


def _value(node: ast.AST) -> ast.expr:
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.Return | ast.keyword) and node.value is not None:
        return node.value
    raise Misfit(f"nothing is assigned, returned or passed here: {ast.unparse(node)}")


def _condition(node: ast.AST) -> ast.expr:
    """The test of an `if`; or the one test or filter inside the node; or the node, if it is a condition."""
    if isinstance(node, ast.If | ast.While):
        return node.test
    found = [inner.test for inner in ast.walk(node) if isinstance(inner, ast.IfExp)]
    found += [test for inner in ast.walk(node) if isinstance(inner, ast.comprehension) for test in inner.ifs]
    if not found and isinstance(node, ast.BoolOp | ast.Compare):
        return node
    return _only(found, "condition", node)


def _parts(whole: ast.expr, index: int) -> list[ast.expr]:
    parts = (
        whole.values if isinstance(whole, ast.BoolOp) else whole.elts if isinstance(whole, ast.Tuple) else []
    )
    if index >= len(parts):
        raise Misfit(f"no operand {index} in: {ast.unparse(whole)}")
    return parts


def _only(found: Sequence[Node], what: str, node: ast.AST) -> Node:
    if len(found) != 1:
        raise Misfit(f"{len(found)} places, not one, for the edit ({what}) in: {ast.unparse(node)}")
    return found[0]
