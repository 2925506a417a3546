// Types of the CUDA runtime that may stand in a structure or a declaration beside the kernels. Host code itself is left out (host.py).
#pragma once

typedef int cudaError_t;
typedef struct rooftile_stream* cudaStream_t;
typedef struct rooftile_event* cudaEvent_t;
typedef struct rooftile_graph* cudaGraph_t;
typedef struct rooftile_graph_exec* cudaGraphExec_t;
struct cudaDeviceProp;
enum { cudaSuccess = 0 };
// A kernel that calls these has launched another one, and has been told.
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }

// Textures compile and are no more.
typedef unsigned long long cudaTextureObject_t;
typedef unsigned long long cudaSurfaceObject_t;
enum cudaTextureReadMode { cudaReadModeElementType, cudaReadModeNormalizedFloat };
enum cudaSurfaceBoundaryMode { cudaBoundaryModeZero, cudaBoundaryModeClamp, cudaBoundaryModeTrap };
template <class T, int Type = 1, cudaTextureReadMode Mode = cudaReadModeElementType> struct texture {};
#define ROOFTILE_TEXTURE(name)                                                             \
  template <class T, class... A> __forceinline__ T name(A...) {                            \
    rooftile_sim_not_modelled("textures and surfaces (" #name ")");                        \
    return T();                                                                            \
  }                                                                                        \
  template <class T, int Type, cudaTextureReadMode Mode, class... A> __forceinline__ T name(texture<T, Type, Mode>, A...) { return name<T>(0); } \
  template <class T, class... A> __forceinline__ void name(T* out, cudaTextureObject_t, A...) { *out = name<T>(0); }
ROOFTILE_TEXTURE(tex1D) ROOFTILE_TEXTURE(tex1Dfetch) ROOFTILE_TEXTURE(tex2D) ROOFTILE_TEXTURE(tex2DLod) ROOFTILE_TEXTURE(tex2DLayered)
ROOFTILE_TEXTURE(tex3D) ROOFTILE_TEXTURE(texCubemap) ROOFTILE_TEXTURE(surf2Dread)
#undef ROOFTILE_TEXTURE
template <class T, class... A> __forceinline__ void surf2Dwrite(T, A...) { rooftile_sim_not_modelled("textures and surfaces (surf2Dwrite)"); }
