# Temporary.
set -x
export PYTHONPATH=src PYTHONUNBUFFERED=1
python3 -m opwright build lltm lltm_cell 2>&1 | tail -3
timeout 150 python3 -m pytest -c tests/cuda/pytest.ini --rootdir=. --confcutdir=. -q -x --durations=3 tests/cuda/test_lltm.py 2>&1 | tail -30
timeout 120 python3 benchmarks/lltm.py --device cuda --rounds 12 --json $OUT/lltm-cuda.json 2>&1
timeout 60 compute-sanitizer --tool memcheck python3 -m pytest -c tests/cuda/pytest.ini --rootdir=. --confcutdir=. -q -x tests/cuda/test_lltm.py -k "samples and float32" 2>&1 | tail -6
