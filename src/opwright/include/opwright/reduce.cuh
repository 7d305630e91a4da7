#pragma once

#include <opwright/map.cuh>
#include <opwright/sum.h>
