#include "cuda.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <map>
#include <mutex>
#include <tuple>

namespace framesmith {
namespace {

// The driver's types, as far as they are needed: results are ints, 0 is success; everything else is behind a pointer.
using Status = int;
constexpr int kMaxDynamicShared = 8;         // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
constexpr unsigned kSharedOfOld = 48 << 10;  // what a kernel gets without asking
constexpr unsigned kNonBlocking = 1;         // CU_STREAM_NON_BLOCKING

struct Driver {
  Status (*module_load)(void** module, const void* image);
  Status (*module_function)(void** function, void* module, const char* name);
  Status (*function_set)(void* function, int attribute, int value);
  Status (*launch)(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void* stream, void** arguments, void** extra);
  Status (*copy_in)(uintptr_t to, const void* from, size_t bytes, void* stream);
  Status (*copy_within)(uintptr_t to, uintptr_t from, size_t bytes, void* stream);
  Status (*launch_graph)(void* executable, void* stream);
  Status (*is_capturing)(void* stream, int* status);
  Status (*new_stream)(void** stream, unsigned flags);
  Status (*current_context)(void** context);
  Status (*set_context)(void* context);
  Status (*device)(int* device, int ordinal);
  Status (*retain_primary)(void** context, int device);
  Status (*error_text)(Status status, const char** text);
  Status (*current_stream)(int32_t device, void** stream);  // PyTorch's, by its stable C functions
};

void* open_library(const char* name, int flags) {
  void* library = dlopen(name, flags);
  TORCH_CHECK(library, "framesmith: cannot load ", name, ": ", dlerror());
  return library;
}

template <typename F>
void find(F& function, void* library, const char* name) {
  function = reinterpret_cast<F>(dlsym(library, name));
  TORCH_CHECK(function, "framesmith: ", name, " is missing");
}

Driver open_driver() {
  Driver d;
  void* cuda = open_library("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  find(d.module_load, cuda, "cuModuleLoadData");
  find(d.module_function, cuda, "cuModuleGetFunction");
  find(d.function_set, cuda, "cuFuncSetAttribute");
  find(d.launch, cuda, "cuLaunchKernel");
  find(d.copy_in, cuda, "cuMemcpyHtoDAsync_v2");
  find(d.copy_within, cuda, "cuMemcpyDtoDAsync_v2");
  find(d.launch_graph, cuda, "cuGraphLaunch");
  find(d.is_capturing, cuda, "cuStreamIsCapturing");
  find(d.new_stream, cuda, "cuStreamCreate");
  find(d.current_context, cuda, "cuCtxGetCurrent");
  find(d.set_context, cuda, "cuCtxSetCurrent");
  find(d.device, cuda, "cuDeviceGet");
  find(d.retain_primary, cuda, "cuDevicePrimaryCtxRetain");
  find(d.error_text, cuda, "cuGetErrorString");
  find(d.current_stream, open_library("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD),
       "aoti_torch_get_current_cuda_stream");
  return d;
}

const Driver& driver() {
  static const Driver found = open_driver();
  return found;
}

void need_context(int ordinal) {
  void* context = nullptr;
  check_cuda(driver().current_context(&context), "no context");
  if (C10_LIKELY(context != nullptr)) return;
  int device = 0;
  check_cuda(driver().device(&device, ordinal), "no such device");
  // held by the runtime as well, for the life of the process
  check_cuda(driver().retain_primary(&context, device), "no context");
  check_cuda(driver().set_context(context), "no context");
}

}  // namespace

void check_cuda(int status, const char* what) {
  if (C10_LIKELY(status == 0)) return;
  const char* text = nullptr;
  driver().error_text(status, &text);
  TORCH_CHECK(false, "framesmith: ", what, ": CUDA error ", status, ": ", text ? text : "unknown");
}

CudaKernel load_cuda_kernel(int device, const Image& image) {
  static std::mutex mutex;
  static auto* loaded = new std::map<std::tuple<int, std::string, std::string>, void*>();
  std::lock_guard<std::mutex> lock(mutex);
  need_context(device);
  void*& function = (*loaded)[{device, image.name, image.image}];
  if (!function) {
    void *module = nullptr, *found = nullptr;
    check_cuda(driver().module_load(&module, image.image.data()), "cannot load a kernel");
    check_cuda(driver().module_function(&found, module, image.name.c_str()), "cannot find a kernel");
    if (image.shared > kSharedOfOld)
      check_cuda(driver().function_set(found, kMaxDynamicShared, static_cast<int>(image.shared)),
                 "too much shared memory");
    function = found;
  }
  return {function, image.threads, image.shared};
}

void* cuda_stream(int device) {
  need_context(device);
  void* stream = nullptr;
  TORCH_CHECK(driver().current_stream(device, &stream) == 0, "framesmith: no current stream");
  return stream;
}

int launch_cuda_kernel(const CudaKernel& k, void* stream, unsigned x, unsigned y, unsigned z, void** arguments) {
  if (!(x && y && z)) return 0;
  return driver().launch(k.function, x, y, z, k.threads, 1, 1, k.shared, stream, arguments, nullptr);
}

void copy_to_cuda(void* to, const void* from, size_t bytes, void* stream) {
  check_cuda(driver().copy_in(reinterpret_cast<uintptr_t>(to), from, bytes, stream), "cannot copy to the device");
}

void copy_on_cuda(void* to, const void* from, size_t bytes, void* stream) {
  check_cuda(driver().copy_within(reinterpret_cast<uintptr_t>(to), reinterpret_cast<uintptr_t>(from), bytes, stream),
             "cannot copy on the device");
}

int launch_cuda_graph(void* executable, void* stream) { return driver().launch_graph(executable, stream); }

bool cuda_is_capturing(void* stream) {
  int status = 0;
  return driver().is_capturing(stream, &status) != 0 || status != 0;
}

void* new_cuda_stream(int device) {
  need_context(device);
  void* stream = nullptr;
  check_cuda(driver().new_stream(&stream, kNonBlocking), "no stream");
  return stream;
}

}  // namespace framesmith
