// __half and __half2, for g++. The GPU's compiler reads NVIDIA's header of this name.
#pragma once
#include "small_floats.h"
ROOFTILE_SMALL(__half, __half2, half, rooftile_to_half, rooftile_from_half)
using half = __half;
using half2 = __half2;
inline __half __short_as_half(short s) { return __ushort_as_half((unsigned short)s); }
inline short __half_as_short(__half a) { return short(a.bits); }
