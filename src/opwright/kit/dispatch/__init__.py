"""How an operator is bound and called: the only floor that knows torch.library, torch._C and our C++."""
