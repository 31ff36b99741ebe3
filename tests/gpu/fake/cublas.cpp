// cuBLAS without a GPU: libcublas.so.13 over the fake driver, in the order of its streams and with its checks of memory.
//
// A sum's order follows from the shape of the product, from the row's place in it, from where the matrices lie and from
// the memory to work in, as that of cuBLAS may.  So whoever asks for a row in another shape or at another place gets
// other bits.  Like cuBLAS it leaves anything in the memory that it works in.
//
//   FAKECUBLAS_VERSION  a hundred times its major version, and its minor one; where unset that of its file's name, and 9
//   FAKECUBLAS_CREATE   the status of cublasCreate
//   FAKECUBLAS_FAULT    a file: once it exists, the next product has the status (a number) in it
#include <cuda.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <vector>

using Work = std::function<CUresult()>;
extern "C" CUresult fakecuda_tell(CUstream stream, const Work* work);
extern "C" int fakecuda_inside(CUdeviceptr at, size_t size);

namespace {

enum Status { kSuccess = 0, kNotInitialized = 1, kAllocFailed = 3, kInvalidValue = 7, kExecutionFailed = 13, kNotSupported = 15 };
enum Kind { kFloat32 = 0, kHalf = 2, kBrain = 14 };

struct Handle {
  CUstream stream = nullptr;
  char* room = nullptr;
  size_t room_bytes = 0;
};

int number_from(const char* variable, int otherwise) {
  const char* text = getenv(variable);
  return text ? atoi(text) : otherwise;
}

// By which a copy is another version's.
int version_of_file() {
  static const char here = 0;
  Dl_info info;
  const char* name = dladdr(&here, &info) ? strrchr(info.dli_fname, '.') : nullptr;
  return name ? atoi(name + 1) : 0;
}

int injected() {
  int status = 0;
  if (const char* path = getenv("FAKECUBLAS_FAULT")) std::ifstream(path) >> status;
  return status;
}

float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

int size_of(int kind) { return kind == kFloat32 ? 4 : 2; }

float number_at(const void* numbers, size_t at, int kind) {
  if (kind == kFloat32) return static_cast<const float*>(numbers)[at];
  const uint32_t bits = static_cast<const uint16_t*>(numbers)[at];
  if (kind == kBrain) return float_of(bits << 16);
  const bool finite = (bits & 0x7c00u) != 0x7c00u;
  const float size = finite ? float_of((bits & 0x7fffu) << 13) * 5.192296858534828e33f
                            : float_of((bits & 0x7fffu) << 13 | 0x7f800000u);
  return bits & 0x8000u ? -size : size;
}

struct Product {
  int outputs, rows, columns, kind, weights_apart, x_apart, out_apart;
  const void *weights, *x;
  float* out;
  bool adds;
  char* room;
  size_t room_bytes;

  bool lies_inside() const {
    auto bytes = [](int count, int apart, int width, int size) { return (size_t(count - 1) * apart + width) * size; };
    auto inside = [](const void* at, size_t size) { return fakecuda_inside(reinterpret_cast<uintptr_t>(at), size) != 0; };
    const int size = size_of(kind);
    return inside(weights, bytes(outputs, weights_apart, columns, size)) &&
           inside(x, bytes(rows, x_apart, columns, size)) && inside(out, bytes(rows, out_apart, outputs, 4)) &&
           inside(room, room_bytes);
  }

  // Where a row's sums begin; from there they go round.
  int first(int row) const {
    const uintptr_t places = uintptr_t(weights) % 256 + 3 * (uintptr_t(x) % 256) + 5 * (uintptr_t(out) % 256);
    return int((size_t(row) * 7 + size_t(rows) * 11 + size_t(outputs) * 13 + places + room_bytes / 256 * 17) % columns);
  }

  CUresult run() const {
    memset(room, 0xff, room_bytes < 4096 ? room_bytes : 4096);
    std::vector<float> turned(size_t(columns) * outputs), sums(outputs);  // all outputs' first weights, their second, ...
    for (int output = 0; output < outputs; ++output)
      for (int column = 0; column < columns; ++column)
        turned[size_t(column) * outputs + output] = number_at(weights, size_t(output) * weights_apart + column, kind);
    for (int row = 0; row < rows; ++row) {
      std::fill(sums.begin(), sums.end(), 0.f);
      for (int i = 0; i < columns; ++i) {
        const int column = (first(row) + i) % columns;
        const float by = number_at(x, size_t(row) * x_apart + column, kind);
        for (int output = 0; output < outputs; ++output) sums[output] += by * turned[size_t(column) * outputs + output];
      }
      float* to = out + size_t(row) * out_apart;
      for (int output = 0; output < outputs; ++output) to[output] = adds ? to[output] + sums[output] : sums[output];
    }
    return CUDA_SUCCESS;
  }
};

int complain(const char* why) {
  fprintf(stderr, "fakecublas: %s\n", why);
  return kInvalidValue;
}

}  // namespace

extern "C" {

int cublasGetProperty(int which, int* value) {
  const int version = number_from("FAKECUBLAS_VERSION", 100 * version_of_file() + 9);
  if (which < 0 || which > 1) return kInvalidValue;
  *value = which ? version % 100 : version / 100;
  return kSuccess;
}

const char* cublasGetStatusString(int status) {
  switch (status) {
    case kNotInitialized: return "the library was not initialized";
    case kAllocFailed: return "the resource allocation failed";
    case kInvalidValue: return "an unsupported value or parameter was passed to the function";
    case kExecutionFailed: return "the function failed to launch on the GPU";
    default: return "another error of the emulated library";
  }
}

int cublasCreate_v2(Handle** made) {
  if (int status = number_from("FAKECUBLAS_CREATE", 0)) return status;
  *made = new Handle;
  return kSuccess;
}
int cublasDestroy_v2(Handle* handle) { return delete handle, number_from("FAKECUBLAS_DESTROY", 0); }
int cublasSetStream_v2(Handle* handle, CUstream stream) {
  *handle = Handle{stream, nullptr, 0};  // its memory is that of all again
  return kSuccess;
}
int cublasSetWorkspace_v2(Handle* handle, void* room, size_t room_bytes) {
  if (uintptr_t(room) % 256) return kInvalidValue;
  handle->room = static_cast<char*>(room), handle->room_bytes = room_bytes;
  return kSuccess;
}
int cublasSetMathMode(Handle*, int mode) { return mode & ~16 ? kInvalidValue : kSuccess; }
int cublasSetAtomicsMode(Handle*, int mode) { return mode ? kNotSupported : kSuccess; }

int cublasGemmEx(Handle* handle, int turn_left, int turn_right, int m, int n, int k, const float* alpha, const void* a,
                 int a_kind, int a_apart, const void* b, int b_kind, int b_apart, const float* beta, void* c, int c_kind,
                 int c_apart, int compute, int algorithm) {
  if (int status = injected()) return status;
  if (turn_left != 1 || turn_right || *alpha != 1 || (*beta && *beta != 1)) return kNotSupported;
  if (a_kind != b_kind || (a_kind != kFloat32 && a_kind != kHalf && a_kind != kBrain) || c_kind != kFloat32) return kNotSupported;
  if (compute != 68 || algorithm != -1) return kNotSupported;
  if (!handle->room) return complain("it was given no memory to work in");
  if (m < 1 || n < 1 || k < 1 || a_apart < k || b_apart < k || c_apart < m) return complain("an impossible shape");
  const Product product{m, n, k, a_kind, a_apart, b_apart, c_apart, a, b, static_cast<float*>(c),
                        *beta != 0, handle->room, handle->room_bytes};
  if (!product.lies_inside()) return complain("a matrix lies outside of what was allocated");
  const Work work = [product] { return product.run(); };
  return fakecuda_tell(handle->stream, &work) ? kExecutionFailed : kSuccess;
}

}  // extern "C"
