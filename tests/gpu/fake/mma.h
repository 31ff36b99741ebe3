// Tensor cores without any: what cuda/mma.cuh has for a card, lane by lane, in the layouts that the PTX manual gives.
//
// Knows the fibers of emu.h, which includes this.  Sums go column by column; a card has an order of its own.
#pragma once

namespace emu {

// As `handed`, of all registers that one multiplication takes.
inline uint32_t registers[kMostThreads / kWarp][2][kWarp][6];

EMU_OWN uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return bits;
}

EMU_OWN float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

// The nearest of 16 bits, of two the even one.
EMU_OWN uint32_t to_brain(float value) {
  const uint32_t bits = bits_of(value);
  return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}

EMU_OWN uint32_t to_half(float value) {
  const uint32_t sign = bits_of(value) >> 16 & 0x8000u, size = bits_of(value) & 0x7fffffffu;
  if (size > 0x7f800000u) return 0x7fffu;
  if (size >= 0x477ff000u) return sign | 0x7c00u;
  // Below the least normal one: in steps of 2^-24, which are those of float32 from 0.5 on.
  if (size < 0x38800000u) return sign | (bits_of(float_of(size) + 0.5f) - bits_of(0.5f));
  return sign | (size + 0xfffu + (size >> 13 & 1) - 0x38000000u) >> 13;
}

EMU_OWN float from_half(uint32_t half) {
  const float small = float_of((half & 0x7fffu) << 13) * 5.192296858534828e33f;
  const float value = (half & 0x7c00u) == 0x7c00u ? float_of((half & 0x7fffu) << 13 | 0x7f800000u) : small;
  return half & 0x8000u ? -value : value;
}

template <typename Number>
EMU_OWN float unpack(uint32_t word, int upper) {
  const uint32_t bits = upper ? word >> 16 : word & 0xffffu;
  return Number::brain ? float_of(bits << 16) : from_half(bits);
}

}  // namespace emu

template <typename Number>
EMU_OWN unsigned pack(float low, float high) {
  if (Number::brain) return emu::to_brain(low) | emu::to_brain(high) << 16;
  return emu::to_half(low) | emu::to_half(high) << 16;
}

template <typename Number>
EMU_OWN float unpack(unsigned short bits) {
  return emu::unpack<Number>(bits, 0);
}

inline void load_matrices(unsigned (&words)[4], const unsigned* row, EMU_LINE) {
  if (reinterpret_cast<uintptr_t>(row) % 16) emu::fail("a matrix's row is not at a multiple of 16 bytes", line);
  const unsigned lane = emu::rank() % emu::kWarp;
  for (unsigned i = 0; i < 4; ++i) words[i] = emu::take_from(~0u, row, i * 8 + lane / 4, line)[lane % 4];
}

inline void load_transposed(unsigned (&words)[4], const unsigned* row, EMU_LINE) {
  if (reinterpret_cast<uintptr_t>(row) % 16) emu::fail("a matrix's row is not at a multiple of 16 bytes", line);
  const unsigned lane = emu::rank() % emu::kWarp;
  for (unsigned i = 0; i < 4; ++i) {
    words[i] = 0;
    for (unsigned k = 0; k < 2; ++k) {
      const unsigned both = emu::take_from(~0u, row, i * 8 + lane % 4 * 2 + k, line)[lane / 8];
      words[i] |= (lane / 4 % 2 ? both >> 16 : both & 0xffffu) << 16 * k;
    }
  }
}

template <typename Number>
EMU_OWN void multiply_add(float (&sums)[4], const unsigned (&left)[4], const unsigned* right, EMU_LINE) {
  const unsigned lane = emu::rank() % emu::kWarp;
  emu::Warp& warp = emu::warp_of_all(~0u, line);
  auto& handed = emu::registers[emu::rank() / emu::kWarp][warp.barrier.turn & 1];
  for (int i = 0; i < 4; ++i) handed[lane][i] = left[i];
  for (int i = 0; i < 2; ++i) handed[lane][4 + i] = right[i];
  emu::wait_for_all(warp.barrier, emu::lanes(), line, false);
  for (unsigned i = 0; i < 4; ++i)
    for (unsigned k = 0; k < 16; ++k) {
      // Column k lies with the k % 8 / 2-th lane of four, in its register k / 8, in the half k % 2.
      const unsigned of_row = lane / 4 * 4 + k % 8 / 2, of_column = (lane % 4 * 2 + i % 2) * 4 + k % 8 / 2;
      sums[i] += emu::unpack<Number>(handed[of_row][i / 2 + k / 8 * 2], k % 2) *
                 emu::unpack<Number>(handed[of_column][4 + k / 8], k % 2);
    }
}
