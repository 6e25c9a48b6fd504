export PYTHONPATH=.site:src XLA_PYTHON_CLIENT_PREALLOCATE=false OMP_NUM_THREADS=1
rm -rf runs; mkdir -p runs
pip install -q --no-index --no-deps --target .site .wheels/*.whl 2>&1 | grep -v WARN
date +%T
go() { n=$1; shift; setsid nohup python3 -m diaster train "$@" --out runs/$n > runs/$n.log 2>&1 & }
go Ant-v5 Ant-v5 --steps 250000 --seeds 5
sleep 14; tail -3 runs/Ant-v5.log
go det1 Swimmer-v5 --steps 4000 --seeds 2
go det2 Swimmer-v5 --steps 4000 --seeds 2
for i in $(seq 1 100); do sleep 2; mkdir -p $OUT; cp runs/Ant-v5/progress.csv $OUT/Ant-v5.csv 2>/dev/null; [ -f runs/Ant-v5/DONE ] && break; done
date +%T
for e in Ant-v5 det1 det2; do echo == $e; cut -c1-140 runs/$e.log | tail -7;  done
for f in policy.safetensors decomposer.safetensors progress.csv; do cmp runs/det1/$f runs/det2/$f && echo same $f bytes; done; grep -h -A1 wall_s runs/*/metadata.json; uptime
