// The tiles of float numbers, which take the compiler longest: a file of their own is compiled beside the others.
#include "tiles.h"

template <>
lltm::Tiles<float> lltm::Tiles<float>::forward() {
    return choose<float, TileForward>();
}

template <>
lltm::Tiles<float> lltm::Tiles<float>::backward() {
    return choose<float, TileBackward>();
}
