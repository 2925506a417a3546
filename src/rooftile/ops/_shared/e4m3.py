"""Where float8_e4m3fn is to be had."""

WITH_E4M3 = (89, 90, 100, 101, 103, 110, 120, 121)  # whose Triton converts to it and from it
