# Temporary: one run on the GPU in at most 150 s.
set -x
export PYTHONPATH=src PYTHONUNBUFFERED=1
PYTEST="python3 -m pytest -c tests/cuda/pytest.ini --rootdir=. --confcutdir=. -q"
python3 -m opwright build 2>&1 | tail -1
timeout 20 python3 benchmarks/cuda.py --only calls --json $OUT/calls.json
(timeout 100 $PYTEST tests/cuda/test_kernels.py > $OUT/kernels.log 2>&1 &)
timeout 115 $PYTEST -s --durations=4 tests/cuda/test_check.py > $OUT/check.log 2>&1
grep -E "FAILED|passed|failed|skipped" $OUT/check.log | cut -c1-250 | sort | uniq | tail -40
tail -5 $OUT/kernels.log
