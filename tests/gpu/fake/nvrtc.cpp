// NVRTC without a GPU: libnvrtc.so.13 that makes of .cu text a shared object for the fake driver, by g++ and emu.h.
//
// EMU_FLAGS adds flags (a sanitizer's).  Its version is that of its file's name, so that a copy is another one's, and
// a minor one that differs from every real one's, so no cache mixes them up.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace fs = std::filesystem;

struct Program {
  std::string source, name, log, object;
  std::vector<std::pair<std::string, std::string>> headers;  // name and text
};

namespace {

enum Result { kSuccess = 0, kOutOfMemory = 1, kInvalidInput = 3, kCompilation = 6 };

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void write(const fs::path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

// The kernels that the text defines, as lines that make them callable.
std::string entries(const std::string& source) {
  const std::string begin = "extern \"C\" __global__ void __launch_bounds__(";
  std::string lines;
  for (size_t at = source.find(begin); at != std::string::npos; at = source.find(begin, at + 1)) {
    const size_t name = source.find_first_not_of(" \n", source.find(')', at) + 1);
    lines += "EMU_KERNEL(" + source.substr(name, source.find('(', name) - name) + ")\n";
  }
  return lines;
}

std::string quoted(const std::string& word) { return "'" + word + "'"; }

std::string command(const Program& program, const fs::path& folder, int count, const char* const* options) {
  std::string line = "g++ -x c++ -std=c++20 -O2 -g -mavx2 -mfma -ffp-contract=fast -fno-math-errno -shared -fPIC -fvisibility=hidden";
  line += " -Wall -Wextra -Werror -Wno-unknown-pragmas -include " + quoted(EMU_HEADER);
  if (const char* more = getenv("EMU_FLAGS")) line += std::string(" ") + more;
  for (int i = 0; i < count; ++i)
    if (!strncmp(options[i], "-D", 2)) line += " " + quoted(options[i]);
  return line + " -I " + quoted(folder) + " -o " + quoted(folder / "out.so") + " " + quoted(folder / program.name) +
         " > " + quoted(folder / "log") + " 2>&1";
}

}  // namespace

extern "C" {
int nvrtcVersion(int* major, int* minor) {
  Dl_info here;
  if (!dladdr(reinterpret_cast<void*>(&nvrtcVersion), &here)) return kInvalidInput;
  *major = std::stoi(fs::path(here.dli_fname).extension().string().substr(1)), *minor = 9000;
  return kSuccess;
}

const char* nvrtcGetErrorString(int result) { return result == kCompilation ? "NVRTC_ERROR_COMPILATION" : "NVRTC error"; }

int nvrtcCreateProgram(Program** made, const char* source, const char* name, int count, const char* const* texts,
                       const char* const* names) {
  *made = new Program{source, name, "", "", {}};
  for (int i = 0; i < count; ++i) (*made)->headers.emplace_back(names[i], texts[i]);
  return kSuccess;
}

int nvrtcCompileProgram(Program* program, int count, const char* const* options) {
  std::string folder = (fs::temp_directory_path() / "emulated-XXXXXX").string();
  if (!mkdtemp(folder.data())) return kOutOfMemory;
  const fs::path at(folder);
  unsetenv("LD_PRELOAD");  // the compiler needs no sanitizer that was loaded for its product
  for (auto& [name, text] : program->headers) write(at / name, text);
  write(at / program->name, program->source + "\n" + entries(program->source));
  const bool failed = std::system(command(*program, at, count, options).c_str()) != 0;
  program->log = read(at / "log");
  if (!failed) program->object = read(at / "out.so");
  fs::remove_all(at);
  return failed ? kCompilation : kSuccess;
}

int nvrtcGetProgramLogSize(Program* program, size_t* size) { return *size = program->log.size() + 1, kSuccess; }
int nvrtcGetProgramLog(Program* program, char* out) { return strcpy(out, program->log.c_str()), kSuccess; }
int nvrtcGetCUBINSize(Program* program, size_t* size) { return *size = program->object.size(), kSuccess; }
int nvrtcGetCUBIN(Program* program, char* out) {
  memcpy(out, program->object.data(), program->object.size());
  return kSuccess;
}
int nvrtcDestroyProgram(Program** program) {
  delete *program;
  *program = nullptr;
  return kSuccess;
}
}
