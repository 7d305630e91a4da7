#include "product.h"

OPWRIGHT_KERNEL(linear, CUDA, product);
OPWRIGHT_KERNEL(linear_backward, CUDA, product_backward);
