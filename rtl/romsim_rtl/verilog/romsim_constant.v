// A constant that a synthesiser does not see through: a mask that it knows becomes a list of
// slices, which a simulator then gathers bit by bit.
module romsim_constant #(
  parameter integer WIDTH = 64,
  parameter [WIDTH-1:0] VALUE = 0
) (
  output wire [WIDTH-1:0] value
);
  assign value = VALUE;
endmodule
