from __future__ import annotations

from romsim_rtl.stage_gating import gate_stages


def module(*lines: str) -> str:
    return "\n".join(["// head", "module top(clk, en, a, q);", *lines, "endmodule", ""])


PORTS = [
    "  input clk;",
    "  wire clk;",
    "  input en;",
    "  wire en;",
    "  input [7:0] a;",
    "  wire [7:0] a;",
    "  output [7:0] q;",
    "  reg [7:0] q;",
]


def test_logic_of_one_enable_moves_into_its_block_in_order() -> None:
    text = module(
        *PORTS,
        "  wire [7:0] _1_;",
        "  wire [7:0] _2_;",
        "  assign _2_ = _1_ ^ a;",
        "  assign _1_ = a + 8'h01;",
        "  always @(posedge clk)",
        "    if (en) q <= _2_;",
    )
    assert gate_stages(text) == module(
        *PORTS,
        "  always @(posedge clk)",
        "    if (en ) begin : gated$0",
        "      automatic reg [7:0] _1_ ;",
        "      automatic reg [7:0] _2_ ;",
        "      _1_ = a + 8'h01;",
        "      _2_ = _1_ ^ a;",
        "      q <= _2_;",
        "    end",
    )


def test_logic_that_something_else_reads_stays() -> None:
    shared = ["  wire [7:0] _1_;", "  assign _1_ = a + 8'h01;"]
    readers = {
        "another enable": ["  always @(posedge clk)", "    if (_1_) q <= a;"],
        "an instance": ["  part part0 (", "    .x(_1_)", "  );"],
        "an output": ["  assign r = _1_;"],
        "a reset": ["  always @(posedge clk)", "    if (en) r <= 8'h00;", "    else r <= _1_;"],
    }
    for reader in readers.values():
        more = ["  output [7:0] r;", "  wire [7:0] r;"]
        text = module(
            *PORTS, *more, *shared, *reader, "  always @(posedge clk)", "    if (!en) q <= _1_;"
        )
        assert "  assign _1_ = a + 8'h01;" in gate_stages(text)


def test_sign_extension_is_a_cast() -> None:
    text = module(*PORTS, "  assign q = { a[7], a[7], a[7], a[7:3] };")
    assert "  assign q = 8'($signed(a[7:3] ));" in gate_stages(text)
    text = module(
        *PORTS, "  wire [9:0] w;", "  assign w = { a[7], a[7], a };", "  assign q = w[9:2];"
    )
    assert "10'($signed(a ))" in gate_stages(text)


def test_copies_of_another_bit_than_the_sign_stay_copies() -> None:
    line = "  assign q = { a[6], a[6], a };"
    assert line in gate_stages(module(*PORTS, line))


def test_a_sum_of_which_the_fraction_is_dropped_is_shortened() -> None:
    text = module(
        *PORTS, "  wire [7:0] _1_;", "  assign _1_ = a + 8'h07;", "  assign q = { 4'h0, _1_[7:4] };"
    )
    result = gate_stages(text)
    assert "  wire [3:0] _1_;" in result
    assert "  assign _1_ = 4'((a + 8'h07) >> 4);" in result
    assert "  assign q = { 4'h0, _1_[3:0] };" in result


def test_a_shift_is_narrowed_in_the_open_and_not_of_a_number_is_a_reduction() -> None:
    text = module(*PORTS, "  assign q = $signed(a) >>> 2;", "  assign r = ! a;")
    result = gate_stages(text)
    assert "  assign q = 8'($signed(a) >>> 2);" in result
    assert "  assign r = ~(|a);" in result


def test_unread_bits_of_a_port_are_spoken_of_only_with_a_reason() -> None:
    text = module(*PORTS, "  assign q = { 4'h0, a[3:0] };")
    assert "unused" not in gate_stages(text)
    result = gate_stages(text, unread={"a": "upper half is for others"})
    assert "  // a: upper half is for others\n  wire unused_bits = &{1'b0, a[7:4]};" in result


def test_signals_that_nothing_drives_or_reads_are_dropped() -> None:
    assert "_9_" not in gate_stages(module(*PORTS, "  wire [3:0] _9_;", "  assign q = a;"))


def test_an_instances_output_that_nothing_reads_is_spoken_of() -> None:
    lines = ["  wire [3:0] _9_;", "  part part0 (", "    .x(_9_),", "    .y(a)", "  );"]
    assert "  wire unused_bits = &{1'b0, _9_};" in gate_stages(module(*PORTS, *lines))


def test_the_upper_part_of_a_result_is_written_alone_whatever_its_bits_are_called() -> None:
    """A wire of which yosys has dropped the lowest bit keeps the numbers of the others."""
    for span in ("[7:1]", "[6:0]"):
        text = module(
            *PORTS,
            f"  wire {span} _1_;",
            "  wire _2_;",
            "  assign { _1_, _2_ } = 8'h00 - a;",
            "  always @(posedge clk)",
            "    if (en) q <= { _1_, 1'h0 };",
        )
        assert "_1_ = 7'((8'h00 - a) >> 1);" in gate_stages(text)
