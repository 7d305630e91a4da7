// The tiles of double numbers, which take the compiler longest: a file of their own is compiled beside the others.
#include "tiles.h"

template <>
lltm::Tiles<double> lltm::Tiles<double>::forward() {
    return choose<double, TileForward>();
}

template <>
lltm::Tiles<double> lltm::Tiles<double>::backward() {
    return choose<double, TileBackward>();
}
