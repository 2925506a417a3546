// Types of the CUDA runtime that may stand in a structure or a declaration beside the kernels. Host code itself is left out (host.py).
#pragma once

typedef int cudaError_t;
typedef struct rooftile_stream* cudaStream_t;
typedef struct rooftile_event* cudaEvent_t;
typedef struct rooftile_graph* cudaGraph_t;
typedef struct rooftile_graph_exec* cudaGraphExec_t;
struct cudaDeviceProp;
enum { cudaSuccess = 0 };
