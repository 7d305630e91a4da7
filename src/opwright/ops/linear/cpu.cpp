#include "product.h"

OPWRIGHT_KERNEL(linear, CPU, product);
OPWRIGHT_KERNEL(linear_backward, CPU, product_backward);
