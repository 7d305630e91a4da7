"""What is right, for check and bench alike: the reference in float64, and what rounding may do to a right result.

A result may be off by LOSS times what the reference itself loses in the dtype at hand, and by a few units in the last
place. `oracle.py` asks this of every element, and finds the loss by rounding errors at random (`noise.py`); `whole.py`
asks it of a tensor as a whole, at sizes where so many runs would not do, and takes the loss of one run.
"""
