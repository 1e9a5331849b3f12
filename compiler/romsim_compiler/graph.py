"""The operator graph of one token: what is computed, and which operator needs which result.

Nodes are numbered in the model's own order. An edge carries the name of the value that passes:
``x`` (residual), ``in`` (MXINT8 input of a matrix), ``y`` (its result), ``d`` (the adapter's part),
``q`` and ``kv`` (attention's words), ``o`` (attention's sums), ``turn`` (sine and cosine).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import networkx as nx

from romsim_compiler.groups import Group
from romsim_models.errors import ScheduleError
from romsim_models.spec import ModelSpec

__all__ = ["Operator", "build_graph", "check_graph", "operators_in_order", "stages_in_order"]

_INPUT_OF = {"q": "qkv", "k": "qkv", "v": "qkv", "o": "o", "gate": "gu", "up": "gu", "down": "down"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One node: an instruction before it has a place in time (fields as in ``Instruction``)."""

    op: str
    unit: str
    layer: int = -1
    operand: str = ""
    source: str = ""
    target: str = ""


class _Builder:
    def __init__(self, lora_unit: str) -> None:
        self.lora_unit = lora_unit
        self.graph: nx.DiGraph[int] = nx.DiGraph()

    def add(self, operator: Operator, *inputs: tuple[int, str]) -> int:
        node: int = self.graph.number_of_nodes()
        self.graph.add_node(node, operator=operator)
        for source, value in inputs:
            self.graph.add_edge(source, node, value=value)
        return node

    def linear(self, layer: int, name: str, groups: Sequence[Group], source: int) -> list[int]:
        """Add the matrices of one input and their adapter; return the nodes that give y and d."""
        mine = [g for g in groups if _INPUT_OF[g.members[0].operator] == name]
        nodes = [
            self.add(Operator(op="matvec", unit="L", layer=layer, operand=g.name), (source, "in"))
            for g in mine
        ]
        operand = f"L{layer}.{name}"
        adapter = Operator(op="lora", unit=self.lora_unit, layer=layer, operand=operand)
        return [*nodes, self.add(adapter, (source, "in"))]

    def results(self, nodes: list[int]) -> list[tuple[int, str]]:
        """Return the edges that bring a linear operator's parts to their reader."""
        return [*((n, "y") for n in nodes[:-1]), (nodes[-1], "d")]


def build_graph(
    spec: ModelSpec, groups: Sequence[Group], *, lora_unit: str = "H"
) -> nx.DiGraph[int]:
    """Return the graph of one token, nodes with an ``operator``, edges with a ``value``.

    Parameters
    ----------
    groups
        All matrix groups that the chip holds, in program order.
    lora_unit
        Unit that executes ``lora``.
    """
    build = _Builder(lora_unit)
    by_layer: dict[int, list[Group]] = {}
    for group in groups:
        by_layer.setdefault(group.layer, []).append(group)
    names = {g.name for g in groups}
    row = "embd" if "embd" in names else "head" if spec.tie_embeddings and "head" in names else ""
    x = build.add(Operator(op="embed", unit="V", operand=row))
    turn = build.add(Operator(op="sincos", unit="V"))
    for layer in range(spec.n_layers):
        x = _add_layer(build, spec, layer, by_layer[layer], x, turn)
    norm = build.add(Operator(op="norm", unit="V", operand="output_norm", source="X"), (x, "x"))
    if "head" in names:
        build.add(Operator(op="matvec", unit="L", operand="head"), (norm, "in"))
    return build.graph


def _add_layer(
    build: _Builder, spec: ModelSpec, layer: int, groups: Sequence[Group], x: int, turn: int
) -> int:
    """Add one layer; return the node of its residual."""

    def norm(name: str, source: str, node: int) -> int:
        operand = f"blk.{layer}.{name}"
        operator = Operator(op="norm", unit="V", layer=layer, operand=operand, source=source)
        return build.add(operator, (node, "x" if source == "X" else "y"))

    def quantised(op: str, sub_norm: str, *inputs: tuple[int, str]) -> int:
        """Add an operator whose result feeds a matrix, through a sub-norm if the model has one."""
        target = "Y" if spec.has_sub_norms else "XB"
        node = build.add(Operator(op=op, unit="V", layer=layer, target=target), *inputs)
        return norm(sub_norm, "Y", node) if spec.has_sub_norms else node

    def residual(name: str, parts: list[int], x: int) -> int:
        operator = Operator(op="resid", unit="V", layer=layer, operand=f"L{layer}.{name}")
        return build.add(operator, (x, "x"), *build.results(parts))

    qkv = build.linear(layer, "qkv", groups, norm("attn_norm", "X", x))
    rope = build.add(
        Operator(op="rope", unit="V", layer=layer), (turn, "turn"), *build.results(qkv)
    )
    attn = build.add(Operator(op="attn", unit="H", layer=layer), (rope, "q"), (rope, "kv"))
    attended = quantised("attn_out", "attn_sub_norm", (attn, "o"))
    x = residual("o", build.linear(layer, "o", groups, attended), x)
    gu = build.linear(layer, "gu", groups, norm("ffn_norm", "X", x))
    activated = quantised("glu", "ffn_sub_norm", *build.results(gu))
    return residual("down", build.linear(layer, "down", groups, activated), x)


def operators_in_order(
    graph: nx.DiGraph[int],
) -> list[tuple[Operator, frozenset[str]]]:
    """Return the operators in a topological order, each with the units that it depends on.

    Of several operators that may come next, the one with the lowest number does, so the order is
    the model's own and the same each time.
    """
    return [
        (
            graph.nodes[node]["operator"],
            frozenset(graph.nodes[p]["operator"].unit for p in graph.predecessors(node)),
        )
        for node in nx.lexicographical_topological_sort(graph)
    ]


def stages_in_order(
    graph: nx.DiGraph[int],
) -> list[list[tuple[Operator, frozenset[str]]]]:
    """Return `operators_in_order` in stages: neighbours none of which depends on another.

    The matrices of one input and their adapter are a stage; most others are alone in theirs.
    """
    stages: list[list[tuple[Operator, frozenset[str]]]] = []
    members: set[int] = set()
    for node, operator in zip(
        nx.lexicographical_topological_sort(graph), operators_in_order(graph), strict=True
    ):
        if not stages or members.intersection(graph.predecessors(node)):
            stages.append([])
            members = set()
        stages[-1].append(operator)
        members.add(node)
    return stages


def check_graph(graph: nx.DiGraph[int]) -> None:
    """Prove that the graph is one: no cycle, one source of the residual, every result used.

    Raises
    ------
    ScheduleError
        If it is not.
    """
    if not nx.is_directed_acyclic_graph(graph):
        raise ScheduleError("Operator graph must have no cycle, not one")
    last = graph.number_of_nodes() - 1
    for node in graph:
        if node != last and graph.out_degree(node) == 0:
            operator = graph.nodes[node]["operator"]
            raise ScheduleError(
                f"Result of operator {operator.op!r} in layer {operator.layer} must be used, not "
                f"dropped"
            )
