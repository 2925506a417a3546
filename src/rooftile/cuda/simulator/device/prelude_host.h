// The CUDA runtime as host code calls it. Such code may stand in a file beside its kernels: it compiles here and is never run.
#pragma once

template <class... A> inline int rooftile_host_call(A&&...) { return 0; }
typedef int cudaError_t;
typedef struct rooftile_stream* cudaStream_t;
typedef struct rooftile_event* cudaEvent_t;
enum { cudaSuccess = 0, cudaMemcpyHostToHost = 0, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault };
enum { cudaFuncAttributeMaxDynamicSharedMemorySize = 8, cudaFuncAttributePreferredSharedMemoryCarveout = 9 };
struct cudaDeviceProp {
  char name[256];
  size_t totalGlobalMem, sharedMemPerBlock;
  int major, minor, multiProcessorCount, warpSize_, maxThreadsPerBlock;
};
template <class... A> inline const char* cudaGetErrorString(A&&...) { return ""; }
#define ROOFTILE_HOST(name) \
  template <class... A> inline cudaError_t name(A&&...) { return 0; }
ROOFTILE_HOST(cudaMallocManaged) ROOFTILE_HOST(cudaFree) ROOFTILE_HOST(cudaMemcpy) ROOFTILE_HOST(cudaMemcpyAsync) ROOFTILE_HOST(cudaMemset)
ROOFTILE_HOST(cudaMemsetAsync) ROOFTILE_HOST(cudaDeviceSynchronize) ROOFTILE_HOST(cudaGetLastError) ROOFTILE_HOST(cudaPeekAtLastError)
ROOFTILE_HOST(cudaEventCreate) ROOFTILE_HOST(cudaEventRecord) ROOFTILE_HOST(cudaEventSynchronize) ROOFTILE_HOST(cudaEventElapsedTime)
ROOFTILE_HOST(cudaEventDestroy) ROOFTILE_HOST(cudaStreamCreate) ROOFTILE_HOST(cudaStreamSynchronize) ROOFTILE_HOST(cudaStreamDestroy)
ROOFTILE_HOST(cudaSetDevice) ROOFTILE_HOST(cudaGetDevice) ROOFTILE_HOST(cudaGetDeviceCount) ROOFTILE_HOST(cudaGetDeviceProperties)
ROOFTILE_HOST(cudaFuncSetAttribute) ROOFTILE_HOST(cudaMemcpyToSymbol) ROOFTILE_HOST(cudaMallocHost) ROOFTILE_HOST(cudaFreeHost)
ROOFTILE_HOST(cudaMalloc) ROOFTILE_HOST(cudaOccupancyMaxActiveBlocksPerMultiprocessor) ROOFTILE_HOST(cudaDeviceReset)
#undef ROOFTILE_HOST
