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

class Library {
 public:
  Library(const char* name, int flags) : library_(dlopen(name, flags)) {
    TORCH_CHECK(library_, "framesmith: cannot load ", name, ": ", dlerror());
  }
  struct Symbol {
    void* found;
    template <typename F> operator F*() const { return reinterpret_cast<F*>(found); }
  };
  Symbol operator[](const char* name) const {
    void* found = dlsym(library_, name);
    TORCH_CHECK(found, "framesmith: ", name, " is missing");
    return {found};
  }

 private:
  void* library_;
};

struct Driver {
  Library cuda{"libcuda.so.1", RTLD_NOW | RTLD_LOCAL}, torch{"libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD};
  Status (*module_load)(void** module, const void* image) = cuda["cuModuleLoadData"];
  Status (*module_function)(void** function, void* module, const char* name) = cuda["cuModuleGetFunction"];
  Status (*function_set)(void* function, int attribute, int value) = cuda["cuFuncSetAttribute"];
  Status (*launch)(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void* stream, void** arguments, void** extra) = cuda["cuLaunchKernel"];
  Status (*copy_in)(uintptr_t to, const void* from, size_t bytes, void* stream) = cuda["cuMemcpyHtoDAsync_v2"];
  Status (*copy_within)(uintptr_t to, uintptr_t from, size_t bytes, void* stream) = cuda["cuMemcpyDtoDAsync_v2"];
  Status (*launch_graph)(void* executable, void* stream) = cuda["cuGraphLaunch"];
  Status (*is_capturing)(void* stream, int* status) = cuda["cuStreamIsCapturing"];
  Status (*new_stream)(void** stream, unsigned flags) = cuda["cuStreamCreate"];
  Status (*current_context)(void** context) = cuda["cuCtxGetCurrent"];
  Status (*set_context)(void* context) = cuda["cuCtxSetCurrent"];
  Status (*device)(int* device, int ordinal) = cuda["cuDeviceGet"];
  Status (*retain_primary)(void** context, int device) = cuda["cuDevicePrimaryCtxRetain"];
  Status (*error_text)(Status status, const char** text) = cuda["cuGetErrorString"];
  // PyTorch's, by its stable C functions
  Status (*current_stream)(int32_t device, void** stream) = torch["aoti_torch_get_current_cuda_stream"];
};

const Driver& driver() {
  static const Driver found;
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
