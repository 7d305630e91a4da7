"""What an author says of an operator's kernels: functions, files and source strings, each with its domain."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from opwright.kit.build.strings import is_kept
from opwright.kit.derive import derive
from opwright.kit.dispatch import sourced
from opwright.kit.dispatch.kernel import refuse_device, refuse_parameters
from opwright.kit.spec import shard, words
from opwright.kit.spec.domain import Domain
from opwright.kit.spec.operator import KernelSpec, Spec
from opwright.kit.spec.options import Options

if TYPE_CHECKING:
    from opwright.kit.op import Op


@lru_cache
def _folder_of(file: str) -> Path:
    """The folder of a file, links followed."""
    return Path(file).resolve().parent


class KernelDeclarations:
    """The decorators of an operator that give it kernels."""

    spec: Spec

    def become(self, spec: Spec, rung: derive.Rung | None = None) -> None:
        """Take a new spec, and the gradient that follows from it, where somebody knows."""
        raise NotImplementedError

    def kernel(self, device: str, domain: Domain = Domain(), /) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Declare a kernel for a kind of device; within its domain it runs in the reference's place."""
        refuse_device(self.spec.name, device)
        self._refuse_domain(domain)

        def declare(function: Callable[..., Any]) -> Callable[..., Any]:
            words.function(self.spec.name, "a kernel in Python", function)
            refuse_parameters(self.spec.name, self.spec.signature, function)
            name = getattr(function, "__name__", "kernel")
            self._add_kernels(KernelSpec(device, domain, name, function))
            return function

        return declare

    def kernel_file(self, file: str, domain: Domain = Domain(), options: Options = Options()) -> None:
        """Declare a kernel that a source file beside the operator's own binds with OPWRIGHT_KERNEL. It is built
        when first needed. It is for CUDA when it is called `cuda`, or when it or one of its further sources is a
        `.cu` file; else for the CPU."""
        if not isinstance(file, str):
            raise TypeError(f"{self.spec.name}: a kernel's file must be a string such as 'cpu.cpp', got {file!r}")
        self._add_files((file,), domain, options)

    def kernel_files(
        self, *files: str, domain: Domain = Domain(), backward: Domain | None = None, options: Options = Options()
    ) -> None:
        """Declare the kernels of several files, for the calls in `domain`. With the domain of its gradient, `backward`,
        the files also hold the kernels of `op.backward`, and those of `op.saving_form` where it has one."""
        if not files or not all(isinstance(file, str) for file in files):
            got, name = ", ".join(map(repr, files)) or "nothing", self.spec.name
            raise TypeError(f'{name}: name its files and then domain=…, such as kernel_files("cpu.cpp"), got {got}')
        op = cast("Op[..., Any]", self)
        if backward is not None:
            op.backward._refuse_domain(backward)  # before anything is declared
        self._add_files(files, domain, options)
        if backward is not None:
            if op.saving_form is not None:
                op.saving_form._add_files(files, domain, options)
            op.backward._add_files(files, backward, options)

    def kernel_source(
        self,
        device: str,
        sources: str | Sequence[str],
        domain: Domain = Domain(),
        options: Options = Options(),
        *,
        backward: Domain | None = None,
        name: str = "",
    ) -> None:
        """Declare a kernel for `cpu` or `cuda` that source strings bind with OPWRIGHT_KERNEL, each as a file would.
        `backward` is the gradient's domain, where they hold its kernels too. Errors speak of the line
        in the script or cell. A kernel of the same `name`, `"cpu source"` by default, is replaced: a cell that is run
        again takes up the edited string, and what did not change is not built again.

        >>> import torch, opwright as ow
        >>> @ow.op
        ... def thrice(x: torch.Tensor) -> torch.Tensor:
        ...     return 3 * x
        >>> thrice.kernel_source("cpu", '''
        ... #include <opwright/kernel.h>
        ... Tensor thrice_cpu(const Tensor& x) {
        ...     return compute(x, [&](auto zero) {
        ...         using C = decltype(zero);
        ...         return map([](C v) { return 3 * v; }, x);
        ...     });
        ... }
        ... OPWRIGHT_KERNEL(thrice, CPU, thrice_cpu);
        ... ''', ow.Domain(dtypes=ow.FLOATING))
        >>> thrice(torch.ones(2))
        tensor([3., 3.])
        """
        self._refuse_domain(domain)
        op = cast("Op[..., Any]", self)
        if backward is not None:
            op.backward._refuse_domain(backward)  # before anything is declared
        kept = sourced.read(op, device, sources, options, name, sys._getframe(1))
        self._replace_kernel(replace(kept, domain=domain))
        if backward is not None:
            if op.saving_form is not None:
                op.saving_form._replace_kernel(replace(kept, domain=domain))
            op.backward._replace_kernel(replace(kept, domain=backward))

    def _replace_kernel(self, kernel: KernelSpec) -> None:
        """Take a kernel of strings in the place of the one of the same name and device, if there is one."""
        named = [(k.device, k.name) for k in self.spec.kernels]
        mine = kernel.device, kernel.name
        at = named.index(mine) if mine in named else len(named)
        if at < len(named) and not is_kept(self.spec.kernels[at].file or Path()):
            raise ValueError(
                f"{self.spec.name}: it has a kernel {kernel.name!r} for {kernel.device}, which is of no string; choose "
                f"another name"
            )
        self.become(replace(self.spec, kernels=(*self.spec.kernels[:at], kernel, *self.spec.kernels[at + 1 :])))

    def _refuse_domain(self, domain: Any) -> None:
        if not isinstance(domain, Domain):
            raise TypeError(f"{self.spec.name}: a kernel's domain must be an ow.Domain, got {domain!r}")
        domain.refuse_names(self.spec.name, self.spec.signature.names)

    def _add_files(self, files: Sequence[str], domain: Domain, options: Options) -> None:
        self._refuse_domain(domain)
        if not isinstance(options, Options):
            raise TypeError(f"{self.spec.name}: a kernel's options must be ow.Options, got {options!r}")
        folder = _folder_of(inspect.getfile(inspect.unwrap(cast("Op[..., Any]", self).home.reference)))
        kernels = []
        for file in files:
            on_gpu = Path(file).stem == "cuda" or any(f.endswith(".cu") for f in (file, *options.sources))
            kernels.append(KernelSpec("cuda" if on_gpu else "cpu", domain, file, None, folder / file, options))
        self._add_kernels(*kernels)

    def _add_kernels(self, *kernels: KernelSpec) -> None:
        if self.spec.sharding is not None:
            for each in kernels:
                shard.refuse_contradiction(self.spec.name, self.spec.sharding, each.domain)
        self.become(replace(self.spec, kernels=(*self.spec.kernels, *kernels)))
