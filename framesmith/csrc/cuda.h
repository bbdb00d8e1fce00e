// Kernels on CUDA devices by the driver, which is loaded at run time: one build serves machines with and without a GPU.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace framesmith {

// A compiled kernel as the plan holds it: `image` is a cubin, `name` its entry.
struct Image {
  std::string name, image;
  unsigned threads = 0, shared = 0;  // threads of a block; bytes of dynamic shared memory
};

// The same, loaded on one device.
struct CudaKernel {
  void* function = nullptr;
  unsigned threads = 0, shared = 0;
};

// The kernel of `image` on `device`, which must be the current device. Equal images are loaded once a device, for the
// life of the process: recorded CUDA graphs may call them after the compiled graph is gone.
CudaKernel load_cuda_kernel(int device, const Image& image);

// PyTorch's current stream of `device`, as the driver knows it. A thread without a context gets the device's.
void* cuda_stream(int device);

// Throws what the driver said, unless `status` is success.
void check_cuda(int status, const char* what);

int launch_cuda_kernel(const CudaKernel& kernel, void* stream, unsigned x, unsigned y, unsigned z, void** arguments);

// Queues a copy of host memory, which may change as soon as this returns.
void copy_to_cuda(void* to, const void* from, size_t bytes, void* stream);

// Queues a copy within the device.
void copy_on_cuda(void* to, const void* from, size_t bytes, void* stream);

// Queues what a CUDA graph holds: `executable` as the driver knows it.
int launch_cuda_graph(void* executable, void* stream);

// Whether what is queued on `stream` is recorded in a CUDA graph.
bool cuda_is_capturing(void* stream);

// A stream of `device`, the current device, that nobody else uses; for the life of the process.
void* new_cuda_stream(int device);

}  // namespace framesmith
