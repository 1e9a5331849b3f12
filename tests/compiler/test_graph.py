import networkx as nx
import pytest

from romsim_compiler.formats import SHIPPED_FORMATS
from romsim_compiler.graph import Operator, build_graph, check_graph, operators_in_order
from romsim_compiler.groups import build_groups
from romsim_models.errors import ScheduleError
from romsim_models.shapes import TINY

SPEC = TINY["tiny-int4"]
GRAPH = build_graph(SPEC, build_groups(SPEC, lambda _: SHIPPED_FORMATS["q4_1"]))


def node(op: str, layer: int, operand: str = "") -> int:
    for number, values in GRAPH.nodes(data=True):
        found: Operator = values["operator"]
        if (found.op, found.layer) == (op, layer) and found.operand.endswith(operand):
            return int(number)
    raise AssertionError((op, layer, operand))


def test_graph_is_acyclic_and_every_result_is_used() -> None:
    check_graph(GRAPH)


def test_residual_takes_the_stream_the_matrix_and_the_adapter() -> None:
    resid = node("resid", 0, "L0.o")
    edges = {(p, GRAPH.edges[p, resid]["value"]) for p in GRAPH.predecessors(resid)}
    assert edges == {
        (node("embed", -1), "x"),
        (node("matvec", 0, "L0.o"), "y"),
        (node("lora", 0, "L0.o"), "d"),
    }


def test_attention_depends_on_rope_and_rope_on_the_turn() -> None:
    rope = node("rope", 1)
    assert rope in GRAPH.predecessors(node("attn", 1))
    assert node("sincos", -1) in GRAPH.predecessors(rope)


def test_order_is_topological_and_the_model_s_own() -> None:
    operators = [o for o, _ in operators_in_order(GRAPH)]
    assert operators == [GRAPH.nodes[n]["operator"] for n in range(len(GRAPH))]


def test_cycle_and_dropped_result_are_found() -> None:
    cyclic = nx.DiGraph(GRAPH)
    cyclic.add_edge(node("attn", 0), node("embed", -1), value="x")
    with pytest.raises(ScheduleError, match=r"^Operator graph must have no cycle, not one$"):
        check_graph(cyclic)
    dropped = nx.DiGraph(GRAPH)
    attn = node("attn", 1)
    dropped.remove_edges_from(list(dropped.out_edges(attn)))
    with pytest.raises(
        ScheduleError, match=r"^Result of operator 'attn' in layer 1 must be used, not dropped$"
    ):
        check_graph(dropped)
