// A CUDA driver without a GPU: libcuda.so.1 over kernels that emu.h built, so that the real PyCUDA runs on a processor.
//
// Work on a stream waits until somebody synchronizes with it: what reads too early, or fills a buffer again too early,
// gets wrong numbers.  Memory is NaN until it is written.  A failed kernel poisons everything that follows, as on a
// card.  What the engine never calls is in unused.cpp.
//
//   FAKECUDA_MEMORY   bytes that the device has; 1 GiB where unset
//   FAKECUDA_PINNED   bytes of the host that can be pinned at once
//   FAKECUDA_GRAPH    launches that a graph may have
//   FAKECUDA_FAULT    a file: once it exists, the next launch fails with the CUresult (a number) in it
//   FAKECUDA_DEVICES  how many there are; one where unset
//   FAKECUDA_CAPABILITY  ten times its compute capability (90)
//   FAKECUDA_VERSION  what cuDriverGetVersion says
//   FAKECUDA_CONTEXT  the CUresult (a number) of taking the context
//   FAKECUDA_STREAM   and of making a stream
#include <cuda.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

using Work = std::function<CUresult()>;

struct CUctx_st {};
struct CUmod_st { void* library; };
struct CUgraph_st { std::vector<Work> work; };
struct CUgraphExec_st { std::vector<Work> work; };
struct CUstream_st {
  std::deque<Work> waiting;
  uint64_t told = 0, done = 0;
  CUgraph captured = nullptr;
};
struct CUevent_st {
  CUstream stream = nullptr;
  uint64_t after = 0;
};
struct CUfunc_st {
  const char* (*launch)(void**, const unsigned*, const unsigned*);
  std::string name, letters;
};

namespace {

std::recursive_mutex one_at_a_time;
#define ALONE std::lock_guard<std::recursive_mutex> alone(one_at_a_time)

std::map<CUdeviceptr, size_t> allocated;
size_t used;
thread_local std::vector<CUcontext> contexts;
CUctx_st primary;
CUstream_st default_stream;
std::vector<CUstream> streams{&default_stream};
CUresult poison = CUDA_SUCCESS;
int launched;  // calls from the host

size_t number_from(const char* variable, size_t otherwise) {
  const char* text = getenv(variable);
  return text ? strtoull(text, nullptr, 10) : otherwise;
}

size_t memory() { return number_from("FAKECUDA_MEMORY", size_t(1) << 30); }

bool lies_inside(CUdeviceptr at, size_t size) {
  auto next = allocated.upper_bound(at);
  if (next == allocated.begin()) return false;
  --next;
  return at + size <= next->first + next->second;
}

CUresult do_one(CUstream stream) {
  Work work = std::move(stream->waiting.front());
  stream->waiting.pop_front();
  ++stream->done;
  const CUresult result = poison ? poison : work();
  if (result && !poison) poison = result;
  return result;
}

CUresult do_until(CUstream stream, uint64_t after) {
  while (stream->done < after && !stream->waiting.empty()) do_one(stream);
  return poison;
}

CUresult do_all() {
  for (CUstream stream : streams) do_until(stream, stream->told);
  return poison;
}

CUresult tell(CUstream asked, Work work) {
  if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (poison) return poison;
  CUstream stream = asked ? asked : &default_stream;
  if (stream->captured) {
    stream->captured->work.push_back(std::move(work));
  } else {
    stream->waiting.push_back(std::move(work));
    ++stream->told;
  }
  return CUDA_SUCCESS;
}

// While a stream takes down what it is told, much else isn't allowed.
bool capturing() {
  for (CUstream stream : streams)
    if (stream->captured) return true;
  return false;
}
#define NOT_CAPTURING \
  if (capturing()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED

// What waits by itself comes after all that was told before, on any stream.
CUresult do_now(Work work) {
  NOT_CAPTURING;
  if (CUresult result = do_all()) return result;
  if (CUresult result = tell(nullptr, std::move(work))) return result;
  return do_all();
}

Work copying(void* to, const void* from, size_t size) {
  return [=] {
    memmove(to, from, size);
    return CUDA_SUCCESS;
  };
}
Work copying(CUdeviceptr to, const void* from, size_t size) { return copying(reinterpret_cast<void*>(to), from, size); }
Work copying(void* to, CUdeviceptr from, size_t size) { return copying(to, reinterpret_cast<const void*>(from), size); }
Work copying(CUdeviceptr to, CUdeviceptr from, size_t size) {
  return copying(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), size);
}

Work filling(CUdeviceptr to, unsigned char value, size_t size) {
  return [=] {
    memset(reinterpret_cast<void*>(to), value, size);
    return CUDA_SUCCESS;
  };
}

// The size of an argument, from its letter.
size_t size_of(char letter) { return letter == 'i' || letter == 'f' ? 4 : 8; }

// Where each argument lies among the bytes of all of them; the last is the end.
std::vector<size_t> places(const std::string& letters) {
  std::vector<size_t> at;
  size_t end = 0;
  for (char letter : letters) {
    const size_t size = size_of(letter);
    at.push_back((end + size - 1) / size * size);
    end = at.back() + size;
  }
  at.push_back(end);
  return at;
}

CUresult injected_fault() {
  const char* path = getenv("FAKECUDA_FAULT");
  if (!path) return CUDA_SUCCESS;
  std::ifstream file(path);
  int code = 0;
  file >> code;
  return CUresult(code);
}

CUresult run_kernel(const CUfunc_st& function, std::string bytes, const unsigned* grid, const unsigned* block) {
  if (CUresult fault = injected_fault()) return fault;
  std::vector<void*> arguments;
  const auto at = places(function.letters);
  for (size_t i = 0; i + 1 < at.size(); ++i) arguments.push_back(&bytes[at[i]]);
  if (const char* why = function.launch(arguments.data(), grid, block)) {
    fprintf(stderr, "fakecuda: %s: %s\n", function.name.c_str(), why);
    return CUDA_ERROR_LAUNCH_FAILED;
  }
  return CUDA_SUCCESS;
}

// The bytes of all arguments, as PyCUDA packed them; false where they don't fit the kernel.
bool packed(const CUfunc_st& function, void** extra, std::string& bytes) {
  const char* from = nullptr;
  size_t size = 0;
  for (; extra && *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) from = static_cast<const char*>(extra[1]);
    if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE) size = *static_cast<size_t*>(extra[1]);
  }
  const size_t wanted = places(function.letters).back();
  if (size != wanted) {
    fprintf(stderr, "fakecuda: %s takes %zu bytes of arguments (%s), not %zu\n", function.name.c_str(), wanted,
            function.letters.c_str(), size);
    return false;
  }
  bytes.assign(from, size);
  return true;
}

#define MUST_LIE_INSIDE(at, size) \
  if (!lies_inside(at, size)) return CUDA_ERROR_INVALID_VALUE

}  // namespace

extern "C" {

// -- the device and its context

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int* version) {
  *version = int(number_from("FAKECUDA_VERSION", CUDA_VERSION));
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* devices) { return *devices = int(number_from("FAKECUDA_DEVICES", 1)), CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice* device, int number) {
  *device = number;
  return size_t(number) < number_from("FAKECUDA_DEVICES", 1) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDeviceGetName(char* name, int size, CUdevice) { return snprintf(name, size, "emulated"), CUDA_SUCCESS; }
CUresult cuDeviceTotalMem(size_t* size, CUdevice) { return *size = memory(), CUDA_SUCCESS; }
int capability() { return int(number_from("FAKECUDA_CAPABILITY", 90)); }
CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice) {
  return *major = capability() / 10, *minor = capability() % 10, CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice) {
  switch (which) {
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = capability() / 10; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = capability() % 10; break;
    default: *value = 0;
  }
  return CUDA_SUCCESS;
}
CUresult cuCtxCreate(CUcontext*, CUctxCreateParams*, unsigned, CUdevice) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
  return *context = &primary, CUresult(number_from("FAKECUDA_CONTEXT", 0));
}
CUresult cuDevicePrimaryCtxRelease(CUdevice) { return CUDA_SUCCESS; }
CUresult cuCtxPushCurrent(CUcontext context) { return contexts.push_back(context), CUDA_SUCCESS; }
CUresult cuCtxPopCurrent(CUcontext* context) {
  if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *context = contexts.back();
  contexts.pop_back();
  return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice* device) {
  *device = 0;
  return contexts.empty() ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}
CUresult cuCtxSynchronize() {
  ALONE;
  return do_all();
}

// -- memory

CUresult cuMemAlloc(CUdeviceptr* at, size_t size) {
  ALONE;
  if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (poison) return poison;
  NOT_CAPTURING;
  if (!size) return CUDA_ERROR_INVALID_VALUE;
  if (used + size > memory()) return CUDA_ERROR_OUT_OF_MEMORY;
  const size_t whole = (size + 255) / 256 * 256;
  char* made = static_cast<char*>(aligned_alloc(256, whole));
  memset(made, 0xff, whole);
#if defined(__SANITIZE_ADDRESS__)
  __asan_poison_memory_region(made + size, whole - size);
#endif
  *at = reinterpret_cast<CUdeviceptr>(made);
  allocated[*at] = size;
  used += size;
  return CUDA_SUCCESS;
}
CUresult cuMemFree(CUdeviceptr at) {
  ALONE;
  do_all();
  auto found = allocated.find(at);
  if (found == allocated.end()) return CUDA_ERROR_INVALID_VALUE;
  used -= found->second;
  allocated.erase(found);
  free(reinterpret_cast<void*>(at));
  return poison;
}
CUresult cuMemGetInfo(size_t* left, size_t* total) {
  ALONE;
  if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *total = memory();
  *left = *total > used ? *total - used : 0;
  return poison;
}
CUresult cuMemHostAlloc(void** at, size_t size, unsigned) {
  if (size > number_from("FAKECUDA_PINNED", SIZE_MAX)) return CUDA_ERROR_OUT_OF_MEMORY;
  *at = aligned_alloc(64, (size + 63) / 64 * 64);
  return *at ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuMemFreeHost(void* at) {
  ALONE;
  do_all();
  free(at);
  return poison;
}

// -- copies

// From memory that isn't pinned it may return when all was read, and before it is on the card; it lies on a stream that
// others, which don't block with it, don't wait for.
CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t size) {
  ALONE;
  NOT_CAPTURING;
  MUST_LIE_INSIDE(to, size);
  const char* read = static_cast<const char*>(from);
  return tell(nullptr, [=, kept = std::vector<char>(read, read + size)] {
    memcpy(reinterpret_cast<void*>(to), kept.data(), kept.size());
    return CUDA_SUCCESS;
  });
}
CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, size_t size) {
  ALONE;
  MUST_LIE_INSIDE(from, size);
  return do_now(copying(to, from, size));
}
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t size, CUstream stream) {
  ALONE;
  MUST_LIE_INSIDE(to, size);
  return tell(stream, copying(to, from, size));
}
CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t size, CUstream stream) {
  ALONE;
  MUST_LIE_INSIDE(from, size);
  return tell(stream, copying(to, from, size));
}
CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
  ALONE;
  MUST_LIE_INSIDE(to, size);
  MUST_LIE_INSIDE(from, size);
  return tell(stream, copying(to, from, size));
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t size, CUstream stream) {
  ALONE;
  MUST_LIE_INSIDE(to, size);
  return tell(stream, filling(to, value, size));
}

// -- streams and events

CUresult cuStreamCreate(CUstream* stream, unsigned) {
  ALONE;
  if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (size_t result = number_from("FAKECUDA_STREAM", 0)) return CUresult(result);
  streams.push_back(*stream = new CUstream_st);
  return poison;
}
CUresult cuStreamDestroy(CUstream stream) {
  ALONE;
  do_until(stream, stream->told);
  std::erase(streams, stream);
  delete stream;
  return poison;
}
CUresult cuStreamSynchronize(CUstream stream) {
  ALONE;
  if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (stream->captured) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  return do_until(stream, stream->told);
}
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
  ALONE;
  CUstream other = event->stream;
  const uint64_t after = event->after;
  return other ? tell(stream, [=] { return do_until(other, after); }) : CUDA_SUCCESS;
}
CUresult cuEventCreate(CUevent* event, unsigned) { return *event = new CUevent_st, poison; }
CUresult cuEventDestroy(CUevent event) { return delete event, poison; }
CUresult cuEventRecord(CUevent event, CUstream stream) {
  ALONE;
  event->stream = stream ? stream : &default_stream;
  event->after = event->stream->told;
  return poison;
}
CUresult cuEventSynchronize(CUevent event) {
  ALONE;
  NOT_CAPTURING;
  return event->stream ? do_until(event->stream, event->after) : poison;
}
// Who asks again and again sees one piece of work done each time.
CUresult cuEventQuery(CUevent event) {
  ALONE;
  if (event->stream) do_until(event->stream, std::min(event->after, event->stream->done + 1));
  if (poison) return poison;
  return event->stream && event->stream->done < event->after ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

// -- kernels

CUresult cuModuleLoad(CUmodule* module, const char* path) {
  ALONE;
  NOT_CAPTURING;
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    fprintf(stderr, "fakecuda: %s\n", dlerror());
    return CUDA_ERROR_INVALID_IMAGE;
  }
  *module = new CUmod_st{library};
  return CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule module) { return delete module, poison; }
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  const std::string suffix = name;
  void* launch = dlsym(module->library, ("emu_launch_" + suffix).c_str());
  void* letters = dlsym(module->library, ("emu_letters_" + suffix).c_str());
  if (!launch || !letters) return CUDA_ERROR_NOT_FOUND;
  *function = new CUfunc_st{reinterpret_cast<decltype(CUfunc_st::launch)>(launch), name,
                            reinterpret_cast<const char* (*)()>(letters)()};
  return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int* value, CUfunction_attribute, CUfunction) { return *value = 0, CUDA_SUCCESS; }
CUresult cuFuncSetBlockShape(CUfunction, int, int, int) { return CUDA_SUCCESS; }
CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                        unsigned bz, unsigned shared, CUstream stream, void**, void** extra) {
  ALONE;
  ++launched;
  std::string bytes;
  if (shared || !packed(*function, extra, bytes)) return CUDA_ERROR_INVALID_VALUE;
  return tell(stream, [=] {
    const unsigned grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
    return run_kernel(*function, bytes, grid, block);
  });
}

// -- graphs

CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode) {
  ALONE;
  if (!stream || stream->captured) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  stream->captured = new CUgraph_st;
  return poison;
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  ALONE;
  *graph = stream->captured;
  stream->captured = nullptr;
  return poison;
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec* made, CUgraph graph, unsigned long long) {
  if (graph->work.size() > number_from("FAKECUDA_GRAPH", SIZE_MAX)) return CUDA_ERROR_OUT_OF_MEMORY;
  return *made = new CUgraphExec_st{graph->work}, poison;
}
CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) {
  ALONE;
  for (const Work& work : graph->work)
    if (CUresult result = tell(stream, work)) return result;
  return CUDA_SUCCESS;
}
CUresult cuGraphDestroy(CUgraph graph) { return delete graph, poison; }
CUresult cuGraphExecDestroy(CUgraphExec graph) {
  ALONE;
  do_all();
  delete graph;
  return poison;
}

// What a library that works on streams needs: its work in their order, and whether memory is there.
CUresult fakecuda_tell(CUstream stream, const Work* work) {
  ALONE;
  NOT_CAPTURING;
  return tell(stream, *work);
}
int fakecuda_inside(CUdeviceptr at, size_t size) {
  ALONE;
  return lies_inside(at, size);
}

// How much was told and not done yet.
int fakecuda_waiting() {
  ALONE;
  size_t waiting = 0;
  for (CUstream stream : streams) waiting += stream->waiting.size();
  return int(waiting);
}

// How many launches the host told, from its beginning; of a replayed graph none.
int fakecuda_launched() { return launched; }

// What only the end of a process does on a card.
void fakecuda_heal() { poison = CUDA_SUCCESS; }

CUresult cuGetErrorString(CUresult result, const char** text) {
  switch (result) {
    case CUDA_ERROR_INVALID_VALUE: *text = "invalid argument"; break;
    case CUDA_ERROR_OUT_OF_MEMORY: *text = "out of memory"; break;
    case CUDA_ERROR_INVALID_CONTEXT: *text = "invalid device context"; break;
    case CUDA_ERROR_LAUNCH_FAILED: *text = "unspecified launch failure"; break;
    case CUDA_ERROR_ILLEGAL_ADDRESS: *text = "an illegal memory access was encountered"; break;
    default: *text = "an error of the emulated driver";
  }
  return CUDA_SUCCESS;
}

}  // extern "C"
