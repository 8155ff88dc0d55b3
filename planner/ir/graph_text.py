"""A Graph as text that people read and compare, and back: `parse_graph(graph_text(g)) == g`.

One record per line, each written like a call; what has its default value is left out. `T0` stands for input number 0 among an op's arguments.

    graph(batch=2, loss='loss', inputs=('x',), outputs=('y',))
    tensor('x', (2, 16), 'float32', base='x')
    parameter('w', ('linear.weight',), (8, 16), 'float32', trainable=True)
    forward('mm', 'aten.mm.default', ('x', 'w_t'), ('y',), args=(T0, T1), module='linear', flop=512)

Parsing reads the syntax only; nothing in the text is evaluated.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any

from planner.errors import PlanError
from planner.ir.graph import Buffer, Graph, Op, Parameter, Region, Tensor, TensorArg

_POSITIONAL = {Tensor: 3, Parameter: 4, Buffer: 4, Op: 4, Region: 1}
"""How many fields a line gives without their names."""
_RECORDS: Mapping[str, tuple[str, Callable[..., Any]]] = {
    "tensor": ("tensors", Tensor),
    "parameter": ("parameters", Parameter),
    "buffer": ("buffers", Buffer),
    "forward": ("ops", Op),
    "backward": ("backward", Op),
    "region": ("regions", Region),
    "unmodelled": ("unmodelled", lambda target, count: (target, count)),
    "warning": ("warnings", str),
}
"""By the word that begins a line: the field of Graph it goes to, and what makes the record."""
_NUMBERS = {"inf": math.inf, "nan": math.nan}


def graph_text(graph: Graph) -> str:
    """The text of a graph, with a final newline."""
    return "\n".join(_lines(graph)) + "\n"


def parse_graph(text: str) -> Graph:
    """The graph in `text`. Raises PlanError that names the line."""
    head: dict[str, Any] = {}
    found: dict[str, list[Any]] = {field: [] for field, _ in _RECORDS.values()}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            word, positional, named = _call(line)
            if word == "graph":
                head = named
            else:
                field, make = _RECORDS[word]
                found[field].append(make(*positional, **named))
        except (SyntaxError, KeyError, TypeError, ValueError) as error:
            raise PlanError(f"line {number} is no record of a graph ({error}): {line[:80]}") from error
    records: dict[str, Any] = {field: tuple(each) for field, each in found.items()}
    try:
        return Graph(**head, **records)
    except TypeError as error:
        raise PlanError(f"the line graph(batch=..., loss=..., inputs=..., outputs=...) is missing or wrong ({error})") from error


def _lines(graph: Graph) -> Iterator[str]:
    yield f"graph(batch={graph.batch}, loss={graph.loss!r}, inputs={_text(graph.inputs)}, outputs={_text(graph.outputs)})"
    for word, (field, _) in _RECORDS.items():
        for record in getattr(graph, field):
            yield f"{word}({', '.join(_arguments(record))})"


def _arguments(record: Any) -> Iterator[str]:
    if isinstance(record, str | tuple):
        yield from map(_text, (record,) if isinstance(record, str) else record)
        return
    for index, field in enumerate(fields(record)):
        value = getattr(record, field.name)
        if index < _POSITIONAL[type(record)]:
            yield _text(value)
        elif not _is_default(field, value):
            yield f"{field.name}={_text(value)}"


def _is_default(field: Field[Any], value: object) -> bool:
    return field.default is not MISSING and value == field.default


def _text(value: Any) -> str:
    if isinstance(value, TensorArg):
        return f"T{value.index}"
    if isinstance(value, tuple):
        members = ", ".join(map(_text, value))
        return f"({members},)" if len(value) == 1 else f"({members})"
    return repr(value)


def _call(line: str) -> tuple[str, list[Any], dict[str, Any]]:
    node = ast.parse(line.strip(), mode="eval").body
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise SyntaxError("expected word(...)")
    return node.func.id, [_value(each) for each in node.args], {str(each.arg): _value(each.value) for each in node.keywords}


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Tuple(elts=members):
            return tuple(_value(member) for member in members)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.Name(id=name) if name in _NUMBERS:
            return _NUMBERS[name]
        case ast.Name(id=name) if name[0] == "T" and name[1:].isdecimal():
            return TensorArg(int(name[1:]))
    raise SyntaxError(f"{ast.unparse(node)} is neither a number, a text, a tuple nor T0")
