# Temporary.
set -x
export PYTHONPATH=src PYTHONUNBUFFERED=1
time python3 -m opwright build lltm lltm_cell 2>&1 | tail -3
timeout 150 python3 -m pytest -c tests/cuda/pytest.ini --rootdir=. --confcutdir=. -q --tb=line --durations=3 tests/cuda/test_lltm.py 2>&1 | tail -50
timeout 60 python3 -P benchmarks/lltm.py --device cuda --rounds 15 --only cell --json $OUT/lltm-cell.json 2>&1
timeout 100 python3 -P benchmarks/lltm.py --device cuda --rounds 8 --only sequence --json $OUT/lltm-sequence.json 2>&1
timeout 60 python3 -P benchmarks/lltm.py --device cuda --only memory --only numerics --json $OUT/lltm-rest.json 2>&1
timeout 50 compute-sanitizer --tool memcheck python3 -m pytest -c tests/cuda/pytest.ini --rootdir=. --confcutdir=. -q tests/cuda/test_lltm.py -k "samples and float32" 2>&1 | tail -6
