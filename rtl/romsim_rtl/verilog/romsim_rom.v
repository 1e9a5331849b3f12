// Behavioural mask ROM: one registered read port. A foundry's macro takes its place.
//
// The contents are read when a simulation starts, from the folder named by +romdir=: with
// $readmemh from FILE ("<name>.hex"), or from t<TILE>_FILE where TILE says which tile the ROM
// stands in. With +rombin the same words come from "<name>.bin", most significant byte first,
// many times as fast.
module romsim_rom #(
  parameter integer DEPTH = 2,
  parameter integer ADDR_BITS = 1,
  parameter integer WIDTH = 8,
  parameter FILE = "rom.hex",
  parameter integer TILE = -1
) (
  input wire clk,
  input wire r_en,
  input wire [ADDR_BITS-1:0] r_addr,
  output reg [WIDTH-1:0] r_data
);
  reg [WIDTH-1:0] words [0:DEPTH-1];
  string folder;
  string name;
  integer file;
  integer count;

  initial begin
    if ($value$plusargs("romdir=%s", folder) == 0) folder = ".";
    if (TILE < 0) name = $sformatf("%s/%s", folder, FILE);
    else name = $sformatf("%s/t%0d_%s", folder, TILE, FILE);
    if ($test$plusargs("rombin") != 0) begin
      file = $fopen({name.substr(0, name.len() - 5), ".bin"}, "rb");
      if (file == 0) $fatal(1, "ROM image must be a readable file, not missing");
      count = $fread(words, file);
      if (count == 0) $fatal(1, "ROM image must hold words, not none");
      $fclose(file);
    end else begin
      $readmemh(name, words);
    end
  end

  always @(posedge clk) begin
    if (r_en) r_data <= words[r_addr];
  end
endmodule
