// __nv_bfloat16 and __nv_bfloat162, for g++. The GPU's compiler reads NVIDIA's header of this name.
#pragma once
#include "small_floats.h"
ROOFTILE_SMALL(__nv_bfloat16, __nv_bfloat162, bfloat16, rooftile_to_bfloat16, rooftile_from_bfloat16)
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;
inline __nv_bfloat162 __halves2bfloat162_rn(__nv_bfloat16 a, __nv_bfloat16 b) { return __nv_bfloat162(a, b); }
