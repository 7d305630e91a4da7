# Everything in one go; temporary.
set -x
export PYTHONPATH=src PYTHONUNBUFFERED=1
(time python3 -m opwright build) 2>&1 | tail -20
(time python3 -m pytest -c tests/cuda/pytest.ini --rootdir=. --confcutdir=. -q --durations=8 tests/cuda --ignore tests/cuda/test_check.py) 2>&1 | tail -70
python3 benchmarks/cuda.py --json $OUT/cuda.json
for flags in "-DOPWRIGHT_THREADS=512" "-DOPWRIGHT_THREADS=128"; do
  echo "== $flags"; OPWRIGHT_NVCCFLAGS="$flags" python3 -m opwright build --device cuda 2>&1 | tail -1
  OPWRIGHT_NVCCFLAGS="$flags" python3 benchmarks/cuda.py --only bandwidth
done
for tool in memcheck racecheck initcheck synccheck; do
  echo "== $tool"; time PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool $tool python3 tests/cuda/run_samples.py 2>&1 | tail -8
done
PYTHONPATH=src OPWRIGHT_PREBUILT=$PWD/prebuilt-here OPWRIGHT_BUILD=0 OPWRIGHT_CACHE_DIR=/tmp/none PATH=/nowhere $(which python3) -c "
import torch, opwright as ow
x = torch.ones(3, device='cuda')
print('prebuilt elsewhere:', ow.cube(x + 1).tolist(), ow.axpby(x, x, a=4).tolist(), ow.sigmoid(x * 0).tolist(), ow.linear(x, x[None]).tolist())
print(ow.explain(ow.cube, x), torch.__version__)
from opwright.kit.build.library import libraries
print({l.file.parent.name: l.key for l in libraries() if l.key})"
python3 -m opwright doctor --json
(time timeout 100 python3 -m opwright check scale --device cuda) 2>&1 | tail -60
python3 -m opwright cache
