// What g++ reads before every kernel, once for all of them.
#include "prelude.h"
#include "entry.h"
