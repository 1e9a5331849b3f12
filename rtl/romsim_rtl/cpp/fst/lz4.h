// The two functions of LZ4 that Verilator's FST writer calls, so that no package must be installed
// for them. What they give is a block of literals alone: valid LZ4, which every reader takes, and
// as long as its input. Only the names of the signals are in such blocks; zlib packs their values.
#pragma once

#include <cstring>

inline int LZ4_compressBound(int size) { return size + size / 255 + 16; }

inline int LZ4_compress_default(const char* source, char* target, int size, int capacity) {
  if (size < 0 || capacity < LZ4_compressBound(size)) return 0;
  char* at = target;
  int left = size;
  *at++ = static_cast<char>((left < 15 ? left : 15) << 4);
  if (left >= 15) {
    for (left -= 15; left >= 255; left -= 255) *at++ = static_cast<char>(255);
    *at++ = static_cast<char>(left);
  }
  std::memcpy(at, source, static_cast<std::size_t>(size));
  return static_cast<int>(at - target) + size;
}
