// Lets g++ build a .cu file for the processor.  Knows CUDA's language; no driver, no stream, no memory but shared.
//
// The blocks of a launch run one after another.  A block's threads are fibers that take turns, and only at a barrier or
// a shuffle: so a run is the same every time, and a barrier that is missing, divergent or never completed shows.
// Backward, the last thread goes first: no result may depend on it.
//
// Emulated: threadIdx and its like, __shared__ arrays, __syncthreads, __syncwarp and shuffles of whole warps, tensor cores
// (mma.h), fmaf and a few more.  Not: the order between blocks, atomics, parts of a warp, dynamic shared memory, bank conflicts, fast math.
#pragma once
// Few headers: each kernel file is compiled with all of this.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <utility>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#elif defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

#define __global__
#define __device__
#define __constant__ static const
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(...)

// The emulator's own bookkeeping is shared by all fibers on purpose; TSan is to look at the kernels alone.
#define EMU_OWN __attribute__((no_sanitize_thread)) inline

struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x = 1, y = 1, z = 1; };

namespace emu {

constexpr unsigned kMostThreads = 1024;
constexpr unsigned kWarp = 32;
constexpr size_t kStackBytes = 128 << 10;
constexpr size_t kGuardBytes = 4096;

struct Thread {
  uint3 place;
  int line;  // where it waits
  bool returned;
  void* stack_pointer;
  char* stack;
  void* tsan_fiber;
};

// Those who wait for each other.
struct Barrier {
  unsigned arrived;
  unsigned turn;
  char passed[2];  // addresses that stand for the even and the odd turns
};

struct Warp {
  Barrier barrier;
  // What lanes hand over.  Two sets by turns: who is late still reads the one while who is early fills the other.
  uint64_t handed[2][kWarp];
};

inline Thread threads[kMostThreads];
inline Warp warps[kMostThreads / kWarp];
inline Barrier block_barrier;
inline Thread* current;  // none: the launch itself
inline unsigned count, running;
inline unsigned fruitless;  // turns since anything came about
inline void* launch_stack_pointer;
inline void (*kernel)(void**);
inline void** kernel_arguments;
inline uint3 block_place;
inline dim3 block_shape, grid_shape;
inline char entered, left;  // addresses that stand for a block's begin and end
inline char failure[256];

EMU_OWN bool backward() {
  static const bool set = getenv("EMU_BACKWARD") != nullptr;
  return set;
}

// Sanitizers are told of each change of stacks.  To TSan a fiber is a thread that only barriers order with others.
#if defined(__SANITIZE_ADDRESS__)
inline const void* launch_stack;
inline size_t launch_stack_size;
inline void leave(void** kept, Thread* to) {
  __sanitizer_start_switch_fiber(kept, to ? to->stack : launch_stack, to ? kStackBytes : launch_stack_size);
}
inline void arrive(void* kept) {
  const void* from;
  size_t size;
  __sanitizer_finish_switch_fiber(kept, &from, &size);
  if (size != kStackBytes) launch_stack = from, launch_stack_size = size;
}
inline void renew(Thread& thread) { __asan_unpoison_memory_region(thread.stack, kStackBytes); }
inline void release(void*) {}
inline void acquire(void*) {}
#elif defined(__SANITIZE_THREAD__)
inline void* launch_fiber;
EMU_OWN void leave(void**, Thread* to) {
  if (!launch_fiber) launch_fiber = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(to ? to->tsan_fiber : launch_fiber, __tsan_switch_to_fiber_no_sync);
}
EMU_OWN void arrive(void*) {}
EMU_OWN void renew(Thread& thread) {
  if (!thread.tsan_fiber) thread.tsan_fiber = __tsan_create_fiber(0);
}
EMU_OWN void release(void* what) { __tsan_release(what); }
EMU_OWN void acquire(void* what) { __tsan_acquire(what); }
#else
inline void leave(void**, Thread*) {}
inline void arrive(void*) {}
inline void renew(Thread&) {}
inline void release(void*) {}
inline void acquire(void*) {}
#endif

// Pushes what the x86-64 calling convention keeps, swaps stacks, pops.
extern "C" void emu_swap_stacks(void** keep_old, void* take_new) __attribute__((visibility("hidden")));
asm(R"(
.text
.weak emu_swap_stacks
.hidden emu_swap_stacks
.type emu_swap_stacks, @function
emu_swap_stacks:
  push %rbx
  push %rbp
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbp
  pop %rbx
  ret
)");

// The first that went wrong, and the line of the kernel's file.
EMU_OWN void fail(const char* why, int line) {
  if (!failure[0]) snprintf(failure, sizeof failure, "%s, line %d", why, line);
}

EMU_OWN void switch_to(Thread* to) {
  void** mine = current ? &current->stack_pointer : &launch_stack_pointer;
  void* kept = nullptr;
  current = to;
  leave(&kept, to);
  emu_swap_stacks(mine, to ? to->stack_pointer : launch_stack_pointer);
  arrive(kept);
}

EMU_OWN void give_up() {
  int first = 0, other = 0;
  for (unsigned i = 0; i < count; ++i) {
    if (threads[i].returned) continue;
    if (!first) first = threads[i].line;
    if (threads[i].line != first) other = threads[i].line;
  }
  fail(other ? "a barrier never completes: some threads wait in another line, not" : "a barrier never completes", first);
  switch_to(nullptr);
}

// Lets the next thread run that can.
EMU_OWN void pass_on() {
  if (++fruitless > 2 * count + 4) give_up();
  unsigned next = unsigned(current - threads);
  do next = (next + (backward() ? count - 1 : 1)) % count;
  while (threads[next].returned);
  if (&threads[next] != current) switch_to(&threads[next]);
}

EMU_OWN void complete(Barrier& barrier) {
  barrier.arrived = 0;
  ++barrier.turn;
}

// `orders`: whether memory is ordered by it too, as by a barrier and not by a shuffle.
EMU_OWN void wait_for_all(Barrier& barrier, unsigned all, int line, bool orders) {
  const unsigned turn = barrier.turn;
  current->line = line;
  fruitless = 0;
  // Who is woken late is not to be ordered after what an early one did since: that one releases the other turn.
  if (orders) release(&barrier.passed[turn & 1]);
  if (++barrier.arrived == all) complete(barrier);
  while (barrier.turn == turn) pass_on();
  if (orders) acquire(&barrier.passed[turn & 1]);
}

EMU_OWN void thread_begins() {
  arrive(nullptr);
  acquire(&entered);
  kernel(kernel_arguments);
  release(&left);
  current->returned = true;
  fruitless = 0;
  if (--running == 0) switch_to(nullptr);
  if (block_barrier.arrived == running) complete(block_barrier);  // who has returned is no longer waited for
  pass_on();
  abort();
}

EMU_OWN void prepare(Thread& thread, unsigned number) {
  if (!thread.stack) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    thread.stack = static_cast<char*>(mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, flags, -1, 0));
    mprotect(thread.stack, kGuardBytes, PROT_NONE);  // so an overflow faults
  }
  renew(thread);
  // Not all at the same place of a page: they would compete for the same lines of the cache.
  void** top = reinterpret_cast<void**>(thread.stack + kStackBytes - number % 32 * 192);
  *--top = nullptr;  // the return address of who never returns
  *--top = reinterpret_cast<void*>(thread_begins);
  for (int kept_register = 0; kept_register < 6; ++kept_register) *--top = nullptr;
  thread.stack_pointer = top;
  thread.returned = false;
  thread.line = 0;
  thread.place = {number % block_shape.x, number / block_shape.x % block_shape.y,
                  number / (block_shape.x * block_shape.y)};
}

EMU_OWN void run_block() {
  running = count;
  fruitless = 0;
  block_barrier = {};
  for (unsigned w = 0; w * kWarp < count; ++w) warps[w].barrier = {};
  for (unsigned i = 0; i < count; ++i) prepare(threads[i], i);
  release(&entered);
  switch_to(&threads[backward() ? count - 1 : 0]);
  acquire(&left);
}

// Returns what went wrong, or null.
EMU_OWN const char* launch(void (*body)(void**), void** arguments, const unsigned* grid, const unsigned* block) {
  const uint64_t threads_asked = uint64_t(block[0]) * block[1] * block[2];
  const uint64_t blocks = uint64_t(grid[0]) * grid[1] * grid[2];
  if (!threads_asked || threads_asked > kMostThreads || !blocks || grid[1] > 65535 || grid[2] > 65535)
    return "a launch of an impossible shape";
  count = unsigned(threads_asked);
  block_shape = {block[0], block[1], block[2]};
  grid_shape = {grid[0], grid[1], grid[2]};
  kernel = body;
  kernel_arguments = arguments;
  failure[0] = 0;
  for (uint64_t i = 0; i < blocks && !failure[0]; ++i) {
    block_place = {unsigned(i % grid[0]), unsigned(i / grid[0] % grid[1]), unsigned(i / grid[0] / grid[1])};
    run_block();
  }
  return failure[0] ? failure : nullptr;
}

EMU_OWN unsigned rank() { return unsigned(current - threads); }

EMU_OWN Warp& warp_of_all(unsigned mask, int line) {
  if (mask != ~0u) fail("only whole warps are emulated", line);
  return warps[rank() / kWarp];
}

EMU_OWN unsigned lanes() {
  const unsigned rest = count - rank() / kWarp * kWarp;
  return rest < kWarp ? rest : kWarp;
}

EMU_OWN void sync_warp(unsigned mask, int line) { wait_for_all(warp_of_all(mask, line).barrier, lanes(), line, true); }

template <typename T>
EMU_OWN T take_from(unsigned mask, T value, unsigned lane, int line) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  Warp& warp = warp_of_all(mask, line);
  uint64_t* handed = warp.handed[warp.barrier.turn & 1];
  memcpy(&handed[rank() % kWarp], &value, sizeof value);
  wait_for_all(warp.barrier, lanes(), line, false);
  if (lane >= lanes()) fail("a shuffle reads a lane that there is not", line);
  memcpy(&value, &handed[lane], sizeof value);
  return value;
}

// A kernel as a driver sees it: its arguments by their addresses, and their types as letters of Python's struct.
template <auto Function>
struct Entry;
template <typename... Types, void (*Function)(Types...)>
struct Entry<Function> {
  static void call(void** arguments) { spread(arguments, std::index_sequence_for<Types...>()); }
  template <size_t... I>
  static void spread(void** arguments, std::index_sequence<I...>) {
    Function(*static_cast<std::remove_const_t<Types>*>(arguments[I])...);
  }
  template <typename T>
  static constexpr char letter() {
    if (std::is_pointer_v<T>) return 'P';
    if (std::is_same_v<T, float>) return 'f';
    if (std::is_same_v<T, int>) return 'i';
    if (std::is_same_v<T, long long>) return 'q';
    return '?';
  }
  static constexpr char letters[] = {letter<Types>()..., 0};
};

}  // namespace emu

#define EMU_EXPORT extern "C" __attribute__((used, visibility("default")))
#define EMU_KERNEL(name)                                                                              \
  EMU_EXPORT const char* emu_launch_##name(void** a, const unsigned* grid, const unsigned* block) {   \
    return emu::launch(emu::Entry<name>::call, a, grid, block);                                       \
  }                                                                                                   \
  EMU_EXPORT const char* emu_letters_##name() { return emu::Entry<name>::letters; }

#define threadIdx (emu::current->place)
#define blockIdx (emu::block_place)
#define blockDim (emu::block_shape)
#define gridDim (emu::grid_shape)

#define EMU_LINE int line = __builtin_LINE()
inline void __syncthreads(EMU_LINE) { emu::wait_for_all(emu::block_barrier, emu::running, line, true); }
inline void __syncwarp(unsigned mask = ~0u, EMU_LINE) { emu::sync_warp(mask, line); }
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int with, int = 32, EMU_LINE) {
  return emu::take_from(mask, value, emu::rank() % emu::kWarp ^ unsigned(with), line);
}
template <typename T>
T __shfl_sync(unsigned mask, T value, int lane, int = 32, EMU_LINE) {
  return emu::take_from(mask, value, unsigned(lane), line);
}

inline float expf(float x) { return __builtin_expf(x); }
inline float sqrtf(float x) { return __builtin_sqrtf(x); }
inline float fmaxf(float a, float b) { return __builtin_fmaxf(a, b); }
inline float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float floorf(float x) { return __builtin_floorf(x); }
// Rounded each by itself: not inlined, or a compiler that contracts would make one of two.
[[gnu::noinline]] inline float __fadd_rn(float a, float b) { return a + b; }
[[gnu::noinline]] inline float __fmul_rn(float a, float b) { return a * b; }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)a * b >> 64);
}
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline unsigned __float_as_uint(float value) {
  unsigned bits;
  memcpy(&bits, &value, 4);
  return bits;
}
inline float __uint_as_float(unsigned bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
inline float __int_as_float(int bits) { return __uint_as_float(unsigned(bits)); }
template <typename T> T min(T a, T b) { return b < a ? b : a; }
template <typename T> T max(T a, T b) { return a < b ? b : a; }

#include "mma.h"
