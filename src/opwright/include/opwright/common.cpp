// The parts of kernel.h that do not depend on a kernel, compiled once for all of them.
#define OPWRIGHT_COMMON
#include <opwright/kernel.h>
