# Temporary.
set -x
export PYTHONPATH=src PYTHONUNBUFFERED=1
python3 -m opwright build 2>&1 | tail -1
python3 benchmarks/cuda.py --only calls --json $OUT/calls.json
(time timeout 130 python3 -m pytest -c tests/cuda/pytest.ini --rootdir=. --confcutdir=. -q -s -x tests/cuda/test_check.py -k "library_holds or divergent") > $OUT/check4.log 2>&1
tail -c 5000 $OUT/check4.log
