// What products are made of, in whatever numbers they are: rows of weights, what opens a gate, where a sum goes.
//
// WEIGHTS, given when this is compiled, is one of the formats of formats.cuh; GATE is silu where it isn't given.
#pragma once
#include "formats.cuh"

using Weights = WEIGHTS;

__device__ __forceinline__ const unsigned char* weights_row(const unsigned char* weights, int output, int columns) {
  return weights + (size_t)output * (columns / Weights::elements * Weights::bytes);
}

#ifndef GATE
#define GATE silu
#endif

__device__ __forceinline__ float silu(float gate) { return gate / (1.f + expf(-gate)); }

// By its approximation with a tangent (https://arxiv.org/abs/1606.08415): (1 + tanh(y / 2)) / 2 is 1 / (1 + e^-y).
__device__ __forceinline__ float gelu(float gate) {
  const float y = gate * (1.5957691216f + 0.07135481282f * gate * gate);
  return gate / (1.f + expf(-y));
}

// What is done with a sum.
struct Set {
  __device__ __forceinline__ void operator()(float& to, float sum) const { to = sum; }
};
struct Add {
  __device__ __forceinline__ void operator()(float& to, float sum) const { to += sum; }
};
