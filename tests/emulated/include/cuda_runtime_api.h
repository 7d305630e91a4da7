#include <emulated.h>
