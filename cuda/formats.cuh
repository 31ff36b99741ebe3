// Weights as GGUF files hold them, made into float32, eight neighbours of a row at a time.
//
// Each format: elements and bytes of a block, and `load8(row, column, out)`, where column is a multiple of 8.  Layouts:
// https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h.  Blocks are kept as they lie in the file; most begin
// at any multiple of two bytes, so nothing wider than that is read at once.
#pragma once

// The number that the 16 bits of a float16 stand for.
__device__ __forceinline__ float half_at(const unsigned char* at) {
  const unsigned short bits = *reinterpret_cast<const unsigned short*>(at);
#ifdef __CUDA_ARCH__
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
#else
  // Shifted into place it is too small by 2^112, denormals too; what is not finite stays so.
  const float small = __uint_as_float((bits & 0x7fffu) << 13);
  const float value = (bits & 0x7c00u) == 0x7c00u ? __uint_as_float((bits & 0x7fffu) << 13 | 0x7f800000u)
                                                  : small * 5.192296858534828e33f;
  return bits & 0x8000u ? -value : value;
#endif
}

struct F32 {
  static constexpr int elements = 1, bytes = 4;
  static __device__ __forceinline__ void load8(const unsigned char* row, int column, float (&out)[8]) {
    const float* from = reinterpret_cast<const float*>(row) + column;
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = from[i];
  }
};

struct F16 {
  static constexpr int elements = 1, bytes = 2;
  static __device__ __forceinline__ void load8(const unsigned char* row, int column, float (&out)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = half_at(row + 2 * (column + i));
  }
};

// The upper half of a float32.
struct BF16 {
  static constexpr int elements = 1, bytes = 2;
  static __device__ __forceinline__ void load8(const unsigned char* row, int column, float (&out)[8]) {
    const unsigned short* from = reinterpret_cast<const unsigned short*>(row) + column;
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = __uint_as_float((unsigned)from[i] << 16);
  }
};

// The i-th of a block's 32 values of four bits, in 16 bytes: the low halves are the first 16 elements.
__device__ __forceinline__ int nibble(const unsigned char* packed, int i) {
  return i < 16 ? packed[i] & 15 : packed[i - 16] >> 4;
}

// And its fifth bit, of 32 in four bytes.
__device__ __forceinline__ int fifth(const unsigned char* bits, int i) { return (bits[i / 8] >> i % 8 & 1) << 4; }

// Scale, minimum where there is one, fifth bits where there are, nibbles: value * scale + minimum, and without a minimum
// (value - half of how many values there are) * scale.
template <bool kFifths, bool kMinimum>
struct Nibbles {
  static constexpr int elements = 32, scales = kMinimum ? 4 : 2, packed = scales + (kFifths ? 4 : 0), bytes = packed + 16;
  static __device__ __forceinline__ void load8(const unsigned char* row, int column, float (&out)[8]) {
    const unsigned char* block = row + column / 32 * bytes;
    const float scale = half_at(block), minimum = kMinimum ? half_at(block + 2) : 0.f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int at = column % 32 + i;
      const int value = nibble(block + packed, at) | (kFifths ? fifth(block + scales, at) : 0);
      out[i] = kMinimum ? value * scale + minimum : (value - (kFifths ? 16 : 8)) * scale;
    }
  }
};
using Q4_0 = Nibbles<false, false>;
using Q4_1 = Nibbles<false, true>;
using Q5_0 = Nibbles<true, false>;
using Q5_1 = Nibbles<true, true>;

// Scale, 32 signed bytes.
struct Q8_0 {
  static constexpr int elements = 32, bytes = 34;
  static __device__ __forceinline__ void load8(const unsigned char* row, int column, float (&out)[8]) {
    const unsigned char* block = row + column / 32 * bytes;
    const signed char* values = reinterpret_cast<const signed char*>(block + 2) + column % 32;
    const float scale = half_at(block);
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = values[i] * scale;
  }
};

// The six bits of the scale and of the minimum of one of eight parts of a block of 256, in twelve bytes.
__device__ __forceinline__ void six_bits(const unsigned char* packed, int part, int& scale, int& minimum) {
  if (part < 4) {
    scale = packed[part] & 63;
    minimum = packed[part + 4] & 63;
  } else {
    scale = (packed[part + 4] & 15) | packed[part - 4] >> 6 << 4;
    minimum = packed[part + 4] >> 4 | packed[part] >> 6 << 4;
  }
}

// Scale, scale of minima, 8 parts' own of both, fifth bits where there are (32 bytes, a bit for each part), nibbles: value
// * scale - minimum.  32 bytes of nibbles make two parts.
template <bool kFifths>
struct NibblesInParts {
  static constexpr int elements = 256, packed = kFifths ? 48 : 16, bytes = packed + 128;
  static __device__ __forceinline__ void load8(const unsigned char* row, int column, float (&out)[8]) {
    const unsigned char* block = row + column / 256 * bytes;
    const int part = column % 256 / 32;
    int scale, minimum;
    six_bits(block + 4, part, scale, minimum);
    const float by = half_at(block) * scale, less = half_at(block + 2) * minimum;
    const unsigned char* fifths = block + 16 + column % 32;
    const unsigned char* nibbles = block + packed + part / 2 * 32 + column % 32;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      out[i] = by * ((nibbles[i] >> part % 2 * 4 & 15) | (kFifths ? (fifths[i] >> part & 1) << 4 : 0)) - less;
  }
};
using Q4_K = NibblesInParts<false>;
using Q5_K = NibblesInParts<true>;

// Nibbles, two more bits, 16 signed bytes of scales, scale: (value - 32) * scales.  Half a block is four parts of 32.
struct Q6_K {
  static constexpr int elements = 256, bytes = 210;
  static __device__ __forceinline__ void load8(const unsigned char* row, int column, float (&out)[8]) {
    const unsigned char* block = row + column / 256 * bytes;
    const int half = column % 256 / 128, part = column % 128 / 32, at = column % 32;
    const unsigned char* low = block + half * 64 + part % 2 * 32 + at;
    const unsigned char* high = block + 128 + half * 32 + at;
    const signed char own = reinterpret_cast<const signed char*>(block + 192)[half * 8 + part * 2 + at / 16];
    const float scale = half_at(block + 208) * own;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      out[i] = scale * (((low[i] >> part / 2 * 4 & 15) | (high[i] >> part * 2 & 3) << 4) - 32);
  }
};
