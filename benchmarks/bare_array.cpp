// A chip's unit L alone, fed with matvec instructions back to back: the yardstick of
// benchmarks/rtl_speed.py. Arguments: file of instruction words, words of 32 bits each,
// passes, blocks of an x buffer. Prints cycles and CPU seconds of the passes.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>
#include <vector>

#include "Vromsim_lside.h"
#include "verilated.h"

int main(int argc, char** argv) {
  VerilatedContext context;
  context.commandArgs(argc, argv);
  Vromsim_lside top{&context};
  std::FILE* file = std::fopen(argv[1], "rb");
  const unsigned size = std::atoi(argv[2]), passes = std::atoi(argv[3]);
  const unsigned n_blocks = std::atoi(argv[4]);
  if (!file || !size) return 2;
  std::vector<std::uint32_t> words;
  for (std::uint32_t word; std::fread(&word, 4, 1, file) == 1;) words.push_back(word);
  std::uint64_t cycles = 0;
  const auto tick = [&]() {
    top.clk = 1;
    top.eval();
    top.clk = 0;
    top.eval();
    ++cycles;
  };
  top.clk = top.start = top.embed = top.bc_kind = 0;
  top.rst = 1;
  top.eval();
  tick();
  tick();
  top.rst = 0;
  void* const CODES[] = {@CODES@};
  std::uint8_t* const SHIFTS[] = {@SHIFTS@};
  const unsigned N_GROUPS = sizeof CODES / sizeof *CODES;
  // random activations in every x buffer: all lanes' products move
  std::mt19937 draw(1);
  for (unsigned block = 0; block < n_blocks; block += N_GROUPS) {
    top.bc_kind = 1;
    top.bc_block = block;
    top.bc_mask = (1ull << N_GROUPS) - 1;
    for (unsigned group = 0; group < N_GROUPS; ++group) {
      auto* codes = static_cast<std::uint8_t*>(CODES[group]);
      for (unsigned at = 0; at < 32; ++at) codes[at] = static_cast<std::uint8_t>(draw());
      *SHIFTS[group] = draw() % 16;
    }
    tick();
  }
  top.bc_kind = 0;
  tick();
  tick();
  cycles = 0;
  const std::clock_t begun = std::clock();
  std::uint64_t seen = 0;
  for (unsigned pass = 0; pass < passes; ++pass) {
    for (std::size_t at = 0; at + size <= words.size(); at += size) {
      std::memcpy(&top.instr, &words[at], 4 * size);
      top.start = 1;
      tick();
      top.start = 0;
      while (top.busy) {
        tick();
        seen += top.ly_valid;
      }
    }
  }
  const double seconds = double(std::clock() - begun) / CLOCKS_PER_SEC;
  std::printf("%llu %.6f %llu\n", static_cast<unsigned long long>(cycles), seconds,
              static_cast<unsigned long long>(seen));
  return 0;
}
