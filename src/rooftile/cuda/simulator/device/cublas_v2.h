// Of cuBLAS nothing: host code is left out. NVIDIA's header brings these two with it, and kernels rely on that.
#pragma once
#include "cuda_bf16.h"
#include "cuda_fp16.h"
