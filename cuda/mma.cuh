// Numbers of 16 bits, two to a word, and the instructions of tensor cores that load and multiply tiles of them
// (https://docs.nvidia.com/cuda/parallel-thread-execution/index.html, "ldmatrix" and "mma.m16n8k16").
//
// float16 is there on every card from compute capability 7.5, bfloat16 from 8.0.  Products are exact and are summed in
// float32, in an order that is the card's own.  An emulated card brings its own of these functions.
#pragma once

struct Half {
  static constexpr bool brain = false;
};
struct Brain {
  static constexpr bool brain = true;
};

#ifdef __CUDA_ARCH__

// Two numbers, rounded to the nearest; the first in the lower half.
template <typename Number>
__device__ __forceinline__ unsigned pack(float low, float high) {
  unsigned word;
#if __CUDA_ARCH__ >= 800
  if (Number::brain) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  }
#else
  static_assert(!Number::brain, "this card has no bfloat16");
  asm("{.reg .b16 l, h; cvt.rn.f16.f32 l, %1; cvt.rn.f16.f32 h, %2; mov.b32 %0, {l, h};}"
      : "=r"(word)
      : "f"(low), "f"(high));
#endif
  return word;
}

// The number that such 16 bits stand for.
template <typename Number>
__device__ __forceinline__ float unpack(unsigned short bits) {
  if (Number::brain) return __uint_as_float((unsigned)bits << 16);
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

// Four matrices of 8 by 8 from shared memory; lane l names row l % 8 of matrix l / 8, at a multiple of 16 bytes, and gets
// of each matrix two neighbours in row l / 4.
__device__ __forceinline__ void load_matrices(unsigned (&words)[4], const unsigned* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"((unsigned)__cvta_generic_to_shared(row))
               : "memory");
}

// The same of matrices that are turned over: of each two neighbours in column l / 4.
__device__ __forceinline__ void load_transposed(unsigned (&words)[4], const unsigned* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"((unsigned)__cvta_generic_to_shared(row))
               : "memory");
}

// sums += left right^T: left 16 by 16 of four matrices (upper, lower, upper right, lower right), right 8 by 16 of two side
// by side.  A lane has of the sums two neighbours in row lane / 4, at columns lane % 4 * 2, and two eight rows below.
template <typename Number>
__device__ __forceinline__ void multiply_add(float (&sums)[4], const unsigned (&left)[4], const unsigned* right) {
#if __CUDA_ARCH__ >= 800
  if (Number::brain) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]));
  } else {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]));
  }
#else
#pragma unroll
  for (int half = 0; half < 2; ++half)
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(left[2 * half]), "r"(left[2 * half + 1]), "r"(right[half]));
#endif
}

#endif
