# Temporary.
set -x
export PYTHONPATH=src PYTHONUNBUFFERED=1
python3 -m opwright build 2>&1 | tail -2
(python3 benchmarks/cuda.py --only bandwidth,layouts,calls --json $OUT/cuda.json) 2>&1
(python3 benchmarks/cuda.py --only build --json $OUT/build.json > $OUT/build.log 2>&1 &)
(time timeout 280 python3 -m pytest -c tests/cuda/pytest.ini --rootdir=. --confcutdir=. -q -s --durations=5 tests/cuda/test_check.py) > $OUT/check.log 2>&1
tail -c 9000 $OUT/check.log
cat $OUT/build.log
